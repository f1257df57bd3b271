"""Carrying a plan out: scores first, then warm-ups, then rounds in which all cases take turns."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from mis_bench.demand import Demand
from mis_bench.gating import Gatekeeper, reference_of
from mis_bench.judging import to_confirm
from mis_bench.records import Case, Opened, Phase, Plan, Record, Results, Window, append, read_results
from mis_bench.summary import summarize
from mis_bench.targets.base import Opener, Target, TargetUnavailable
from mis_bench.windows import Measured, measure
from mis_bench.workloads.traces import Trace

ATTEMPTS = 3
"""Warm-ups of a case: one in which something was compiled is followed by another."""

Progress = Callable[[str, int, int], None]
"""Told what is done now, how many windows are over, and how many there will be."""


async def check(openers: Mapping[str, Opener]) -> dict[str, str]:
    """Return why targets cannot run, by name; nothing is loaded for it."""
    found = {}
    for name, opener in openers.items():
        try:
            await opener.check()
        except TargetUnavailable as error:
            found[name] = str(error)
    return found


def execute(
    plan: Plan,
    openers: Mapping[str, Opener],
    folder: Path,
    *,
    traces: Mapping[str, Trace] | None = None,
    allow_missing: bool = False,
    on_progress: Progress = lambda *_: None,
) -> Results:
    """Carry a plan out, from where its folder's records end.

    Args:
        plan: What; `records.begin` has written it.
        openers: Its targets by name.
        folder: Where records are added after every round.
        traces: Those that cases name.
        allow_missing: Whether to go on without targets that turn out not to run.
        on_progress: See `Progress`.

    Raises:
        TargetUnavailable: a target cannot run after all, or none can.
        ArtifactError: the folder holds something else.
        OSError: a file cannot be written.
    """
    asyncio.run(_Execution(plan, openers, folder, traces or {}, allow_missing, on_progress).run())
    return read_results(folder)


@dataclass(slots=True)
class _Execution:
    plan: Plan
    openers: Mapping[str, Opener]
    folder: Path
    traces: Mapping[str, Trace]
    allow_missing: bool
    on_progress: Progress
    done: set[tuple[str, Phase, int]] = field(default_factory=set)  # windows, those of earlier sittings as well

    async def run(self) -> None:
        self.done = {(each.case, each.phase, each.round) for each in read_results(self.folder).windows}
        for repetition in range(self.plan.repeat):
            groups = sorted({target.group for target in self.plan.targets})
            if not any([await self._group(group, repetition) for group in groups]):
                raise TargetUnavailable("None of the targets can run.")

    async def _group(self, group: int, repetition: int) -> bool:
        """Open a group's targets and measure their cases; return whether one could be opened."""
        names = [target.name for target in self.plan.targets if target.group == group]
        cases = [case for case in self.plan.cases if case.target in names and case.skip is None]
        if not self._is_missing(cases, repetition):
            return True
        async with AsyncExitStack() as stack:
            targets: dict[str, Target] = {}
            for name in names:
                if (target := await self._open(name, repetition)) is not None:
                    stack.push_async_callback(target.close)
                    targets[name] = target
            sitting = _Sitting(self, targets, [case for case in cases if case.target in targets])
            await sitting.check_scores(repetition)
            await sitting.warm_up()
            for turn in self.plan.turns(repetition):
                await sitting.round("timed", turn, [case.name for case in sitting.cases])
            if self.plan.confirm_rounds and repetition == self.plan.repeat - 1:
                chosen = to_confirm(self.plan, summarize(read_results(self.folder)).rows)
                for turn in self.plan.confirm_turns:
                    await sitting.round("confirm", turn, chosen)
        return bool(targets)

    def _is_missing(self, cases: Sequence[Case], repetition: int) -> bool:
        """Whether something of a repetition was not measured yet."""
        if self.plan.confirm_rounds and not any(phase == "confirm" for _, phase, _ in self.done):
            return True
        return any(
            (case.name, "timed", turn) not in self.done for case in cases for turn in self.plan.turns(repetition)
        )

    async def _open(self, name: str, repetition: int) -> Target | None:
        self.tell(f"opening {name}")
        began, target, why = time.perf_counter(), None, None
        try:
            target = await self.openers[name].open()
        except TargetUnavailable as error:
            if not self.allow_missing:
                raise
            why = str(error)
        seconds, about = time.perf_counter() - began, None if target is None else target.about
        self.append([Opened(target=name, repetition=repetition, seconds=seconds, about=about, unavailable=why)])
        return target

    def tell(self, what: str) -> None:
        """Report progress."""
        over = sum(phase in ("timed", "confirm") for _, phase, _ in self.done)
        total = self.plan.repeat * self.plan.rounds * sum(case.skip is None for case in self.plan.cases)
        self.on_progress(what, over, max(over, total))

    def append(self, records: Sequence[Record]) -> None:
        """Write records."""
        append(self.folder, records)
        self.done |= {(each.case, each.phase, each.round) for each in records if isinstance(each, Window)}


class _Sitting:
    """Targets that are open together, and their cases. A case that is not answered at all is given up."""

    def __init__(self, execution: _Execution, targets: Mapping[str, Target], cases: Sequence[Case]) -> None:
        self._execution, self._plan, self._targets = execution, execution.plan, targets
        self._gatekeeper = Gatekeeper(execution.plan, reference_of(execution.plan, targets))
        self._demands = {case.name: Demand.of(case, execution.traces, execution.plan.seed) for case in cases}
        self._given_up: set[str] = set()

    @property
    def cases(self) -> list[Case]:
        return [demand.case for demand in self._demands.values()]

    async def check_scores(self, repetition: int) -> None:
        for case in self._gatekeeper.in_order(self.cases):
            self._execution.tell(f"scores of {case.name}")
            gates = await self._gatekeeper.check(self._demands[case.name], self._targets[case.target], repetition)
            self._execution.append(gates)
            if gates[0].error is not None:
                self._given_up.add(case.name)

    async def warm_up(self) -> None:
        for name, demand in self._demands.items():
            for _ in range(ATTEMPTS):
                if name in self._given_up or not demand.case.warmups:
                    break
                self._execution.tell(f"warming up {name}")
                measured = await self._measured(demand, "warmup", 0)
                self._execution.append([*measured.calls, measured.window])
                if not measured.window.compilations:
                    break

    async def round(self, phase: Phase, turn: int, names: Iterable[str]) -> None:
        """Let cases take their turns; in every second round in reverse order."""
        missing = [name for name in names if (name, phase, turn) not in self._execution.done]
        found: list[Measured] = []
        for name in missing if turn % 2 else reversed(missing):
            if name not in self._given_up:
                self._execution.tell(name)
                found.append(await self._measured(self._demands[name], phase, turn))
        scores = {(each.window.case, number): values for each in found for number, values in each.scores.items()}
        for each in found:
            self._execution.append([*self._gatekeeper.judge(each.calls, scores), each.window])

    async def _measured(self, demand: Demand, phase: Phase, turn: int) -> Measured:
        target = self._targets[demand.case.target]
        requests = demand.warmups(target) if phase == "warmup" else demand.window(target, turn)
        measured = await measure(demand, target, requests, phase, turn, self._plan.timeout_s)
        if measured.failed and not demand.case.must_survive:
            self._given_up.add(demand.case.name)
        return measured
