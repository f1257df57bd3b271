"""A comparison as tables."""

from collections.abc import Iterable, Iterator

from rich.table import Table

from mis_bench.artifacts.perf import Compared, PerfResult, Stored, StoredRow
from mis_bench.perf.rules import Status
from mis_bench.statistics import Interval

WORDS: dict[Status, str] = {"ok": "OK", "warn": "WARN", "unsure": "WARN: too noisy", "fail": "FAIL"}


def paired_table(result: PerfResult) -> Table:
    """Return one row for every workload; changes with their confidence intervals."""
    table = Table(title=f"{_version(result)} against {result.base_commit[:12]}", title_justify="left")
    table.add_column("workload")
    for heading in ("base ms", "head ms", "items/s", "by CPU time", "p95", "p99", "pairs", "calls"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for each in result.workloads:
        p95, p99 = each.tails
        table.add_row(
            each.name,
            f"{each.base.latency_p50_ms:.1f}",
            f"{each.head.latency_p50_ms:.1f}",
            _interval(each.judgement.throughput),
            _interval(each.judgement.throughput_by_cpu_time),
            *(f"{t.rise.value:+.0%}" if t.is_enough else f"({t.rise.value:+.0%})" for t in (p95, p99)),
            str(each.pairs),
            str(p95.calls),
            _verdict(each),
        )
    return table


def stored_table(stored: Stored) -> Table:
    """Return the head beside its stored figures."""
    weight = "decides" if stored.decides else f"for information only: {stored.why_not}"
    of = f" of {stored.commit[:12]}" if stored.commit else ""
    return baseline_table(f"Stored figures{of} ({stored.file}), {weight}", stored.rows)


def baseline_table(title: str, rows: Iterable[StoredRow]) -> Table:
    """Return figures of today beside stored ones."""
    table = Table(title=title, title_justify="left")
    for heading in ("row", "items/s", "p95", "p99", "status"):
        table.add_column(heading, justify="left" if heading in ("row", "status") else "right")
    for row in rows:
        throughput = "" if row.throughput is None else f"{row.throughput:+.1%}"
        rises = ("" if rise is None else f"{rise:+.0%}" for rise in (row.p95, row.p99))
        table.add_row(row.name, throughput, *rises, " ".join([row.status, ", ".join(row.reasons)]).strip())
    return table


def sentences(result: PerfResult) -> Iterator[str]:
    """Yield what a reader of the tables must know, and the verdict last."""
    conditions = result.conditions
    yield (
        f"{conditions.hardware}, {conditions.model}, {conditions.dtype}; {result.sessions} pairs of processes, "
        f"{result.seconds:.0f} s; intervals of {result.confidence:.2%}; yardstick {result.yardstick.p50_ms:.1f} ms "
        f"(p95 {result.yardstick.p95_ms:.1f})."
    )
    if any(not tail.is_enough for each in result.workloads for tail in each.tails):
        yield "Percentiles in brackets come from too few calls to be judged: p95 takes 100, p99 takes 500."
    yield from result.notes
    if result.stored is not None and not result.stored.decides and any(r.status != "OK" for r in result.stored.rows):
        commit = (result.stored.commit or "")[:12]
        yield f"To see what became of the code since the figures were stored, compare with --base {commit}."
    yield f"Verdict: {WORDS[result.verdict]}"


def _version(result: PerfResult) -> str:
    return f"{result.head_commit[:12]}{' with changes' if result.head_is_dirty else ''}"


def _interval(found: Interval) -> str:
    return f"{found.value:+.1%} ({found.low:+.1%} to {found.high:+.1%})"


def _verdict(each: Compared) -> str:
    parts = [WORDS[each.judgement.status]]
    if each.judgement.by == "cpu":
        parts.append("by CPU time")
    parts += [f"{WORDS[tail.status]} p{tail.percentile:.0f}" for tail in each.tails if tail.status != "ok"]
    return ", ".join(parts)
