"""A comparison for people."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from mis_bench.perf.judge import FEWEST_CALLS, Change, Compared, Status, worst
from mis_bench.records import Results

WORDS: dict[Status, str] = {"ok": "OK", "warn": "WARN", "unsure": "WARN: too noisy", "fail": "FAIL"}


def as_table(results: Results, compared: Sequence[Compared]) -> Table:
    """Return one row for every workload; changes with their confidence intervals."""
    base, head = (target.spec.removeprefix("engine of ") for target in results.plan.targets)
    table = Table(title=f"{head[:12]}{head[40:]} against {base[:12]}", title_justify="left")
    table.add_column("workload")
    for heading in ("base ms", "head ms", "items/s", "by CPU time", "p95", "pairs", "calls"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for each in compared:
        table.add_row(
            each.name,
            f"{each.base_ms:.1f}",
            f"{each.head_ms:.1f}",
            _interval(each.throughput.by_clock),
            _interval(each.throughput.by_cpu_time),
            f"{each.tail.rise.value:+.0%}" if each.tail.is_enough else f"({each.tail.rise.value:+.0%})",
            str(each.pairs),
            str(each.calls),
            _verdict(each),
        )
    return table


def sentences(results: Results, compared: Sequence[Compared]) -> Iterator[str]:
    """Yield what a reader of the table must know, and the verdict last."""
    about = next(each.about for each in reversed(results.opened) if each.about is not None)
    yield (
        f"{about.accelerators or results.plan.environment.hardware}, {about.model}, {about.dtype}; "
        f"{results.plan.repeat} pairs of processes."
    )
    if any(not each.tail.is_enough for each in compared):
        yield f"p95 in brackets come from too few calls to be judged: it takes {FEWEST_CALLS}."
    native = {each.target: each.about.options.get("native") for each in results.opened if each.about is not None}
    if native.get("head") and not native.get("base"):
        yield "The head uses the native CPU library, and the base does not."
    yield from results.plan.notes
    yield f"Verdict: {WORDS[worst(each.status for each in compared)]}"


def _interval(found: Change) -> str:
    return f"{found.value:+.1%} ({found.low:+.1%} to {found.high:+.1%})"


def _verdict(each: Compared) -> str:
    if each.objections:
        return f"{WORDS['fail']}, {'; '.join(each.objections)}"
    parts = [WORDS[each.throughput.status]]
    if each.throughput.by == "cpu":
        parts.append("by CPU time")
    if each.tail.status != "ok":
        parts.append(f"{WORDS[each.tail.status]} p95")
    return ", ".join(parts)
