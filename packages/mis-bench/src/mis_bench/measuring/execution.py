"""Carrying a plan out: scores first, then warm-ups, then rounds in which all cases take turns."""

import asyncio
import contextlib
import datetime
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mis_bench.manifest import seal
from mis_bench.measuring.demand import Demand
from mis_bench.measuring.gating import Gatekeeper
from mis_bench.measuring.loop import ask_one, drive
from mis_bench.results.folder import PLAN, RECORDS, SUMMARY, append, begin
from mis_bench.results.judging import to_confirm
from mis_bench.results.plan import Case, Phase, Plan
from mis_bench.results.records import Call, Opened, ProductRate, Record, Sent, Window
from mis_bench.results.summary import Measured
from mis_bench.targets.target import CallFailed, Opener, Target, TargetUnavailable
from mis_bench.workload import task_of

ATTEMPTS = 3
"""Warm-ups of a case: one in which something was compiled is followed by another."""

Progress = Callable[[str, float, int], None]
"""Told what is done now, how many windows are over, with the share of the one under way, and how many there will be."""


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
    allow_missing: bool = False,
    derived: Sequence[str] = (),
    on_progress: Progress = lambda *_: None,
) -> Measured:
    """Carry a plan out.

    Args:
        plan: What.
        openers: Its targets by name.
        folder: For the plan, the records, added after every round, and in the end the summary and the manifest.
        allow_missing: Whether to go on without targets that turn out not to run.
        derived: Files that the caller computes from the results and writes beside them.
        on_progress: See `Progress`.

    Raises:
        TargetUnavailable: a target cannot run after all, or none can.
        ArtifactError: the folder holds results already.
        OSError: a file cannot be written.
    """
    begin(folder, plan)
    asyncio.run(_Execution(plan, openers, folder, allow_missing, on_progress).run())
    measured = Measured.read(folder)
    measured.summary.write(folder / SUMMARY)
    seal(folder, plan.preset, (PLAN, RECORDS, SUMMARY), derived=derived)
    return measured


@dataclass(slots=True)
class _Execution:
    """What is under way: the targets of one group, which are open together, and the cases that still take turns."""

    plan: Plan
    openers: Mapping[str, Opener]
    folder: Path
    allow_missing: bool
    on_progress: Progress
    over: int = 0  # windows
    total: int = 0  # windows that will be over in the end, as far as is known
    targets: dict[str, Target] = field(init=False)
    demands: dict[str, Demand] = field(init=False)
    gatekeeper: Gatekeeper = field(init=False)
    reached: dict[str, list[float]] = field(default_factory=dict)  # requests a second of each case, by rounds

    async def run(self) -> None:
        groups = sorted({target.group for target in self.plan.targets})
        self.total = self.plan.repeat * self.plan.rounds * len(self.plan.cases)
        for repetition in range(self.plan.repeat):
            if not any([await self._group(group, repetition) for group in groups]):
                raise TargetUnavailable("None of the targets can run.")

    async def _group(self, group: int, repetition: int) -> bool:
        """Open a group's targets and measure their cases; return whether one could be opened."""
        names = [target.name for target in self.plan.targets if target.group == group]
        cases = [case for case in self.plan.cases if case.target in names]
        if not cases:
            return True
        self.targets = {}
        async with contextlib.AsyncExitStack() as stack:
            for name in names:
                if (target := await self._opened(name)) is not None:
                    stack.push_async_callback(target.close)
                    self.targets[name] = target
            mine = [case for case in cases if case.target in self.targets]
            self.total -= self.plan.rounds * (len(cases) - len(mine))
            self.demands = {case.name: Demand.of(case) for case in mine}
            self.gatekeeper = Gatekeeper(self.plan, self.plan.reference_among(self.targets))
            await self._measure_all(repetition)
        return bool(self.targets)

    async def _opened(self, name: str) -> Target | None:
        self._tell(f"opening {name}")
        target, why = None, None
        try:
            tasks = dict.fromkeys(task_of(case.workload.name) for case in self.plan.cases if case.target == name)
            target = await self.openers[name].open(tuple(tasks))
        except TargetUnavailable as error:
            if not self.allow_missing:
                raise
            why = str(error)
        self._append([Opened(target=name, about=None if target is None else target.about, unavailable=why)])
        return target

    async def _measure_all(self, repetition: int) -> None:
        for case in self.gatekeeper.in_order(demand.case for demand in self.demands.values()):
            self._tell(f"scores of {case.name}")
            gates = await self.gatekeeper.check(self.demands[case.name], self.targets[case.target])
            self._append(gates)
            if gates[0].error is not None:
                self._leave_out(case.name, self.plan.rounds)
        for name in list(self.demands):
            await self._warm_up(name)
        first = repetition * self.plan.rounds + 1
        for turn in range(first, first + self.plan.rounds):
            await self._round("timed", turn, self.demands)
        if self.plan.confirm_rounds and repetition == self.plan.repeat - 1:
            chosen = to_confirm(self.plan, Measured.read(self.folder).summary.rows)
            self.total += self.plan.confirm_rounds * len(chosen)
            for turn in range(first + self.plan.rounds, first + self.plan.rounds + self.plan.confirm_rounds):
                await self._round("confirm", turn, chosen)

    async def _warm_up(self, name: str) -> None:
        for _ in range(ATTEMPTS if self.demands[name].case.warmups else 0):
            window, calls = await self._turn(name, "warmup", 0)
            self._append([*calls, window])
            if not window.compilations or name not in self.demands:
                break

    async def _round(self, phase: Phase, turn: int, names: Iterable[str]) -> None:
        """Let cases take their turns; in every second round in reverse order."""
        order = [name for name in names if name in self.demands][:: 1 if turn % 2 else -1]
        await self._measure_products(turn, [self.demands[name].case for name in order])
        found: list[tuple[Window, list[Call]]] = []
        try:
            for name in order:
                if self._has_rate(name):
                    found.append(await self._turn(name, phase, turn))
                else:
                    self.total -= 1
        finally:  # what ends a round early leaves the windows that are over
            calls = self.gatekeeper.judge([call for _, calls in found for call in calls])
            self._append([*calls, *(window for window, _ in found)])

    async def _measure_products(self, turn: int, cases: Sequence[Case]) -> None:
        """Measure how fast targets multiply whose requests have a limit that follows from it."""
        for name in dict.fromkeys(case.target for case in cases if case.flops is not None):
            self._tell(f"products of {name}")
            rate = await self.targets[name].product_rate()
            if rate is not None:
                self._append([ProductRate(target=name, round=turn, flops_per_s=rate)])

    async def _turn(self, name: str, phase: Phase, turn: int) -> tuple[Window, list[Call]]:
        """Measure a window of a case, which takes no further turns if nothing is answered in it."""
        demand = self.demands[name]
        if demand.case.load.rate_share is not None:
            closed = self.plan.reaching(demand.case).name
            demand = demand.at_rate(demand.case.load.rate_share * float(np.median(self.reached[closed])))
        is_warmup, finished = phase == "warmup", itertools.count(1)

        def on_sent(sent: Sent) -> None:
            if not is_warmup:
                self._tell(name, demand.share(next(finished), sent.done_s))

        self._tell(f"warming up {name}" if is_warmup else name)
        target, timeout_s = self.targets[demand.case.target], self.plan.timeout_s
        window, calls = await measure(demand, target, phase, turn, timeout_s, on_sent=on_sent)
        if not is_warmup:
            self.over += 1
            self._tell(name)
        answered = sum(call.error is None for call in calls)
        if phase == "timed" and answered and window.seconds:
            self.reached.setdefault(name, []).append(answered / window.seconds)
        if not demand.case.must_survive and not answered:
            left = {"warmup": self.plan.rounds, "timed": -turn % self.plan.rounds, "confirm": 0}
            self._leave_out(name, left[phase])
        return window, calls

    def _leave_out(self, name: str, windows: int) -> None:
        """Have a case take no further turns; so many windows of it were still to come."""
        del self.demands[name]
        self.total -= windows

    def _has_rate(self, name: str) -> bool:
        """Whether it is known at which rate requests are to arrive: not before the callers reached one."""
        case = self.demands[name].case
        return case.load.rate_share is None or self.plan.reaching(case).name in self.reached

    def _tell(self, what: str, share: float = 0.0) -> None:
        over = self.over + share
        self.on_progress(what, over, max(math.ceil(over), self.total))

    def _append(self, records: Sequence[Record]) -> None:
        append(self.folder, records)


async def measure(
    demand: Demand,
    target: Target,
    phase: Phase,
    turn: int,
    timeout_s: float,
    *,
    on_sent: Callable[[Sent], None],
) -> tuple[Window, list[Call]]:
    """Make the target forget the queries of a cold case, or know that of a warm one; then send, and count."""
    case, load, forgot = demand.case, demand.case.load, False
    if case.cache == "cold":
        with contextlib.suppress(CallFailed):  # it knows no way, or refused: what it had kept shows in the replies
            await target.forget()
            forgot = True
    else:  # requests of other cases may have driven its queries out
        await drive(target, demand.known(target), max_concurrency=case.queries, timeout_s=timeout_s)
    before, began = await target.counts(), datetime.datetime.now(datetime.UTC)
    sent, seconds = await drive(
        target,
        demand.warmups(target) if phase == "warmup" else demand.window(target, turn),
        max_concurrency=load.max_concurrency,
        timeout_s=timeout_s,
        seconds=None if phase == "warmup" else load.seconds,
        on_sent=on_sent,
    )
    after = await target.counts()
    # A count that fell began anew: the target was started again, and nobody knows what it counted before.
    risen = {name: int(after[name] - before[name]) for name in before.keys() & after if after[name] >= before[name]}
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
        rate=load.rate if load.rate_share else None,
    )
    calls = [Call(case=case.name, phase=phase, round=turn, **dict(each)) for each in sent]
    if case.must_survive and phase == "timed":
        last = await ask_one(target, demand.afterwards(target), timeout_s)
        calls.append(Call(case=case.name, phase="afterwards", round=turn, **dict(last)))
    return window, calls
