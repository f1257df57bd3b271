"""What figures depend on, what they do not say, and the few that stand at the top of the page."""

from collections.abc import Iterable, Iterator
from itertools import islice

from mis_bench.report.documents import gates_of, passed
from mis_bench.report.page import Headline, Section
from mis_bench.report.results import short
from mis_bench.report.sources import Sources
from mis_bench.table import Table, number
from mis_bench.targets.base import About

_MOST_HEADLINES = 6


def headlines(sources: Sources) -> list[Headline]:
    """Return a few figures: winners, the fastest row, changes, verdicts, estimates."""
    return list(islice(_headlines(sources), _MOST_HEADLINES))


def sections(sources: Sources) -> Iterator[Section]:
    """Yield the sections on the environments, the targets and their settings, the files, and the limits."""
    environments = list(_environments(sources))
    if environments:
        yield Section("Environment", tables=environments)
    abouts = [(name, about) for name, about in _abouts(sources)]
    if abouts:
        yield Section("Targets", tables=[_targets(abouts)])
    yield Section("Sources", tables=[_files(sources)])
    yield Section("Limits", text=list(dict.fromkeys(_limits(sources))))


def title(sources: Sources) -> str:
    """Return a heading made of the workloads."""
    names = [case.workload.name for each in sources.measured for case in each.plan.cases]
    workloads = _distinct([*names, *(estimate.workload for _, estimate in sources.estimates)])
    if not workloads:
        return "Multi-item scoring"
    return f"Multi-item scoring: {' and '.join(workloads) if len(workloads) < 3 else f'{len(workloads)} workloads'}"


def subtitle(sources: Sources) -> str:
    """Return models and hardware."""
    models = _distinct(short(about.model) for _, about in _abouts(sources))
    hardware = [target.hardware for each in sources.measured for target in each.plan.targets if target.hardware]
    machines = [each.environment.hardware for _, each in _artifacts(sources)]
    topologies = _distinct(estimate.topology for _, estimate in sources.estimates)
    parts = [*([", ".join(models)] if models else []), *_distinct([*hardware, *machines])]
    return " · ".join([*parts, *([f"estimates for {', '.join(topologies)}"] if topologies else [])])


def _headlines(sources: Sources) -> Iterator[Headline]:
    for each in sources.measured:
        best = each.summary.winner
        if best is not None:
            yield Headline(number(best.speed), "items/s", f"{best.target}, winner on {best.workload}")
        elif each.plan.preset in ("compare", "matrix"):
            yield Headline("none", "", f"of the targets may win on {each.plan.cases[0].workload.name}")
    rows = [row for each in sources.measured for row in each.drawn if each.plan.preset in ("run", "sweep", "stress")]
    if rows:
        row = max(rows, key=lambda row: row.speed)
        query = "cached" if row.cache == "warm" else "computed"
        what = f"highest throughput: {row.target}, {row.workload}, {row.load}, query {query}"
        yield Headline(number(row.speed), "items/s", what)
    changes = [row for each in sources.measured for row in each.drawn if each.plan.preset == "perf" and row.ratio]
    if changes:
        worst = min(changes, key=lambda row: row.ratio.value if row.ratio else 1.0)
        change = worst.ratio.value - 1 if worst.ratio else 0.0
        yield Headline(f"{change:+.1%}", "", f"least change of items per second against the base: {worst.workload}")
    gates = gates_of(sources.validations)
    if gates:
        yield Headline(passed(gates), "gates", "of the validation passed")
    absent = sum(len(each.planned) - len(each.models) for _, each in sources.validations)
    if absent:
        yield Headline(str(absent), "", f"{'model was' if absent == 1 else 'models were'} not validated")
    for _, each in sorted(sources.estimates, key=lambda each: -each[1].items_per_second):
        share = f"{each.roofline_share:.0%} of the roofline"
        what = f"estimated, not measured: {each.model} on {each.topology}, {share}"
        yield Headline(number(each.items_per_second), "items/s", what)


def _environments(sources: Sources) -> Iterator[Table]:
    found: dict[str, list[str]] = {}
    tables: dict[str, list[list[str]]] = {}
    for name, artifact in _artifacts(sources):
        fields = artifact.environment.model_dump(exclude={"timestamp"})
        rows = [[field.replace("_", " "), _text(value)] for field, value in fields.items()]
        found.setdefault(str(rows), []).append(name)
        tables[str(rows)] = rows
    for key, names in found.items():
        yield Table("Measured for " + ", ".join(_distinct(names)), ["what", "value"], tables[key])


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _targets(abouts: list[tuple[str, About]]) -> Table:
    """Every target once, with all its settings."""
    columns = {
        "target": lambda each: each[0],
        "backend": lambda each: each[1].backend,
        "model": lambda each: each[1].model,
        "dtype": lambda each: each[1].dtype,
        "versions": lambda each: _text(each[1].versions),
        "settings": lambda each: ", ".join(f"{k}={value}" for k, value in each[1].options.items() if value is not None),
    }
    table = Table.of("Targets with all their settings", abouts, columns)
    return Table(table.caption, table.header, list({tuple(row): row for row in table.rows}.values()))


def _files(sources: Sources) -> Table:
    columns = {
        "file": lambda each: each[0],
        "kind": lambda each: f"{each[1].schema_version}, {each[1].generated_by}" if each[1] else "estimate",
        "began": lambda each: each[1] and each[1].environment.timestamp.strftime("%Y-%m-%d %H:%M UTC"),
        "command": lambda each: getattr(each[1], "command", None),
    }
    files = [*_artifacts(sources), *((name, None) for name, _ in sources.estimates)]
    return Table.of("Files", files, columns)


def _limits(sources: Sources) -> Iterator[str]:
    yield "Figures hold for the hardware, versions, workloads and settings above, and for no others."
    for each in sources.measured:
        missing = {opened.target: opened.unavailable for opened in each.results.opened if opened.unavailable}
        yield from (f"Not measured: {target}. {why}" for target, why in missing.items())
        for row in each.summary.rows:
            if row.status != "ok" and row.target not in missing:
                yield f"{row.name} of {each.name} is {row.status}: {'; '.join(row.reasons)}"
    if sources.profiles:
        yield "Profiled requests are slower than others; their stages are shares, not latencies."
    if sources.estimates:
        missing_parts = _distinct(part for _, each in sources.estimates for part in each.not_modelled)
        yield f"Estimates were priced from compiled programs, not measured. Not modelled: {'; '.join(missing_parts)}."
    if any(each.environment.is_dirty for _, each in _artifacts(sources)):
        yield "Some figures are of a working tree with changes that are in no commit."


def _artifacts(sources: Sources) -> list:
    """Return everything that has an environment, by name: plans and documents."""
    return [
        *((each.name, each.plan) for each in sources.measured),
        *((each.name, each.content) for each in sources.documents),
    ]


def _abouts(sources: Sources) -> Iterator[tuple[str, About]]:
    for each in sources.measured:
        yield from ((opened.target, opened.about) for opened in each.results.opened if opened.about)
    yield from ((model.about.name, model.about) for _, each in sources.validations for model in each.models)
    yield from ((profile.target.name, profile.target) for _, profile in sources.profiles)


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
