"""Sections of folders of results: what to draw follows from what varies among their rows."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mis_bench.figures import Row
from mis_bench.report.page import Section
from mis_bench.report.plots import Axis, Plot, Series, bars, lines
from mis_bench.report.sources import Measured
from mis_bench.statistics import Estimate
from mis_bench.table import Table, number, rows_table

TITLES = {
    "compare": "Comparison",
    "matrix": "Chunk sizes",
    "sweep": "Rates and concurrencies",
    "run": "Throughput and latency",
    "stress": "Stress",
    "trace": "Traces",
    "perf": "Against another version",
}
"""Headings by preset, in the order of the page."""

_POOLED = ("run", "stress", "trace")  # folders of these share a section
_SIZES = re.compile(r"-(\d+)-(\d+)-(\d+)(?:@\d+)?$")
_SPEED, _P99 = "Items per second", "p99 of the latency in ms"
_TAILS = ("p50", "p99")


@dataclass(frozen=True, slots=True)
class _Drawn:
    folder: Measured
    row: Row


Fact = Callable[[_Drawn], object]

_FACTS: Mapping[str, Fact] = {
    "target": lambda each: each.row.target,
    "model": lambda each: short(each.row.model or ""),
    "layout": lambda each: " ".join(f"{name}={value}" for name, value in each.row.layout.items()),
    "dtype": lambda each: each.row.dtype or "unknown type",
    "workload": lambda each: _shape(each.row.workload),
    "items": lambda each: f"{each.row.num_items} items",
    "labels": lambda each: f"{each.row.num_labels} labels",
    "calls": lambda each: f"calls of {each.row.chunk_items} items" if each.row.chunk_items else "",
    "cache": lambda each: f"query {'cached' if each.row.cache == 'warm' else 'computed'}",
    "load": lambda each: each.row.load,
    "phase": lambda each: "confirmed" if each.row.phase == "confirm" else "",
    "hardware": lambda each: each.folder.plan.environment.hardware,
    "run": lambda each: each.folder.name,
}
"""What tells rows apart, in the order in which it is named; the run is named where nothing else does."""


def sections(measured: Sequence[Measured]) -> Iterator[Section]:
    """Yield the sections of all folders; those of one preset together, or one by one."""
    for preset, title in TITLES.items():
        mine = [each for each in measured if each.plan.preset == preset]
        groups = [mine] if preset in _POOLED and mine else [[each] for each in mine]
        for folders in groups:
            workloads = list(dict.fromkeys(case.workload.name for each in folders for case in each.plan.cases))
            about = f"{title}: {workloads[0]}" if len(workloads) == 1 else title
            yield Section(about, list(_plots(preset, folders)), list(_tables(folders)), list(_text(folders)))


def short(model: str) -> str:
    """Return a model's name without its folder."""
    return model.rstrip("/").rpartition("/")[2] or model


def _tables(folders: Sequence[Measured]) -> Iterator[Table]:
    for each in folders:
        yield rows_table(f"All figures of {each.name}", each.summary.rows)


def _text(folders: Sequence[Measured]) -> Iterator[str]:
    for each in folders:
        before = f"{each.name}: " if len(folders) > 1 else ""
        yield from (f"{before}{sentence}" for sentence in (*each.summary.findings, *each.plan.notes))
        yield from (f"{before}Limit missed: {sentence}." for sentence in each.summary.missed)


def _plots(preset: str, folders: Sequence[Measured]) -> Iterator[Plot]:
    drawn = [_Drawn(folder, row) for folder in folders for row in folder.drawn if row.is_whole]
    if not drawn or preset == "trace":
        return
    if preset == "sweep":
        yield _throughput_latency(drawn)
    elif preset == "perf":
        yield _changes([each for each in drawn if each.row.ratio])
    elif preset == "compare":
        yield _ranking(drawn)
    chunked = [each for each in drawn if each.row.chunk_items and each.row.phase == "timed"]
    if len({each.row.chunk_items for each in chunked}) > 1:
        yield from _over("calls", "Items of a call", lambda each: each.row.chunk_items, chunked)
    if preset in _POOLED and len({each.row.num_items for each in drawn}) > 1:
        yield from _over("items", "Items of a request", lambda each: each.row.num_items, drawn)
    elif preset in _POOLED and len(drawn) > 1:
        yield _ranking(drawn)


def _throughput_latency(drawn: Sequence[_Drawn]) -> Plot:
    series = [
        Series(
            name,
            [_value(each.row.requests_per_second) for each in mine],
            [_latency(each, "p99") for each in mine],
            notes=[f"{name}, {each.row.load}" for each in mine],
        )
        for name, mine in _lines(drawn, without=("load",)).items()
    ]
    reading = "Right and low is better: more requests a second, answered sooner. Each point is a load."
    objective = drawn[0].folder.plan.slo_p99_ms
    if objective is not None:
        rates = [float(x) for each in series for x in each.x]
        series.append(Series("objective", [min(rates), max(rates)], [objective] * 2, style="guide"))
        best = max(drawn, key=lambda each: each.row.goodput_rps or 0.0).row
        reading += (
            f" The dotted line is the objective of {number(objective)} ms; most answers within it come from "
            f"{best.target} with {best.load}: {number(best.goodput_rps)} a second."
        )
    return Plot(lines(series, Axis("Requests per second", is_log=False), Axis(_P99)), reading)


def _over(fact: str, title: str, x: Callable[[_Drawn], int], drawn: Sequence[_Drawn]) -> Iterator[Plot]:
    """Yield speed and latency over a number of items, one line for what is alike but for that."""
    speeds, latencies = [], []
    for name, mine in _lines(drawn, without=(fact,)).items():
        rising = sorted(mine, key=x)
        xs = [x(each) for each in rising]
        ends = [(speed.low, speed.high) for each in rising if (speed := each.row.items_per_second)]
        speeds.append(Series(name, xs, [each.row.speed for each in rising], ends))
        latencies += [Series(f"{name}, {which}", xs, [_latency(each, which) for each in rising]) for which in _TAILS]
    best = max(drawn, key=lambda each: each.row.speed)
    yield Plot(
        lines(speeds, Axis(title), Axis(_SPEED)),
        f"Higher is better; most is {number(best.row.speed)} items/s at {x(best)} ({best.row.target}). A line that "
        "rises spreads the query's cost over more items; where it is flat, more of them bring nothing.",
    )
    worst = max(drawn, key=lambda each: _latency(each, "p99") / _latency(each, "p50"))
    scatter = number(_latency(worst, "p99") / _latency(worst, "p50"))
    yield Plot(
        lines(latencies, Axis(title), Axis("Latency of a request in ms")),
        "Lower is better. The distance from p50 to p99 is how much requests scatter: at most "
        f"{scatter} times, in {worst.row.name}.",
    )


def _ranking(drawn: Sequence[_Drawn]) -> Plot:
    names = _names(drawn)
    kinds: dict[str, list[int]] = {"wins": [], "measured": [], "not eligible": []}
    for place, each in enumerate(drawn):
        kinds["wins" if each.row.wins else "not eligible" if each.row.objections else "measured"].append(place)
    series = [
        Series(
            kind,
            [names[place] for place in places],
            [drawn[place].row.speed for place in places],
            [(found.low, found.high) for place in places if (found := drawn[place].row.items_per_second)],
            [f"p95 {number(found.p95_ms)} ms" for place in places if (found := drawn[place].row.latency)],
        )
        for kind, places in kinds.items()
        if places
    ]
    what = " The table says why a row is not eligible." if kinds["not eligible"] else ""
    return Plot(bars(series, Axis(_SPEED)), f"Longer is faster; grey ends are the interval, or all rounds.{what}")


def _changes(drawn: Sequence[_Drawn]) -> Plot:
    names = _names(drawn)
    ratios = [each.row.ratio for each in drawn if each.row.ratio]
    changes = [100 * (ratio.value - 1) for ratio in ratios]
    ends = [(100 * (ratio.low - 1), 100 * (ratio.high - 1)) for ratio in ratios]
    reading = "Right of zero the changed version is faster; an interval across zero may be noise."
    return Plot(bars([Series("change", names, changes, ends)], Axis("Change of items per second in %")), reading)


def _lines(drawn: Sequence[_Drawn], without: Sequence[str]) -> dict[str, list[_Drawn]]:
    """Group rows that are alike but for some facts, by the names of what tells the groups apart."""
    groups: dict[tuple[object, ...], list[_Drawn]] = {}
    for each in drawn:
        groups.setdefault(tuple(fact(each) for name, fact in _FACTS.items() if name not in without), []).append(each)
    names = _told_apart(list(groups))
    return dict(zip(names, groups.values(), strict=True))


def _names(drawn: Sequence[_Drawn]) -> list[str]:
    """Return a name for each row, of what tells it apart from the others."""
    return _told_apart([tuple(fact(each) for fact in _FACTS.values()) for each in drawn])


def _told_apart(rows: Sequence[tuple[object, ...]]) -> list[str]:
    """Return a name for each row of facts, of the target and of those facts that differ; equal ones are numbered."""
    kept = [place for place in range(len(rows[0])) if len({row[place] for row in rows}) > 1 or place == 0]
    without_run = [place for place in kept if place != len(rows[0]) - 1]
    if len({tuple(row[place] for place in without_run) for row in rows}) == len(rows):
        kept = without_run
    names = [", ".join(str(row[place]) for place in kept if row[place]) for row in rows]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: place + 1].count(name)})"
        for place, name in enumerate(names)
    ]


def _shape(workload: str) -> str:
    sizes = _SIZES.search(workload)
    return f"query {sizes[1]}, items of {sizes[3]}" if sizes else workload


def _value(found: Estimate | None) -> float:
    return 0.0 if found is None else found.value


def _latency(each: _Drawn, percentile: str) -> float:
    return getattr(each.row.latency, f"{percentile}_ms", 0.0)
