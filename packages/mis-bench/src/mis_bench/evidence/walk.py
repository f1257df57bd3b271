"""A plan walked through once more, from its records: what must have happened next, and whether it is there.

This is a second account of `measuring.execution`, which carries plans out. Both have what a plan is, which rows are
confirmed, and nothing else in common.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mis_bench.evidence.recorded import Recorded, RecordedWindow, at
from mis_bench.evidence.windows import window_faults
from mis_bench.results.folder import PLAN, RECORDS
from mis_bench.results.judging import to_confirm
from mis_bench.results.plan import Case, Phase, Plan
from mis_bench.results.records import Call, Record, Results, Window
from mis_bench.results.summary import summarize
from mis_bench.traces import Trace

ATTEMPTS = 3
"""Warm-ups of a case at most."""


def record_faults(plan: Plan, records: Sequence[Record], traces: Mapping[str, Trace]) -> Iterator[str]:
    """Yield where records are not those that a plan promises.

    Args:
        plan: What was to happen.
        records: What happened, one for each line.
        traces: By case, those that can be built here.
    """
    walk = _Walk(plan, records, traces)
    groups = sorted({target.group for target in plan.targets})
    for repetition in range(plan.repeat):
        for group in groups:
            yield from walk.group(group, repetition)
    yield from walk.recorded.left()


def plan_faults(plan: Plan) -> Iterator[str]:
    """Yield where parts of a plan do not fit together."""
    targets = [target.name for target in plan.targets]
    cases = [case.name for case in plan.cases]
    yield from (f"{PLAN}: {name} is planned twice" for name in _twice(targets) + _twice(cases))
    if plan.reference is not None and plan.reference not in targets:
        yield f"{PLAN}: reference is {plan.reference}, which is not a target"
    for number, case in enumerate(plan.cases):
        if case.target not in targets:
            yield f"{PLAN}: cases.{number}.target is {case.target}, which is not a target"
        elif case.load.rate_share is not None:
            try:
                plan.reaching(case)
            except StopIteration:
                yield f"{PLAN}: cases.{number}.load.rate_share is of a load that is not planned"


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


class _Walk:
    """Where the walk is: what was taken of the records, and which cases still take turns."""

    def __init__(self, plan: Plan, records: Sequence[Record], traces: Mapping[str, Trace]) -> None:
        self.plan, self.records, self.traces = plan, records, traces
        self.recorded = Recorded.of(records)
        self.cases = {case.name: case for case in plan.cases}
        self.alive: dict[str, Case] = {}
        self.truths: dict[tuple[str, str], str] = {}  # cases whose scores others are held against
        self.reached: dict[str, list[float]] = {}  # requests a second, by case

    def group(self, group: int, repetition: int) -> Iterator[str]:
        """Walk through the targets that are open together, in one repetition."""
        names = [target.name for target in self.plan.targets if target.group == group]
        cases = [case for case in self.plan.cases if case.target in names]
        if not cases:
            return
        opened = []
        for name in names:
            if not self.recorded.opened[name]:
                yield f"{RECORDS}: {name} was not opened in repetition {repetition + 1} of {self.plan.repeat}"
            elif self.recorded.opened[name].pop(0)[1].about is not None:
                opened.append(name)
        self.alive, self.truths = {case.name: case for case in cases if case.target in opened}, {}
        yield from self._checks(self.plan.reference_among(opened))
        for name in list(self.alive):
            yield from self._warm_up(name)
        rounds = self.plan.rounds
        first = repetition * rounds + 1
        for turn in range(first, first + rounds):
            yield from self._round("timed", turn, list(self.alive))
        if self.plan.confirm_rounds and repetition == self.plan.repeat - 1:
            chosen = self._chosen()
            for turn in range(first + rounds, first + rounds + self.plan.confirm_rounds):
                yield from self._round("confirm", turn, chosen)

    def _checks(self, reference: str | None) -> Iterator[str]:
        """Take the checks of scores, the reference's first."""
        gated = [case for case in self.alive.values() if case.is_gated]
        for case in sorted(gated, key=lambda case: case.target != reference):
            mine = self.recorded.gates[case.name]
            if not mine or mine[0][1].name != "isolation":
                yield f"{RECORDS}: {case.name} has no check of isolation"
                continue
            line, isolation = mine.pop(0)
            failed = isolation.error is not None
            if failed:
                del self.alive[case.name]
            elif isolation.max_abs is None or isolation.mean_abs is None:
                yield f"{at(line)}: the check of isolation of {case.name} has no figures"
            if self.plan.reference is None:
                continue
            if mine and mine[0][1].name == "correctness":
                line, correctness = mine.pop(0)
                if correctness.error is None and (correctness.max_abs is None or correctness.mean_abs is None):
                    yield f"{at(line)}: the check of correctness of {case.name} has no figures"
            elif not failed:
                yield f"{RECORDS}: {case.name} has no check of correctness"
            elif failed:
                continue  # its request was not answered, so there was nothing to compare
            if case.target == reference:
                self.truths.setdefault((case.workload.name, case.cache), case.name)

    def _warm_up(self, name: str) -> Iterator[str]:
        for attempt in range(ATTEMPTS if self.alive[name].warmups else 0):
            mine = self.recorded.windows[name, "warmup", 0]
            if not mine:
                yield f"{RECORDS}: {name} has no warm-up" + (" after one that compiled" if attempt else "")
                return
            found = mine.pop(0)
            yield from self._window(self.alive[name], found, None)
            if not found.window.compilations or name not in self.alive:
                return

    def _round(self, phase: Phase, turn: int, names: Sequence[str]) -> Iterator[str]:
        order = [name for name in names if name in self.alive][:: 1 if turn % 2 else -1]
        yield from self._product_rates(turn, [self.alive[name] for name in order])
        found: list[RecordedWindow] = []
        for name in order:
            case = self.alive[name]
            rate, closed = case.load.rate, None
            if case.load.rate_share is not None:
                closed = self.plan.reaching(case).name
                if closed not in self.reached:
                    continue
                rate = case.load.rate_share * statistics.median(self.reached[closed])
            mine = self.recorded.windows[name, phase, turn]
            if not mine:
                yield f"{RECORDS}: {name} has no window of round {turn}, {phase}"
                del self.alive[name]
                continue
            found.append(mine.pop(0))
            told = found[-1].window.rate
            if closed is None:
                if told is not None:
                    yield f"{at(found[-1].line)}: the rate of {name} is no share of another, but is recorded as {told}"
            elif told is None or not math.isclose(told, rate or 0.0, rel_tol=1e-9):
                yield f"{at(found[-1].line)}: the rate of {name} is {told}, but {closed} makes it {rate}"
            yield from self._window(case, found[-1], told if closed is not None else rate)
        yield from self._differences(found)

    def _window(self, case: Case, found: RecordedWindow, rate: float | None) -> Iterator[str]:
        """Check a window, and note what its case reached, and whether it takes further turns."""
        yield from window_faults(case, found, self.traces.get(case.name), rate)
        window: Window = found.window
        if window.phase == "timed" and found.answered and window.seconds:
            self.reached.setdefault(case.name, []).append(found.answered / window.seconds)
        if not case.must_survive:
            if not found.answered:
                del self.alive[case.name]
        elif window.phase == "timed":
            afterwards = self.recorded.afterwards[case.name, window.round]
            if afterwards:
                afterwards.pop(0)
            else:
                yield f"{RECORDS}: {case.name} was asked nothing after round {window.round}"

    def _differences(self, windows: Iterable[RecordedWindow]) -> Iterator[str]:
        """Hold what requests of a round say of the reference's scores against what they can say."""
        calls: list[tuple[int, Call]] = [each for window in windows for each in window.calls]
        answered = {(call.case, call.number) for _, call in calls if call.error is None}
        for line, call in calls:
            case = self.cases[call.case]
            truth = self.truths.get((case.workload.name, case.cache))
            is_compared = call.error is None and (truth, call.number) in answered
            if any((figure is not None) != is_compared for figure in (call.max_abs, call.mean_abs)):
                told = "tells no difference from" if is_compared else "tells of a difference, but was not answered by"
                yield f"{at(line)}: request {call.number} of {call.case} {told} {truth or 'a reference'}"
                return

    def _product_rates(self, turn: int, cases: Sequence[Case]) -> Iterator[str]:
        """Take the product rates of a round: of a target there is one in each, or none at all."""
        for target in dict.fromkeys(case.target for case in cases if case.flops is not None):
            mine = self.recorded.rates.get(target)
            if mine is None:
                continue
            if mine and mine[0][1] == turn:
                mine.pop(0)
            else:
                yield f"{RECORDS}: {target} has no product rate in round {turn}"

    def _chosen(self) -> list[str]:
        """Return the cases that were confirmed, by what was recorded until then."""
        before = [each for each in self.records if not (isinstance(each, Call | Window) and each.phase == "confirm")]
        return to_confirm(self.plan, summarize(Results.of_records(self.plan, before)).rows)
