"""Isolation: what happens to other items, or to other requests, leaves every bit of an item's scores alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mis_bench.targets.target import CallFailed, Scores
from mis_bench.validation.cases import CaseScorer
from mis_bench.validation.gates import ISOLATION, GatedFigure
from mis_bench.workload import Workload

_APPENDED = 13  # the token that the runbook appends
_PRECEDING = (0, 1, 5, 10, 20)
_CALLERS = 4
_SEED = 20260207


KINDS = (
    "repetition", "same_length_mutation", "changed_length_mutation", "reversed_order", "permutation", "dropped_items",
    "duplicated_items", "preceding_items", "other_requests",
)  # fmt: skip
"""What may happen around an item that leaves its score alone."""


class Variant(NamedTuple):
    """A request in which something changed.

    Attributes:
        workload: The changed request.
        kept: Places, before and after, of items that were left alone.
        mutated: Places of items that changed where they are, so that their scores must change as well.
        forgets: Whether the target forgets the query first.
    """

    workload: Workload
    kept: Sequence[tuple[int, int]]
    mutated: Sequence[int] = ()
    forgets: bool = False


class _Moved(NamedTuple):
    """How far an item's score moved."""

    by: float
    where: str


def variants(case: Workload) -> dict[str, list[Variant]]:
    """Return what may happen to a request of at least two items of token ids, by kind."""
    items, indices, last = [np.asarray(item) for item in case.items], range(case.num_items), case.num_items - 1
    longest = max(indices, key=lambda index: len(items[index]))
    random = np.random.default_rng(_SEED)
    same = Variant(case, [(index, index) for index in indices])

    def reordered(*order: int) -> Variant:
        kept = [(old, new) for new, old in enumerate(order)]
        return Variant(replace(case, items=tuple(items[index] for index in order)), kept)

    def changed(new: Mapping[int, np.ndarray]) -> Variant:
        workload = replace(case, items=tuple(new.get(index, items[index]) for index in indices))
        return Variant(workload, [(index, index) for index in indices if index not in new])

    def mutated(*which: int) -> Variant:
        return changed({index: _mutated(items[index]) for index in which})._replace(mutated=which)

    def longer(by: Mapping[int, int]) -> Variant:
        return changed({index: _longer(items[index], count) for index, count in by.items()})

    def preceded(count: int) -> Variant:
        others = [_longer(items[number % last], number // last) for number in range(count)]
        return Variant(replace(case, items=(*others, items[last])), [(last, count)])

    return {
        "repetition": [same, same, same._replace(forgets=True)],  # the second time the query is surely cached
        "same_length_mutation": [mutated(0), mutated(1), mutated(last), mutated(*indices[:-1])],
        "changed_length_mutation": [
            longer({1: 1}), longer({0: 70}), changed({longest: items[longest][:1]}),
            longer({index: 1 + index % 5 for index in indices[:-1]}),
        ],
        "reversed_order": [reordered(*indices[::-1])],
        "permutation": [reordered(*random.permutation(case.num_items).tolist()) for _ in range(2)],
        "dropped_items": [reordered(*indices[1:]), reordered(*indices[::2]), reordered(case.num_items // 2)],
        "duplicated_items": [reordered(0, *indices), reordered(*indices, *indices)],
        "preceding_items": [preceded(count) for count in _PRECEDING],
    }  # fmt: skip


async def isolation(
    scorer: CaseScorer, cases: Sequence[Workload], on_gate: Callable[[str, Sequence[GatedFigure]], None]
) -> list[GatedFigure]:
    """Measure isolation, in each way to disturb, and whether a changed item's own score does change.

    A scorer that overlooks changes proves nothing by keeping scores.

    Args:
        scorer: Whom to ask.
        cases: Requests of at least two items.
        on_gate: Told the name of each gate before it is measured, and those that were.
    """
    gates: list[GatedFigure] = []
    before: list[Scores] = []
    mutated: list[_Moved] = []
    for kind in KINDS:
        on_gate(name := f"isolation.{kind}_max_abs_diff", gates)
        kept: list[_Moved] = []
        try:
            before = before or [(await scorer.ask(case, anew=True)).scores for case in cases]
            for case, scores in zip(cases, before, strict=True):
                if kind == "other_requests":
                    kept += await _among_others(scorer, case, scores)
                    continue
                for variant in variants(case)[kind]:
                    after = (await scorer.ask(variant.workload, anew=variant.forgets)).scores
                    kept += [_moved(case, old, scores[old], after[new]) for old, new in variant.kept]
                    mutated += [_moved(case, index, scores[index], after[index]) for index in variant.mutated]
            most, where = max(kept)
        except CallFailed as error:
            most, where = None, str(error)
        gates.append(GatedFigure(name=name, threshold=ISOLATION, measured=most, detail=where if most != 0 else ""))
    least, where = min(mutated, default=(None, "no changed item was scored"))
    name = "sensitivity.mutated_item_min_abs_diff"
    return [*gates, GatedFigure(name=name, rule="above", threshold=0.0, measured=least, detail=where)]


async def _among_others(scorer: CaseScorer, case: Workload, before: Scores) -> list[_Moved]:
    """Repeat the request between others of its query, and of other queries."""
    await scorer.target.forget()
    possible = variants(case)
    others = [each.workload for kind in ("changed_length_mutation", "dropped_items") for each in possible[kind]]
    others += [replace(other, query=np.asarray(other.query)[::-1].copy()) for other in others]
    answers = await scorer.at_once([each for other in others for each in (other, case)], _CALLERS)
    return [
        _Moved(float(np.abs(each.scores - before).max()), f"{case.name}, {_CALLERS} callers") for each in answers[1::2]
    ]


def _moved(case: Workload, index: int, before: Scores, after: Scores) -> _Moved:
    return _Moved(float(np.abs(after - before).max()), f"{case.name}, item {index}")


def _longer(item: np.ndarray, by: int) -> np.ndarray:
    return np.append(item, np.full(by, _APPENDED, np.int32))


def _mutated(item: np.ndarray) -> np.ndarray:
    """The item with the token in its middle one up, or down if it is odd: vocabularies of even size hold both."""
    item = item.copy()
    item[len(item) // 2] ^= 1
    return item
