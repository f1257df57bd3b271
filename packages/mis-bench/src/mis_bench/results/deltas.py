"""How far targets of a comparison are from the reference: in the same calls, and each in its best row."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from mis_bench.artifact import Part
from mis_bench.results.figures import Row
from mis_bench.results.judging import winner
from mis_bench.results.plan import Plan
from mis_bench.results.records import Results
from mis_bench.results.statistics import Estimate, estimate
from mis_bench.table import number

View = Literal["portable", "best-native"]

ROUNDING_PERCENT = 1e-6
"""Differences that are smaller are sums in another order."""

Verdict = Literal["better", "worse", "neither"]


class Delta(Part):
    """A row beside one of the reference, in percent, round by round."""

    view: View = Field(description="`portable`: rows with the same calls. `best-native`: the best row of each target.")
    row: str
    reference: str = Field(description="The reference's row.")
    items_per_second: Estimate = Field(description="Difference from the reference's, in percent.")
    latency: Estimate | None = Field(
        description="Difference of a round's median latency, in percent. Null if requests differ."
    )

    @property
    def speed_verdict(self) -> Verdict:
        """Whether its items per second are better."""
        return _verdict(self.items_per_second, sign=1)

    @property
    def latency_verdict(self) -> Verdict | None:
        """Whether its latency is better; None if it is unknown."""
        return None if self.latency is None else _verdict(self.latency, sign=-1)

    @property
    def sentence(self) -> str:
        """Where it is better, where worse, and by how much."""
        view = "Best of each, " if self.view == "best-native" else ""
        found = f"{_in_words(self.speed_verdict)} in items/s, {_with_ends(self.items_per_second)}"
        if self.latency is not None and self.latency_verdict is not None:
            found += f"; {_in_words(self.latency_verdict)} in latency, {_with_ends(self.latency)}"
        return f"{view}{self.row} beside {self.reference}: {found}"


def percent(value: float) -> str:
    """Return a difference with its sign: `+12.5 %`."""
    text = number(round(value, 6))
    return f"{'+' if value >= ROUNDING_PERCENT else ''}{text} %"


def ends(delta: Estimate) -> str:
    """Return the interval of a difference, or the range of its rounds: `+10.1 to +14 %`."""
    return f"{percent(delta.low).removesuffix(' %')} to {percent(delta.high)}"


def deltas(results: Results, rows: Sequence[Row], reference: str | None) -> Iterator[Delta]:
    """Yield every row of a comparison beside the reference's with the same calls, and the best rows of all targets.

    What has no figures, or not those of the same rounds, is left out.
    """
    theirs = {row.conditions: row for row in rows if row.target == reference}
    others = [row for row in rows if row.target != reference]
    for row in others:
        if (other := theirs.get(row.conditions)) is not None:
            yield from _delta("portable", results, row, other)
    best = best_rows(results.plan, rows)
    for row in best.values():
        if reference in best and row.target != reference:
            yield from _delta("best-native", results, row, best[reference])


def best_rows(plan: Plan, rows: Sequence[Row]) -> dict[str, Row]:
    """Return each target's row that would win among its own, or else its fastest; by target, of those with figures."""
    found = {}
    for target in dict.fromkeys(row.target for row in rows):
        mine = [row for row in rows if row.target == target and row.items_per_second is not None]
        best = winner(mine, plan.limits) or max(mine, key=lambda row: row.speed, default=None)
        if best is not None:
            found[target] = best
    return found


def _delta(view: View, results: Results, row: Row, other: Row) -> Iterator[Delta]:
    if row.items_per_second is None or other.items_per_second is None:
        return
    speed = _percent_more(row.items_per_second.rounds, other.items_per_second.rounds)
    latency = None
    if row.num_items == other.num_items:
        latency = _percent_more(_latencies(results, row), _latencies(results, other))
    if speed is not None:
        yield Delta(view=view, row=row.name, reference=other.name, items_per_second=speed, latency=latency)


def _percent_more(mine: Sequence[float], theirs: Sequence[float]) -> Estimate | None:
    if len(mine) != len(theirs) or not all(theirs):
        return None
    return estimate([100 * (a / b - 1) for a, b in zip(mine, theirs, strict=True)])


def _latencies(results: Results, row: Row) -> list[float]:
    """Return the median latency of every round in which something was answered."""
    by_round: dict[int, list[float]] = {}
    for call in results.of(results.plan.case(row.case)).asked(row.phase):
        if call.error is None:
            by_round.setdefault(call.round, []).append(call.latency_s)
    return [float(np.median(by_round[number])) for number in sorted(by_round)]


def _verdict(delta: Estimate, *, sign: int) -> Verdict:
    """Return which way all of the interval lies; one round alone tells nothing."""
    low, high = sorted((sign * delta.low, sign * delta.high))
    if len(delta.rounds) > 1 and low > ROUNDING_PERCENT:
        return "better"
    return "worse" if len(delta.rounds) > 1 and high < -ROUNDING_PERCENT else "neither"


def _in_words(verdict: Verdict) -> str:
    return "neither better nor worse" if verdict == "neither" else verdict


def _with_ends(delta: Estimate) -> str:
    return f"{percent(delta.value)} ({ends(delta)})"
