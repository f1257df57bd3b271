"""Sections of documents that are no results: validations, profiles and estimates."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mis_bench.profile.tables import tables
from mis_bench.report.page import Section
from mis_bench.report.plots import Axis, Plot, Series
from mis_bench.report.results import short
from mis_bench.report.sources import ReportSources
from mis_bench.table import Table, number
from mis_bench.validation.gates import Validation


def sections(sources: ReportSources) -> Iterator[Section]:
    """Yield the sections for which there is something."""
    if sources.validations:
        yield _validation(sources.validations)
    if sources.profiles or sources.estimates:
        yield _device_time(sources)


def passed(validations: Sequence[Validation]) -> str:
    """Return `2 of 4 gates passed`, and how many were waived; or that there are none."""
    statuses = [gate.status for each in validations for model in each.models for gate in model.gates]
    if not statuses:
        return "No gate was measured"
    waived = f", {statuses.count('waived')} waived" if "waived" in statuses else ""
    return f"{statuses.count('passed')} of {len(statuses)} gates passed{waived}"


def _models_table(documents: Sequence[tuple[str, Validation]]) -> Table:
    """Return a row for every model of every file, and a column for every gate: its verdict, and what was measured."""
    models = [(file, model) for file, each in documents for model in each.models]
    names = list(dict.fromkeys(gate.name for _, model in models for gate in model.gates))
    rows = []
    for file, model in models:
        gates = {
            gate.name: gate.status + ("" if gate.measured is None else f" ({number(gate.measured)})")
            for gate in model.gates
        }
        verdict = "passed" if model.passed else "failed" if model.is_whole else "interrupted"
        rows.append([model.model, file, model.about.name, model.dtype, verdict, *(gates.get(name) for name in names)])
    for file, each in documents:
        empty = [None] * len(names)
        rows += [[model, file, None, None, f"not run: {why}", *empty] for model, why in _absent(each).items()]
    return Table.of_cells("Gates by model", ["model", "file", "target", "dtype", "verdict", *names], rows)


def _absent(document: Validation) -> dict[str, str]:
    """Return why models that were planned were not validated, by name."""
    done = {model.model for model in document.models}
    return {
        model: document.unavailable.get(model, "The command ended before.")
        for model in document.planned
        if model not in done
    }


def _validation(documents: Sequence[tuple[str, Validation]]) -> Section:
    models = [(file, model) for file, each in documents for model in each.models]
    captions = [
        ", ".join([f"Gates of {short(model.model)}", model.about.name, *([file] if documents[1:] else [])])
        for file, model in models
    ]
    gates = [replace(model.table, caption=caption) for caption, (_, model) in zip(captions, models, strict=True)]
    series = []
    for file, model in models:
        speedups = {timing.items: timing.speedup for timing in model.timings if timing.speedup is not None}
        if speedups:
            name = f"{short(model.model)}, {model.about.name}, {file}"
            series.append(Series(name, list(speedups), list(speedups.values())))
    x, y = Axis("Items of a request"), Axis("Times as fast as one item at a time", mark=1)
    reading = "Above the dotted line one request is faster than its items one by one."
    text = [f"{passed([each for _, each in documents])}."]
    for _, each in documents:
        text += [f"Not validated: {short(model)}. {why}" for model, why in _absent(each).items()]
    plots = [Plot(series, x, y, reading)] if series else []
    return Section("Validation", plots, [_models_table(documents), *gates], text)


def _device_time(sources: ReportSources) -> Section:
    shares = {
        f"{each.target.name}, {each.scenario} ({file})": {stage.name: each.share(stage) for stage in each.stages}
        for file, each in sources.profiles
    } | {
        f"{each.model} on {each.topology}, estimated ({file})": {stage.name: stage.share for stage in each.stages}
        for file, each in sources.estimates
    }
    series = [Series(name, [100 * share for share in those.values()], list(those)) for name, those in shares.items()]
    drawn = [each for each in series if each.x]
    columns = {
        "what": lambda each: f"{each.model} on {each.topology}",
        "workload": lambda each: each.workload,
        "ms a request": lambda each: each.milliseconds,
        "items/s": lambda each: each.items_per_second,
        "at worst": lambda each: each.worst_items_per_second,
        "at best": lambda each: each.best_items_per_second,
        "of the roofline": lambda each: f"{each.roofline_share:.0%}",
        "GiB of a device": lambda each: f"{each.memory_bytes / 2**30:.2f} of {each.memory_limit_bytes / 2**30:.2f}",
        "stages in ms": lambda each: ", ".join(f"{stage.name} {number(stage.milliseconds)}" for stage in each.stages),
        "not modelled": lambda each: "; ".join(each.not_modelled),
    }
    found = [
        replace(table, caption=f"{file}: {table.caption}") for file, each in sources.profiles for table in tables(each)
    ]
    if sources.estimates:
        priced = [estimate for _, estimate in sources.estimates]
        found.append(Table.of("Priced from compiled programs, not measured", priced, columns))
    x, y = Axis("Share of device time in %", "linear"), Axis("", "names")
    reading = "What is furthest right takes longest, and is what to make faster first. These are shares, not latencies."
    return Section("Device time and memory", [Plot(drawn, x, y, reading)] if drawn else [], found)
