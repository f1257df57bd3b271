"""Checks of scores: against the reference's, and of an item alone against the same item among others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mis_bench.measuring.demand import GATED, Demand
from mis_bench.measuring.loop import ask_one
from mis_bench.results.plan import Cache, Case, Plan
from mis_bench.results.records import Call, Gate
from mis_bench.targets.target import Scores, Target


def difference(scores: Scores, truth: Scores) -> dict[str, Any]:
    """Return `max_abs` and `mean_abs` of the first items that both have; `[items, labels]` both."""
    items = min(len(scores), len(truth))
    apart = np.abs(scores[:items] - truth[:items])
    return {"max_abs": float(apart.max()), "mean_abs": float(apart.mean())}


@dataclass(slots=True)
class Gatekeeper:
    """Checks scores before speed, and those of timed requests afterwards.

    Attributes:
        plan: What is measured.
        reference: Target whose scores are the reference.
        truths: By workload and cache, the reference's first case that was answered, and its scores.
    """

    plan: Plan
    reference: str | None
    truths: dict[tuple[str, Cache], tuple[str, Scores]] = field(default_factory=dict)

    def in_order(self, cases: Iterable[Case]) -> list[Case]:
        """Return the cases to check, the reference's first."""
        return sorted((case for case in cases if case.is_gated), key=lambda case: case.target != self.reference)

    async def check(self, demand: Demand, target: Target) -> list[Gate]:
        """Ask for request 0 as it is measured, and for its last item alone, and compare.

        A case whose request is not answered has one gate with an error, and is not to be measured.
        """
        case, workload = demand.case, demand.numbered(GATED)
        whole = await ask_one(target, demand.encoded(target, GATED, workload), self.plan.timeout_s)
        if whole.scores is None:
            return [Gate(case=case.name, name="isolation", error=whole.error, message=whole.message)]
        last = demand.encoded(target, GATED, replace(workload, items=workload.items[-1:]))
        alone = await ask_one(target, last, self.plan.timeout_s)
        apart = {} if alone.scores is None else difference(alone.scores, whole.scores[-1:])
        isolation = Gate(case=case.name, name="isolation", error=alone.error, message=alone.message, **apart)
        return [isolation] if self.plan.reference is None else [isolation, self._correctness(case, whole.scores)]

    def judge(self, calls: Sequence[Call]) -> list[Call]:
        """Return the calls of a round with their differences from the reference's answers to the same requests."""
        answers, found = {(call.case, call.number): call.scores for call in calls}, []
        for call in calls:
            against, _ = self.truths.get(_asked(self.plan.case(call.case)), ("", None))
            truth = answers.get((against, call.number))
            if truth is not None and call.scores is not None:
                call = call.model_copy(update=difference(call.scores, truth))
            found.append(call)
        return found

    def _correctness(self, case: Case, scores: Scores) -> Gate:
        if case.target == self.reference:
            self.truths.setdefault(_asked(case), (case.name, scores))
        if _asked(case) not in self.truths:
            message = "The reference has no scores."
            return Gate(case=case.name, name="correctness", error="missing_reference", message=message)
        _, truth = self.truths[_asked(case)]
        return Gate(case=case.name, name="correctness", **difference(scores, truth))


def _asked(case: Case) -> tuple[str, Cache]:
    """Return what requests of the same number are alike by."""
    return case.workload.name, case.cache
