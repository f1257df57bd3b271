"""What figures mean: limits, how surely something must be known, and the status that follows from both.

Pure rules over figures that artifacts hold, so that whoever reads an artifact can apply them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mis_bench.statistics import Interval

Status = Literal["ok", "warn", "unsure", "fail"]
"""`unsure`: the machine was too noisy to exclude a regression; it counts as a warning."""

StoredStatus = Literal["OK", "WARN", "REGRESSION"]
"""Of figures beside stored ones."""

Clock = Literal["clock", "cpu"]
"""Time that passes for callers, and time that the processors work."""

FALSE_ALARMS = 0.01
"""Most comparisons of unchanged code, as a share, that any of their intervals may mislead."""

THROUGHPUT_DROP, SINGLE_ITEM_DROP = 0.10, 0.05
"""Drops of throughput that fail, of requests with several items and with one; half of it warns."""

P95_RISE, P99_RISE = 0.15, 0.20
"""Rises of percentiles that fail, and that warn."""

FEWEST_BEYOND = 5
"""Calls of a side that must lie beyond a percentile before it is judged: 100 calls for p95, 500 for p99."""

MOST_SESSIONS = 5
"""Pairs of processes; after each of them verdicts may be formed."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How surely something must be known, by how often is looked.

    Attributes:
        workloads: How many are compared.
        looks: How often verdicts may be formed while pairs are added.
    """

    workloads: int
    looks: int = MOST_SESSIONS

    @property
    def confidence(self) -> float:
        """Of one interval, so that all of them together mislead at most `FALSE_ALARMS` of the time (Bonferroni)."""
        return 1 - FALSE_ALARMS / (self.workloads * 2 * self.looks)


def limit_of(items: int) -> float:
    """Return the drop of throughput that fails, of requests with so many items."""
    return SINGLE_ITEM_DROP if items == 1 else THROUGHPUT_DROP


def reached(confidence: float, pairs: int) -> float:
    """Return the confidence of an interval of so many pairs: what is wanted, or the most that they allow."""
    return min(confidence, 1 - 2.0 ** (1 - pairs))


def status_of(found: Interval, limit: float) -> Status:
    """Say what a change of throughput means.

    `fail`: surely a drop of more than half of `limit`, and the whole of it is not excluded. `unsure`: the
    whole of it is not excluded, but neither is less than half of it. `warn`: surely a drop, of half of it or more.
    """
    if found.low <= -limit:
        return "fail" if found.high < -limit / 2 else "unsure"
    return "warn" if found.high < 0 and found.value <= -limit / 2 else "ok"


def decide(wall: Interval, cpu: Interval, limit: float, *, on_cpu: bool) -> tuple[Status, Clock]:
    """Say what the two changes of a workload's throughput mean together, and which of them decides.

    The clock decides, since it is what callers wait. Where neighbours made it too noisy, CPU time decides, if the CPU
    is what computes: neighbours hardly change it. But CPU time does not see waiting. So it may fail a workload, and
    it may clear one only if the clock itself shows no drop: its interval holds zero, and its estimate is less than
    half of `limit`.

    Args:
        wall: Change by the clock.
        cpu: Change by CPU time.
        limit: Drop that fails, as a share.
        on_cpu: Whether the CPU computes.
    """
    status = status_of(wall, limit)
    if status != "unsure" or not on_cpu:
        return status, "clock"
    by_cpu = status_of(cpu, limit)
    shows_no_drop = wall.low <= 0 <= wall.high and wall.value > -limit / 2
    return (by_cpu, "cpu") if by_cpu == "fail" or shows_no_drop else ("unsure", "clock")


def is_enough(calls: int, percentile: float) -> bool:
    """Whether so many calls of a side say anything about a percentile."""
    return calls * (1 - percentile / 100) >= FEWEST_BEYOND - 1e-9


def tail_status(rise: Interval, percentile: float, calls: int, *, may_fail: bool) -> Status:
    """Say what the rise of a percentile, 95 or 99, means.

    It counts if enough calls lie beyond the percentile, it reaches the limit, and no rise at all is excluded. p95 fails
    then, and p99 warns.

    Args:
        rise: Relative change.
        percentile: 95 or 99.
        calls: Of each side.
        may_fail: Whether the clock was quiet; one that is too noisy for the middle of the calls says less about their
            end.
    """
    limit = P95_RISE if percentile == 95 else P99_RISE
    if not (is_enough(calls, percentile) and rise.value >= limit and rise.low > 0):
        return "ok"
    return "fail" if percentile == 95 and may_fail else "warn"


def stored_verdict(
    throughput: float | None,
    p95: float | None,
    p99: float | None,
    *,
    calls: int,
    cpu_time: float | None = None,
    threshold: float = THROUGHPUT_DROP,
) -> tuple[StoredStatus, list[str]]:
    """Say what figures mean beside stored ones, and why.

    A drop of throughput beyond `threshold` is a REGRESSION and beyond half of it a WARN; a rise of p95 beyond
    `P95_RISE` is a REGRESSION, of p99 beyond `P99_RISE` a WARN. A percentile that no call lies beyond is the slowest
    call: p95 of fewer than 20 calls warns at most, and p99 of fewer than 100 is left out. A p95 that rose alone,
    without the CPU time, warns at most: that is what neighbours do. What was not measured is a REGRESSION.

    Args:
        throughput: Relative change, or None of what was not measured.
        p95: Relative change, if known.
        p99: Likewise.
        calls: Of the side that has fewer.
        cpu_time: Relative change of a call's CPU time, where that tells neighbours from regressions.
        threshold: Drop of throughput as a share.
    """
    if throughput is None:
        return "REGRESSION", ["not measured"]
    regressions, warnings = [], []
    is_slower = throughput < -threshold / 2
    if is_slower:
        (regressions if throughput < -threshold else warnings).append(f"{throughput:+.1%} items/s")
    if p95 is not None and p95 > P95_RISE:
        reason = f"p95 {p95:+.0%}"
        if not _beyond(calls, 95):
            warnings.append(f"{reason} of only {calls} calls")
        elif cpu_time is not None and cpu_time < threshold / 2 and not is_slower:
            warnings.append(f"{reason}, but CPU time {cpu_time:+.1%}")
        else:
            regressions.append(reason)
    if p99 is not None and p99 > P99_RISE and _beyond(calls, 99):
        warnings.append(f"p99 {p99:+.0%}")
    return "REGRESSION" if regressions else "WARN" if warnings else "OK", regressions + warnings


def worst(statuses: Sequence[Status]) -> Status:
    """Return the worst status."""
    order: list[Status] = ["ok", "warn", "unsure", "fail"]
    return max(statuses, key=order.index)


def _beyond(calls: int, percentile: float) -> bool:
    return calls * (100 - percentile) >= 100
