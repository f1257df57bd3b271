"""Checks of scores: against the reference's, and of an item alone against the same item among others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from mis_bench.demand import GATED, Demand
from mis_bench.loop import Sent, drive
from mis_bench.records import Call, Case, Gate, Plan
from mis_bench.targets.base import Scores, Target
from mis_bench.workload import Workload


class Difference(NamedTuple):
    """How far scores are from those that they should be.

    Attributes:
        items: Items compared: the first ones, as many as both have.
        max_abs: Largest absolute difference.
        mean_abs: Mean absolute difference.
    """

    items: int
    max_abs: float
    mean_abs: float


def difference(scores: Scores, truth: Scores) -> Difference:
    """Compare scores, `[items, labels]` both."""
    items = min(len(scores), len(truth))
    apart = np.abs(scores[:items] - truth[:items])
    return Difference(items, float(apart.max()), float(apart.mean()))


def reference_of(plan: Plan, opened: Iterable[str]) -> str | None:
    """Return the target that others are held against: the plan's, or the first other one that could be opened."""
    if plan.reference is None:
        return None
    partial = {case.target for case in plan.cases if case.is_partial}
    names = [target.name for target in plan.targets if target.name in set(opened) and target.name not in partial]
    return plan.reference if plan.reference in names else next(iter(names), None)


@dataclass(slots=True)
class Gatekeeper:
    """Checks scores before speed, and those of timed requests afterwards.

    Attributes:
        plan: What is measured.
        reference: Target that others are held against.
        truths: By workload, the reference's first case that was answered, and its scores.
    """

    plan: Plan
    reference: str | None
    truths: dict[str, tuple[str, Scores]] = field(default_factory=dict)

    def in_order(self, cases: Iterable[Case]) -> list[Case]:
        """Return the cases to check, the reference's first."""
        return sorted((case for case in cases if case.is_gated), key=lambda case: case.target != self.reference)

    async def check(self, demand: Demand, target: Target, repetition: int) -> list[Gate]:
        """Ask for request 0 as it is measured, and for its last item alone, and compare.

        A case whose request is not answered has one gate with an error, and is not to be measured.
        """
        case, workload = demand.case, demand.numbered(GATED)
        whole = await self._asked(demand, target, workload)
        gate = Gate(case=case.name, repetition=repetition, name="isolation", items=0)
        if whole.scores is None:
            return [gate.model_copy(update={"error": whole.error, "message": whole.message})]
        alone = await self._asked(demand, target, replace(workload, items=workload.items[-1:]))
        update = {"error": alone.error, "message": alone.message}
        if alone.scores is not None:
            update |= difference(alone.scores, whole.scores[-1:])._asdict()
        return [gate.model_copy(update=update), *self._correctness(case, whole.scores, repetition)]

    def judge(self, calls: Iterable[Call], scores: Mapping[tuple[str, int], Scores]) -> list[Call]:
        """Return the calls of a round with their differences from the reference's answers to the same requests.

        Args:
            calls: Of all cases.
            scores: Of each, by case and number.
        """
        found = []
        for call in calls:
            name = self.plan.case(call.case).workload.name
            truth = scores.get((self.truths[name][0], call.number)) if name in self.truths else None
            mine = scores.get((call.case, call.number))
            if truth is not None and mine is not None:
                _, largest, mean = difference(mine, truth)
                call = call.model_copy(update={"max_abs": largest, "mean_abs": mean})
            found.append(call)
        return found

    def _correctness(self, case: Case, scores: Scores, repetition: int) -> Sequence[Gate]:
        if self.plan.reference is None:
            return []
        if case.target == self.reference:
            self.truths.setdefault(case.workload.name, (case.name, scores))
        gate = Gate(case=case.name, repetition=repetition, name="correctness", items=0)
        if case.workload.name not in self.truths:
            return [gate.model_copy(update={"error": "missing_reference", "message": "The reference has no scores."})]
        against, truth = self.truths[case.workload.name]
        kept = scores.tolist() if against == case.name else None
        return [gate.model_copy(update={"against": against, "scores": kept, **difference(scores, truth)._asdict()})]

    async def _asked(self, demand: Demand, target: Target, workload: Workload) -> Sent:
        request = demand.encoded(target, GATED, workload)
        (sent,), _ = await drive(target, [request], max_concurrency=1, timeout_s=self.plan.timeout_s)
        return sent
