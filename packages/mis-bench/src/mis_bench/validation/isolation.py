"""Isolation: what happens to other items, or to other requests, leaves every bit of an item's scores alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mis_bench.targets.base import CallFailed, Scores
from mis_bench.validation.ask import Scorer
from mis_bench.validation.cases import with_items
from mis_bench.validation.gates import KINDS, MUTATED, Figure
from mis_bench.workload import Workload

_APPENDED = 13  # the token that the runbook appends
_PRECEDING = (0, 1, 5, 10, 20)
_CALLERS = 4
_SEED = 20260207


@dataclass(frozen=True, slots=True)
class Variant:
    """A request in which something changed, and which scores may not.

    Attributes:
        workload: The changed request.
        kept: Pairs of an item's place before and after.
        changed: Places of items that changed where they are, so that their scores must change as well.
        forgets: Whether the target forgets the query first.
    """

    workload: Workload
    kept: Sequence[tuple[int, int]]
    changed: Sequence[int] = ()
    forgets: bool = False


def repetition(case: Workload) -> Iterator[Variant]:
    """The same again, with the query cached and anew."""
    same = [(place, place) for place in range(case.num_items)]
    yield Variant(case, same)
    yield Variant(case, same, forgets=True)


def same_length_mutation(case: Workload) -> Iterator[Variant]:
    """One token of an item changes: of the first, the second, the last; then of all items but the last."""
    for places in [[0], [1], [case.num_items - 1], list(range(case.num_items - 1))]:
        yield _changed(case, {place: _mutated(case, place) for place in places})


def changed_length_mutation(case: Workload) -> Iterator[Variant]:
    """Items get longer or shorter: a token more, many more, all but one gone; then all items but the last."""
    items, last = case.items, case.num_items - 1
    longest = int(np.argmax([len(item) for item in items]))
    yield _changed(case, {1: _longer(items[1], 1)})
    yield _changed(case, {0: _longer(items[0], 70)})
    yield _changed(case, {longest: np.asarray(items[longest][:1])})
    yield _changed(case, {place: _longer(items[place], 1 + place % 5) for place in range(last)})


def reversed_order(case: Workload) -> Iterator[Variant]:
    """The last item comes first."""
    yield _reordered(case, range(case.num_items)[::-1])


def permutation(case: Workload) -> Iterator[Variant]:
    """Items in two random orders."""
    random = np.random.default_rng(_SEED)
    for _ in range(2):
        yield _reordered(case, random.permutation(case.num_items).tolist())


def dropped_items(case: Workload) -> Iterator[Variant]:
    """Without the first item; without every other one; one item alone."""
    yield _reordered(case, range(1, case.num_items))
    yield _reordered(case, range(0, case.num_items, 2))
    yield _reordered(case, [case.num_items // 2])


def duplicated_items(case: Workload) -> Iterator[Variant]:
    """The first item twice; then every item twice."""
    yield _reordered(case, [0, *range(case.num_items)])
    yield _reordered(case, [*range(case.num_items)] * 2)


def preceding_items(case: Workload) -> Iterator[Variant]:
    """The last item behind 0, 1, 5, 10 and 20 others."""
    last = case.num_items - 1
    rounds = range(-(-_PRECEDING[-1] // last))
    others = [_longer(case.items[place], turn) for turn in rounds for place in range(last)]
    for count in _PRECEDING:
        yield Variant(with_items(case, [*others[:count], case.items[last]]), [(last, count)])


_VARIANTS: dict[str, Callable[[Workload], Iterator[Variant]]] = {
    variants.__name__: variants
    for variants in (
        repetition, same_length_mutation, changed_length_mutation, reversed_order, permutation, dropped_items,
        duplicated_items, preceding_items,
    )
}  # fmt: skip
assert {*_VARIANTS, "other_requests"} == set(KINDS), "every kind has a gate"


@dataclass(slots=True)
class _Extreme:
    """The largest, or least, difference so far, and where it was."""

    value: float
    where: str = ""


async def isolation(scorer: Scorer, cases: Sequence[Workload], on_gate: Callable[[str], None]) -> list[Figure]:
    """Measure isolation, in each way to disturb; then whether a changed item's own score does change.

    Args:
        scorer: Whom to ask.
        cases: Requests of at least two items.
        on_gate: Told the name of each gate before it is measured.
    """
    found, least, failure = [], _Extreme(np.inf), ""
    before: dict[int, Scores] = {}
    for kind in KINDS:
        on_gate(name := f"isolation.{kind}_max_abs_diff")
        worst = _Extreme(0.0)
        try:
            for number, case in enumerate(cases):
                if number not in before:
                    before[number] = await scorer.anew(case)
                if kind == "other_requests":
                    await _among_others(scorer, case, before[number], worst)
                    continue
                for variant in _VARIANTS[kind](case):
                    ask = scorer.anew if variant.forgets else scorer.scores
                    _note(case, variant, before[number], await ask(variant.workload), worst, least)
        except CallFailed as error:
            failure = str(error)
            found.append(Figure(name=name, measured=None, detail=failure))
            continue
        found.append(Figure(name=name, measured=worst.value, detail=worst.where))
    measured = None if np.isinf(least.value) else least.value
    return [*found, Figure(name=MUTATED, measured=measured, detail=least.where or failure)]


def _note(case: Workload, variant: Variant, before: Scores, after: Scores, worst: _Extreme, least: _Extreme) -> None:
    difference, place = _difference(before, after, variant.kept)
    if difference > worst.value:
        worst.value, worst.where = difference, f"{case.name}, item {place}"
    for place in variant.changed:
        own = float(np.abs(after[place] - before[place]).max())
        if own < least.value:
            least.value, least.where = own, f"{case.name}, item {place}"


async def _among_others(scorer: Scorer, case: Workload, before: Scores, worst: _Extreme) -> None:
    """Repeat the request between others of its query, and of other queries."""
    await scorer.target.forget()
    others = [variant.workload for variant in (*changed_length_mutation(case), *dropped_items(case))]
    others += [_reversed_query(other) for other in others]
    mixed = [each for other in others for each in (other, case)]
    for after in (await scorer.at_once(mixed, _CALLERS))[1::2]:
        if (difference := float(np.abs(after - before).max())) > worst.value:
            worst.value, worst.where = difference, f"{case.name}, {_CALLERS} callers"


def _difference(before: Scores, after: Scores, kept: Sequence[tuple[int, int]]) -> tuple[float, int]:
    """Return the largest difference of items that were left alone, and the item's place before."""
    places, now = (list(each) for each in zip(*kept, strict=True))
    differences = np.abs(after[now] - before[places]).max(axis=1)
    row = int(np.argmax(differences))
    return float(differences[row]), places[row]


def _changed(case: Workload, new: dict[int, np.ndarray]) -> Variant:
    items = [new.get(place, item) for place, item in enumerate(case.items)]
    changed = [place for place in new if len(new[place]) == len(case.items[place])]
    return Variant(with_items(case, items), [(p, p) for p in range(case.num_items) if p not in new], changed)


def _reordered(case: Workload, places: Sequence[int]) -> Variant:
    return Variant(
        with_items(case, [case.items[place] for place in places]), [(old, new) for new, old in enumerate(places)]
    )


def _longer(item: np.ndarray | str, by: int) -> np.ndarray:
    return np.append(np.asarray(item), np.full(by, _APPENDED, np.int32))


def _mutated(case: Workload, place: int) -> np.ndarray:
    """The item with the token in its middle one up, or down if it is odd: vocabularies of even size hold both."""
    item = np.array(case.items[place])
    item[len(item) // 2] ^= 1
    return item


def _reversed_query(workload: Workload) -> Workload:
    return replace(workload, query=np.asarray(workload.query)[::-1].copy())
