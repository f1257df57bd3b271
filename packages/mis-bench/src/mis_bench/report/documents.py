"""Sections of documents that are no results: validations, profiles and estimates."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mis_bench.report.page import Section
from mis_bench.report.plots import Axis, Plot, Series, bars, lines
from mis_bench.report.results import short
from mis_bench.report.sources import Sources
from mis_bench.table import Cell, Table, number
from mis_bench.validation.gates import Gate, ModelValidation, Validation

_SMALL = 2.0  # stages below this share in % everywhere are drawn together
_GIBIBYTE = 2**30


def sections(sources: Sources) -> Iterator[Section]:
    """Yield the sections for which there is something."""
    if sources.validations:
        yield _validation(sources.validations)
    stages = _stages(sources)
    if stages:
        yield _device_time(stages, list(_memory(sources)))


def gates_of(documents: Sequence[tuple[str, Validation]]) -> list[tuple[ModelValidation, Gate]]:
    """Return models with each of their gates."""
    return [(model, gate) for _, each in documents for model in each.models for gate in model.gates]


def passed(gates: Sequence[tuple[ModelValidation, Gate]]) -> str:
    """Return `2 of 4`, and how many were waived."""
    good, waived = (sum(gate.status == status for _, gate in gates) for status in ("passed", "waived"))
    return f"{good} of {len(gates)}" + (f" ({waived} waived)" if waived else "")


def _validation(documents: Sequence[tuple[str, Validation]]) -> Section:
    gates = gates_of(documents)
    table = Table.of(
        "Gates",
        gates,
        {
            "model": lambda each: short(each[0].model),
            "target": lambda each: each[0].about.name,
            "gate": lambda each: each[1].name,
            "measured": lambda each: each[1].measured,
            "limit": lambda each: f"{each[1].rule} {number(each[1].threshold)}",
            "status": lambda each: each[1].status,
            "detail": lambda each: each[1].detail,
        },
    )
    text = [f"{passed(gates)} gates passed."]
    for _, each in documents:
        there = {model.model for model in each.models}
        absent = [model for model in each.planned if model not in there]
        reasons = {model: each.unavailable.get(model, "The command ended before.") for model in absent}
        text += [f"Not validated: {short(model)}. {why}" for model, why in reasons.items()]
    speedups = []
    for file, each in documents:
        for model in each.models:
            found = {timing.items: timing.speedup for timing in model.timings if timing.speedup is not None}
            if found:
                name = f"{short(model.model)}, {model.about.name}, {file}"
                speedups.append(Series(name, sorted(found), [found[count] for count in sorted(found)]))
    return Section("Validation", [_speedup_plot(speedups)] if speedups else [], [table] if gates else [], text)


def _speedup_plot(series: list[Series]) -> Plot:
    counts = [count for each in series for count in each.x]
    best = max(ratio for each in series for ratio in each.y)
    serial = Series("serial", [min(counts), max(counts)], [1.0, 1.0], style="guide")
    figure = lines([*series, serial], Axis("Items of a request"), Axis("Times as fast as one item at a time"))
    above = "Above the dotted line one request is faster than its items one by one"
    return Plot(figure, f"{above}: at most {number(best)} times as fast.")


def _stages(sources: Sources) -> dict[str, dict[str, float]]:
    """Return milliseconds of a request by stage, by what was profiled or estimated."""
    found = {}
    for file, profile in sources.profiles:
        if profile.stages:
            requests = max(1, sum(len(point.profiled) for point in profile.points))
            name = f"{profile.target.name}, {profile.scenario}, profiled ({file})"
            found[name] = {stage.name: stage.ms / requests for stage in profile.stages}
    for file, estimate in sources.estimates:
        name = f"{estimate.model} on {estimate.topology}, estimated ({file})"
        found[name] = {stage.name: stage.milliseconds for stage in estimate.stages}
    return found


def _memory(sources: Sources) -> Iterator[tuple[str, float, float | None]]:
    """Yield what needs memory, how many bytes of a device, and how many it has, if that is known."""
    for _, profile in sources.profiles:
        count = profile.environment.hardware.partition(" x ")[0]
        devices = int(count) if count.isdecimal() else 1
        for report in profile.memory:
            mib = sum(tensor.mib for tensor in report.tensors.values())
            yield f"{profile.target.name}, {report.when}", mib * 2**20 / devices, None
    for _, estimate in sources.estimates:
        name = f"{estimate.model} on {estimate.topology}, estimated"
        yield name, estimate.memory_bytes, estimate.memory_limit_bytes


def _device_time(found: Mapping[str, Mapping[str, float]], memory: Sequence[Sequence[Any]]) -> Section:
    totals = {name: sum(those.values()) for name, those in found.items()}
    rows = [(name, stage, ms) for name, those in found.items() for stage, ms in those.items()]
    rows.sort(key=lambda row: -row[2] / totals[row[0]])
    shares = {
        stage: [100 * those.get(stage, 0.0) / totals[name] for name, those in found.items()] for _, stage, _ in rows
    }
    large = {stage: share for stage, share in shares.items() if max(share) >= _SMALL}
    if len(large) < len(shares):
        large["other"] = [100 - sum(each) for each in zip(*large.values(), strict=True)]
    series = [Series(stage, list(found), share) for stage, share in large.items()]
    name, stage, ms = rows[0]
    reading = f"The longest part is what to make faster first: in {name}, {stage} ({ms / totals[name]:.0%})."
    columns = {
        "what": lambda row: row[0],
        "stage": lambda row: row[1],
        "ms": lambda row: row[2],
        "share": lambda row: f"{row[2] / totals[row[0]]:.1%}",
    }
    tables = [Table.of("Device time of a request by stage", rows, columns)]
    if memory:
        tables.append(Table.of("Memory of a device", memory, _MEMORY))
    plot = Plot(bars(series, Axis("Share of device time in %"), stacked=True), reading)
    return Section("Device time and memory", [plot], tables)


def _limit(row: Sequence[Any]) -> Cell:
    return None if row[2] is None else row[2] / _GIBIBYTE


_MEMORY = {
    "what": lambda row: row[0],
    "used GiB": lambda row: row[1] / _GIBIBYTE,
    "there is GiB": _limit,
    "share": lambda row: None if row[2] is None else f"{row[1] / row[2]:.0%}",
}
