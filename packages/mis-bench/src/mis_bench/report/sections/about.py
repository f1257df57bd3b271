"""What the figures depend on, and what they do not say."""

import json
from collections.abc import Iterator

from mis_bench.artifacts.base import Artifact
from mis_bench.report.section import Section, Table
from mis_bench.report.sources import Sources, distinct

GIBIBYTE = 2**30


def about(sources: Sources) -> Iterator[Section]:
    """Yield the sections on the environment, the targets and their settings, the files, and the limits."""
    environments = _environments(sources)
    if environments:
        yield Section("environment", "Environment", tables=environments)
    targets = _targets(sources)
    if targets:
        header = ["target", "backend", "model", "dtype", "versions", "settings"]
        yield Section("targets", "Targets", tables=[Table("Targets with all their settings", header, targets)])
    yield Section("sources", "Sources", tables=list(_sources(sources)))
    yield Section("limits", "Limits", text=list(_limits(sources)))


def hardware(sources: Sources) -> list[str]:
    """Return all hardware that something was measured on."""
    named = [
        each.content.conditions.hardware if hasattr(each.content, "conditions") else each.content.environment.hardware
        for each in sources.artifacts
    ]
    compared = [
        target.hardware
        for each in sources.comparisons
        for target in each.content.targets
        if target.hardware is not None
    ]
    return list(distinct([*compared, *named]))


def _environments(sources: Sources) -> list[Table]:
    found: dict[str, list[list[str]]] = {}
    for source in sources.artifacts:
        each = source.content.environment
        rows = [
            ["hardware", each.hardware],
            ["platform", each.platform],
            ["processors, memory", f"{each.cpu_count}, {each.memory_bytes / GIBIBYTE:.1f} GiB"],
            ["Python", each.python_version],
            ["packages", ", ".join(f"{name} {version}" for name, version in each.versions.items())],
            ["commit", f"{each.commit or 'unknown'}{', with changes' if each.is_dirty else ''}"],
            ["variables", ", ".join(f"{name}={value}" for name, value in each.variables.items()) or "none"],
        ]
        found.setdefault(json.dumps(rows), []).append([source.path.name])
    return [
        Table("Measured for " + ", ".join(distinct(name for (name,) in names)), ["what", "value"], json.loads(rows))
        for rows, names in found.items()
    ]


def _targets(sources: Sources) -> list[list[str]]:
    abouts = [
        *(
            each.content.target
            for each in (*sources.runs, *sources.traces, *sources.matrices, *sources.stresses, *sources.profiles)
        ),
        *(model.about for each in sources.validations for model in each.content.models),
        *(target for each in sources.comparisons for target in each.content.targets if target.unavailable is None),
    ]
    rows = [
        [
            each.name,
            each.backend or "-",
            each.model or "-",
            each.dtype or "-",
            ", ".join(f"{name} {version}" for name, version in each.versions.items()) or "-",
            ", ".join(f"{name}={value}" for name, value in each.options.items() if value is not None) or "-",
        ]
        for each in abouts
    ]
    return [json.loads(row) for row in distinct(json.dumps(row) for row in rows)]


def _sources(sources: Sources) -> Iterator[Table]:
    rows = [
        [source.path.name, _kind(source.content), source.content.environment.timestamp.strftime("%Y-%m-%d %H:%M UTC")]
        for source in sources.artifacts
    ]
    rows += [[source.path.name, "estimate", "-"] for source in sources.estimates]
    yield Table("Files", ["file", "kind", "began"], rows)
    commands = [
        [each.path.name, each.content.command] for each in sources.artifacts if hasattr(each.content, "command")
    ]
    if commands:
        yield Table("Commands", ["file", "command"], commands)


def _kind(artifact: Artifact) -> str:
    return f"{artifact.schema_version}, {artifact.generated_by}"


def _limits(sources: Sources) -> Iterator[str]:
    yield "Figures hold for the hardware, versions, workloads and settings above, and for no others."
    for each in sources.comparisons:
        for target in each.content.targets:
            if target.unavailable:
                yield f"Not measured: {target.name}. {target.unavailable}"
    for each in sources.runs:
        for row in each.content.rows:
            if row.status != "ok":
                yield f"{row.name} of {each.path.name} is {row.status}: {row.reason}"
    yield from distinct(
        f"{each.content.target.name}: {note}" for each in sources.matrices for note in each.content.notes
    )
    if sources.profiles:
        yield "Profiled requests are slower than others; their stages are shares, not latencies."
    if sources.estimates:
        missing = distinct(part for each in sources.estimates for part in each.content.not_modelled)
        yield f"Estimates were priced from compiled programs, not measured. Not modelled: {'; '.join(missing)}."
    if any(each.content.environment.is_dirty for each in sources.artifacts):
        yield "Some figures are of a working tree with changes that are in no commit."
