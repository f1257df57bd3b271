"""What was found in short, and what it depends on."""

from collections.abc import Iterator

from mis_bench.report.documents import passed
from mis_bench.report.page import Section
from mis_bench.report.sources import ReportSources
from mis_bench.results.summary import Measured
from mis_bench.table import Table, number
from mis_bench.targets.target import About


def overview(sources: ReportSources) -> Section:
    """Return the first section: a line for every folder and file, with what came of it and its command."""
    rows = [
        *(
            [each.folder.name, each.results.plan.preset, _outcome(each), each.results.plan.command]
            for each in sources.measured
        ),
        *([name, "validate", passed([each]), "-"] for name, each in sources.validations),
        *([name, f"profile, {each.scenario}", "-", "-"] for name, each in sources.profiles),
        *([name, "estimate", f"{number(each.items_per_second)} items/s", "-"] for name, each in sources.estimates),
    ]
    began = {name: f"{artifact.environment.timestamp:%Y-%m-%d %H:%M} UTC" for name, artifact in sources.artifacts}
    header = ["source", "what", "outcome", "command", "began"]
    return Section("Overview", tables=[Table("Sources", header, [[*row, began.get(row[0], "-")] for row in rows])])


def sections(sources: ReportSources) -> Iterator[Section]:
    """Yield the sections on environments, and on targets with their settings."""
    environments: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, artifact in sources.artifacts:
        fields = artifact.environment.model_dump(exclude={"timestamp"})
        fields["commits"] = {package: str(found) for package, found in artifact.environment.commits.items()}
        rows = tuple((field.replace("_", " "), _text(value)) for field, value in fields.items())
        environments.setdefault(rows, []).append(name)
    if environments:
        tables = [Table(f"Of {', '.join(names)}", ["what", "value"], rows) for rows, names in environments.items()]
        text = ["Figures hold for these machines, versions, workloads and settings, and for no others."]
        if any(artifact.environment.is_dirty for _, artifact in sources.artifacts):
            text.append("Some figures are of a working tree with changes that are in no commit.")
        yield Section("Environment", tables=tables, text=text)
        header = ["target", "backend", "model", "dtype", "versions", "settings"]
        targets = dict.fromkeys(_settings(name, about) for name, about in _abouts(sources))
        yield Section("Targets", tables=[Table("Targets with all their settings", header, list(targets))])


def _outcome(each: Measured) -> str:
    verdict = "passed" if each.summary.passed else "failed"
    best = each.summary.winner or max(each.drawn, key=lambda row: row.speed, default=None)
    if best is None or each.results.plan.preset == "perf":
        return verdict
    return f"{verdict}; {'winner' if best.wins else 'fastest'}: {best.name}, {number(best.speed)} items/s"


def _abouts(sources: ReportSources) -> Iterator[tuple[str, About]]:
    for each in sources.measured:
        yield from ((opened.target, opened.about) for opened in each.results.opened if opened.about)
    yield from ((model.about.name, model.about) for _, each in sources.validations for model in each.models)
    yield from ((profile.target.name, profile.target) for _, profile in sources.profiles)


def _settings(name: str, about: About) -> tuple[str, ...]:
    given = {option: value for option, value in about.options.items() if value is not None}
    return name, about.backend, about.model, about.dtype or "-", _text(about.versions), _text(given)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items()) or "none"
    return f"{value:,}" if type(value) is int else str(value)
