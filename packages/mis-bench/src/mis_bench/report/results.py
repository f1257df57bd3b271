"""Sections of folders of results: what to draw follows from what varies among their rows."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mis_bench.report import comparison
from mis_bench.report.page import Section
from mis_bench.report.plots import Axis, Plot, Series
from mis_bench.results.figures import Row
from mis_bench.results.rows import rows_table
from mis_bench.results.summary import Measured
from mis_bench.table import number

_SIZES = re.compile(r"-(\d+)-(\d+)-(\d+)(?:@\d+)?$")
_SPEED, _P99 = "Items per second", "p99 of the latency in ms"


class _Drawn(NamedTuple):
    """A row, its name among those of its section, and the name of its folder."""

    row: Row
    name: str
    folder: str

    @property
    def size(self) -> int:
        """Items of a call."""
        return self.row.chunk_items or self.row.num_items

    @property
    def facts(self) -> dict[str, str]:
        """What tells rows apart, in the order in which it is named."""
        row = self.row
        sizes = _SIZES.search(row.workload)
        return {
            "target": row.target,
            "model": short(row.model or ""),
            "dtype": row.dtype or "",
            "workload": f"query {sizes[1]}, items of {sizes[3]}" if sizes else row.workload,
            "size": f"{self.size} items",
            "labels": f"{row.num_labels} labels",
            "cache": f"query {'cached' if row.cache == 'warm' else 'computed'}",
            "load": row.load,
            "folder": self.folder,
        }


def sections(measured: Sequence[Measured]) -> Iterator[Section]:
    """Yield the sections, one for all folders of a preset."""
    for preset in dict.fromkeys(each.results.plan.preset for each in measured):
        yield _section(preset, [each for each in measured if each.results.plan.preset == preset])


def short(model: str) -> str:
    """Return a model's name without its folder; that of random weights has none."""
    return model if model.startswith("random:") else model.rstrip("/").rpartition("/")[2]


def _section(preset: str, folders: Sequence[Measured]) -> Section:
    workloads = {case.workload.name for each in folders for case in each.results.plan.cases}
    drawn, text, tables = [], [], []
    for each in folders:
        name, rows = each.folder.name, [row for row in each.drawn if row.is_whole and row.phase == "timed"]
        drawn += [_Drawn(row, f"{row.name} ({name})" if folders[1:] else row.name, name) for row in rows]
        missed = [f"Limit missed: {sentence}." for sentence in each.summary.missed]
        tables += comparison.tables(each) if preset == "compare" else ()
        tables.append(rows_table(f"All figures of {name}", each.summary.rows))
        text += [f"{name}: {one}" for one in (*each.summary.findings, *each.results.plan.notes, *missed)]
    return Section(
        f"{preset.capitalize()}: {workloads.pop()}" if len(workloads) == 1 else preset.capitalize(),
        plots=list(_plots(preset, drawn, folders[0].results.plan.slo_p99_ms)),
        tables=tables,
        text=text,
    )


def _plots(preset: str, drawn: Sequence[_Drawn], objective_ms: float | None) -> Iterator[Plot]:
    changed = [each for each in drawn if each.row.ratio]
    if preset == "sweep" and drawn:
        yield _throughput_latency(drawn, objective_ms)
    elif preset == "perf" and changed:
        axis = Axis("Times the items per second of the other version", "linear", mark=1)
        reading = "Right of the dotted line the version is faster; an interval across it may be noise."
        yield _ranking(changed, "ratio", axis, reading)
    elif preset != "compare" and len({each.size for each in drawn}) > 1:
        yield from _over_sizes(drawn)
    elif len(drawn) > 1:
        reading = "Further right is faster; grey ends are the interval, or all rounds. The table says who may not win."
        yield _ranking(drawn, "items_per_second", Axis(_SPEED), reading)


def _throughput_latency(drawn: Sequence[_Drawn], objective_ms: float | None) -> Plot:
    series = []
    for name, mine in _lines(drawn, without="load").items():
        rates = [each.row.requests_per_second.value for each in mine if each.row.requests_per_second]
        notes = [f"{name}, {each.row.load}" for each in mine]
        series.append(Series(name, rates, _percentiles(mine, 99), notes=notes))
    reading = "Right and low is better: more requests a second, answered sooner. Each point is a load."
    if objective_ms is not None:
        reading += f" The dotted line is the objective of {number(objective_ms)} ms."
    return Plot(series, Axis("Requests per second", "linear"), Axis(_P99, mark=objective_ms), reading)


def _over_sizes(drawn: Sequence[_Drawn]) -> Iterator[Plot]:
    """Yield speed and latency over a number of items, one line for what is alike but for that."""
    speeds, latencies = [], []
    for name, mine in _lines(drawn, without="size").items():
        mine.sort(key=lambda each: each.size)
        sizes = [each.size for each in mine]
        ends = [(speed.low, speed.high) for each in mine if (speed := each.row.items_per_second)]
        speeds.append(Series(name, sizes, [each.row.speed for each in mine], ends))
        latencies += [Series(f"{name}, p{percent}", sizes, _percentiles(mine, percent)) for percent in (50, 99)]
    axis = Axis("Items of a call")
    yield Plot(
        speeds,
        axis,
        Axis(_SPEED),
        "Higher is better. A line that rises spreads the query's cost over more items; where it is flat, more of them "
        "bring nothing.",
    )
    yield Plot(
        latencies,
        axis,
        Axis("Latency of a request in ms"),
        "Lower is better. The distance from p50 to p99 is how much requests scatter.",
    )


def _ranking(drawn: Sequence[_Drawn], figure: str, axis: Axis, reading: str) -> Plot:
    """Return a plot of a figure of every row beside its name."""
    kinds: dict[str, list[_Drawn]] = {}
    for each in drawn:
        kind = "wins" if each.row.wins else "not eligible" if each.row.objections else "measured"
        kinds.setdefault(kind, []).append(each)
    series = []
    for kind, mine in kinds.items():
        found = [getattr(each.row, figure) for each in mine]
        ends = [(each.low, each.high) for each in found]
        series.append(Series(kind, [each.value for each in found], [each.name for each in mine], ends))
    return Plot(series, axis, Axis("", "names"), reading)


def _lines(drawn: Sequence[_Drawn], without: str) -> dict[str, list[_Drawn]]:
    """Group rows that are alike but for one fact, by their target and what tells the groups apart."""
    facts = [{name: fact for name, fact in each.facts.items() if name != without} for each in drawn]
    telling = [name for name in facts[0] if name == "target" or len({each[name] for each in facts}) > 1]
    lines: dict[str, list[_Drawn]] = {}
    for each, mine in zip(drawn, facts, strict=True):
        lines.setdefault(", ".join(mine[name] for name in telling if mine[name]), []).append(each)
    return lines


def _percentiles(drawn: Sequence[_Drawn], percent: int) -> list[float]:
    return [getattr(each.row.latency, f"p{percent}_ms") for each in drawn]
