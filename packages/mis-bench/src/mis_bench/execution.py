"""Carrying a plan out: scores first, then warm-ups, then rounds in which all cases take turns."""

import asyncio
import contextlib
import datetime
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mis_bench.demand import GATED, Demand
from mis_bench.gating import Gatekeeper
from mis_bench.judging import to_confirm
from mis_bench.loop import ask_one, drive
from mis_bench.records import (
    SUMMARY,
    Call,
    Case,
    Opened,
    Phase,
    Plan,
    Record,
    Results,
    Window,
    append,
    begin,
    read_results,
)  # fmt: skip
from mis_bench.summary import summarize
from mis_bench.targets.base import CallFailed, Opener, Target, TargetUnavailable
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
    """Carry a plan out.

    Args:
        plan: What.
        openers: Its targets by name.
        folder: For the plan, the records, which are added after every round, and in the end the summary.
        traces: Those that cases name.
        allow_missing: Whether to go on without targets that turn out not to run.
        on_progress: See `Progress`.

    Raises:
        TargetUnavailable: a target cannot run after all, or none can.
        ArtifactError: the folder holds results already.
        OSError: a file cannot be written.
    """
    begin(folder, plan)
    asyncio.run(_Execution(plan, openers, folder, traces or {}, allow_missing, on_progress).run())
    results = read_results(folder)
    summarize(results).write(folder / SUMMARY)
    return results


@dataclass(slots=True)
class _Execution:
    plan: Plan
    openers: Mapping[str, Opener]
    folder: Path
    traces: Mapping[str, Trace]
    allow_missing: bool
    on_progress: Progress
    over: int = 0  # windows

    async def run(self) -> None:
        for repetition in range(self.plan.repeat):
            groups = sorted({target.group for target in self.plan.targets})
            if not any([await self._group(group, repetition) for group in groups]):
                raise TargetUnavailable("None of the targets can run.")

    async def _group(self, group: int, repetition: int) -> bool:
        """Open a group's targets and measure their cases; return whether one could be opened."""
        names = [target.name for target in self.plan.targets if target.group == group]
        cases = [case for case in self.plan.cases if case.target in names and case.skip is None]
        if not cases:
            return True
        async with contextlib.AsyncExitStack() as stack:
            targets: dict[str, Target] = {}
            for name in names:
                if (target := await self._open(name, repetition)) is not None:
                    stack.push_async_callback(target.close)
                    targets[name] = target
            sitting = _Sitting(self, targets, [case for case in cases if case.target in targets])
            await sitting.check_scores(repetition)
            await sitting.warm_up()
            first = repetition * self.plan.rounds + 1
            for turn in range(first, first + self.plan.rounds):
                await sitting.round("timed", turn)
            if self.plan.confirm_rounds and repetition == self.plan.repeat - 1:
                chosen = to_confirm(self.plan, summarize(read_results(self.folder)).rows)
                for turn in range(first + self.plan.rounds, first + self.plan.rounds + self.plan.confirm_rounds):
                    await sitting.round("confirm", turn, chosen)
        return bool(targets)

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
        total = self.plan.repeat * self.plan.rounds * sum(case.skip is None for case in self.plan.cases)
        self.on_progress(what, self.over, max(self.over, total))

    def append(self, records: Sequence[Record]) -> None:
        """Write records."""
        append(self.folder, records)
        self.over += sum(isinstance(record, Window) and record.phase != "warmup" for record in records)


class _Sitting:
    """Targets that are open together, and their cases. A case that is not answered at all is given up."""

    def __init__(self, execution: _Execution, targets: Mapping[str, Target], cases: Sequence[Case]) -> None:
        self._execution, self._plan, self._targets = execution, execution.plan, targets
        self._gatekeeper = Gatekeeper(execution.plan, execution.plan.reference_among(targets))
        self._demands = {case.name: Demand.of(case, execution.traces, execution.plan.seed) for case in cases}
        self._given_up: set[str] = set()

    async def check_scores(self, repetition: int) -> None:
        for case in self._gatekeeper.in_order(demand.case for demand in self._demands.values()):
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
                window, calls = await self._measured(name, "warmup", 0)
                self._execution.append([*calls, window])
                if not window.compilations:
                    break

    async def round(self, phase: Phase, turn: int, names: Iterable[str] | None = None) -> None:
        """Let cases take their turns, all or some; in every second round in reverse order."""
        order = list(self._demands if names is None else names)[:: 1 if turn % 2 else -1]
        found = [await self._measured(name, phase, turn) for name in order if name not in self._given_up]
        calls = self._gatekeeper.judge([call for _, calls in found for call in calls])
        self._execution.append([*calls, *(window for window, _ in found)])

    async def _measured(self, name: str, phase: Phase, turn: int) -> tuple[Window, list[Call]]:
        demand = self._demands[name]
        self._execution.tell(f"warming up {name}" if phase == "warmup" else name)
        window, calls = await measure(demand, self._targets[demand.case.target], phase, turn, self._plan.timeout_s)
        if not demand.case.must_survive and all(call.error is not None for call in calls):
            self._given_up.add(name)
        return window, calls


async def measure(
    demand: Demand, target: Target, phase: Phase, turn: int, timeout_s: float
) -> tuple[Window, list[Call]]:
    """Make the target forget the queries of a cold case, or know that of a warm one; then send, and count."""
    case, load, forgot = demand.case, demand.case.load, False
    if case.cache == "cold":
        with contextlib.suppress(CallFailed):  # it knows no way, or refused: what it had kept shows in the replies
            await target.forget()
            forgot = True
    else:  # requests of other cases may have driven its query out
        await ask_one(target, demand.encoded(target, GATED, demand.numbered(GATED)), timeout_s)
    before, began = await target.counts(), datetime.datetime.now(datetime.UTC)
    sent, seconds = await drive(
        target,
        demand.warmups(target) if phase == "warmup" else demand.window(target, turn),
        max_concurrency=load.max_concurrency,
        timeout_s=timeout_s,
        seconds=None if phase == "warmup" else load.seconds,
    )
    after = await target.counts()
    # A count that fell began anew: the target was started again, and nobody knows what it counted before.
    risen = {name: int(after[name] - before[name]) for name in before.keys() & after if after[name] >= before[name]}
    told = {name: int(value) for name, value in after.items()}
    window = Window(
        case=case.name,
        phase=phase,
        round=turn,
        began=began,
        seconds=seconds,
        calls=len(sent),
        forgot=forgot,
        compilations=risen.get("compilations"),
        steps=risen.get("steps"),
        memory_bytes=told.get("memory_bytes"),
        device_memory_bytes=told.get("device_memory_bytes"),
    )
    calls = [Call(case=case.name, phase=phase, round=turn, **dict(each)) for each in sent]
    if case.must_survive and phase == "timed":
        last = await ask_one(target, demand.afterwards(target), timeout_s)
        calls.append(Call(case=case.name, phase="afterwards", round=turn, **dict(last)))
    return window, calls
