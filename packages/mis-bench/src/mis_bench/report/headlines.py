"""The few figures at the top of a report."""

from collections.abc import Iterator
from itertools import islice

from mis_bench.report.lines import is_measured
from mis_bench.report.section import Headline, number
from mis_bench.report.sources import Sources

MOST = 6
"""Headlines of a page."""


def headlines(sources: Sources) -> list[Headline]:
    """Return the headlines: what was compared, then what was measured, then verdicts and estimates."""
    return list(islice(_all(sources), MOST))


def _all(sources: Sources) -> Iterator[Headline]:
    yield from _compared(sources)
    yield from _measured(sources)
    yield from _verdicts(sources)
    yield from _estimated(sources)


def _compared(sources: Sources) -> Iterator[Headline]:
    for source in sources.comparisons:
        found = source.content
        best = found.best_native_view.best
        if best is None or best.items_per_second is None:
            yield Headline("none", "", f"target may win the comparison on {found.workload.name}")
            continue
        yield Headline(number(best.items_per_second.value), "items/s", f"{best.label}, winner on {found.workload.name}")
        if best.ratio is not None and best.target != found.reference:
            yield Headline(number(best.ratio.value), "times", f"the items per second of {found.reference}")


def _measured(sources: Sources) -> Iterator[Headline]:
    rows = [(source, row) for source in sources.runs for row in source.content.rows if is_measured(row)]
    if rows:
        source, row = max(rows, key=lambda each: each[1].throughput_ips)
        query = "cached" if row.cache == "warm" else "computed"
        what = f"{source.content.target.name}, {row.workload.name}, query {query}"
        yield Headline(number(row.throughput_ips), "items/s", f"highest throughput of the runs: {what}")
    speedups = [
        (each.speedup_vs_serial_p50, items)
        for source in sources.validations
        for model in source.content.models
        for items, each in model.performance.items()
    ]
    if speedups:
        ratio, items = max(speedups)
        yield Headline(number(ratio), "times", f"faster than one item at a time, at {items} items")


def _verdicts(sources: Sources) -> Iterator[Headline]:
    gates = [gate for each in sources.validations for model in each.content.models for gate in model.gates]
    if gates:
        passed, waived = (sum(gate.status == status for gate in gates) for status in ("passed", "waived"))
        what = "of the validation passed" + (f", {waived} waived" if waived else "")
        yield Headline(f"{passed} of {len(gates)}", "gates", what)
    absent = sum(len(each.content.planned) - len(each.content.models) for each in sources.validations)
    if absent:
        yield Headline(str(absent), "", f"{'model was' if absent == 1 else 'models were'} not validated")
    results = [result for each in sources.stresses for result in each.content.results]
    if results:
        good = sum(result.success for result in results)
        yield Headline(f"{good} of {len(results)}", "loads", "of the stress tests held")
    for each in sources.perfs:
        worst = min(each.content.workloads, key=lambda workload: workload.judgement.throughput.value)
        change = worst.judgement.throughput.value
        yield Headline(f"{change:+.1%}", "", f"least change of items per second against the base: {worst.name}")


def _estimated(sources: Sources) -> Iterator[Headline]:
    for source in sorted(sources.estimates, key=lambda each: -each.content.items_per_second):
        each = source.content
        yield Headline(
            number(each.items_per_second),
            "items/s",
            f"estimated, not measured: {each.model} on {each.topology}, {each.roofline_share:.0%} of the roofline",
        )
