"""Targets without a model, time that only they and waiting move, and what a command came to."""

import asyncio
import dataclasses
import selectors
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from mis_bench.results.folder import read_results
from mis_bench.results.records import Results
from mis_bench.results.summary import Summary, summarize
from mis_bench.targets.spec import TargetSpec
from mis_bench.targets.target import About, CallFailed, Layout, Reply, TargetReply, TargetUnavailable
from mis_bench.workload import Task, Workload

CALL_S = 0.01
"""What a call takes, unless a test says otherwise."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while everybody waits, and then at once."""

    def __init__(self, clock: "Clock") -> None:
        super().__init__(_Skipping(clock))
        self._clock_of_test = clock

    def time(self) -> float:
        return self._clock_of_test.seconds


class _Skipping(selectors.DefaultSelector):
    def __init__(self, clock: "Clock") -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout:
            self._clock.seconds += timeout
        return super().select(0)


class Clock:
    """Seconds of a virtual loop."""

    def __init__(self) -> None:
        self.seconds = 0.0


def virtual(patch: pytest.MonkeyPatch) -> Clock:
    """Have the measuring loop and `asyncio.run` go by a clock that this returns."""
    found = Clock()
    patch.setattr("mis_bench.measuring.loop.time", SimpleNamespace(perf_counter=lambda: found.seconds))

    def run(main: Any) -> Any:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(found)) as runner:
            return runner.run(main)

    patch.setattr(asyncio, "run", run)
    return found


class FakeTarget:
    """Answers after a while, with scores that depend on query and item alone; what goes wrong is up to a test.

    Attributes:
        spec: As it was asked for.
        sent: Workloads asked so far, in order.
        prepared: Number of requests that were encoded.
        events: `prepare`, `call`, `forget` as they came.
        compilations: What it says of those.
        cached_tokens: What its replies tell.
        seconds: What a call takes.
        before: Called with the number of a call and its workload before it is answered: to fail, or to count.
        scores: Makes the answer.
        flops_per_s: What it says of its products.
    """

    def __init__(self, spec: TargetSpec, clock: Clock, *, forgets: bool) -> None:
        self.spec, self._clock, self.forgets = spec, clock, forgets
        self.sent: list[Workload] = []
        self.layouts: list[Layout] = []
        self.events: list[str] = []
        self.compilations = 0
        self.cached_tokens: int | None = 0
        self.under_way = self.most_at_once = 0
        self.is_closed = False
        self.seconds: Callable[[Workload], float] = lambda _workload: CALL_S
        self.before: Callable[[int, Workload], object] = lambda _number, _workload: None
        self.scores: Callable[[Workload], np.ndarray] = plain_scores
        self.flops_per_s: float | None = None

    @property
    def about(self) -> About:
        return About(name=self.spec.alias, backend="fake", model="none", dtype="bfloat16", versions={"fake": "1.0"})

    def prepare(self, workload: Workload, layout: Layout = {}) -> Workload:  # noqa: B006 - nobody changes it
        self.events.append("prepare")
        self.layouts.append(layout)
        return workload

    async def call(self, workload: Workload) -> TargetReply:
        self.events.append("call")
        number = len(self.sent)
        self.sent.append(workload)
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        began = self._clock.seconds
        try:
            await asyncio.sleep(self.seconds(workload))
            self.before(number, workload)
            return TargetReply(
                Reply(self.scores(workload), {"device": 0.1}, self.cached_tokens), began, self._clock.seconds
            )
        finally:
            self.under_way -= 1

    async def forget(self) -> None:
        if not self.forgets:
            raise CallFailed("rejected", "It cannot clear its prefix cache.")
        self.events.append("forget")

    async def counts(self) -> dict[str, float]:
        return {"compilations": float(self.compilations), "steps": float(len(self.sent)), "memory_bytes": 2.0**20}

    async def product_rate(self) -> float | None:
        return self.flops_per_s

    async def close(self) -> None:
        self.is_closed = True


def plain_scores(workload: Workload) -> np.ndarray:
    """Scores of `[items, labels]`, of the query and each item alone."""
    labels = len(workload.label_token_ids)
    query = sum(map(int, workload.query)) % 89 / 100
    first = np.array([sum(map(int, item)) % 97 / 100 for item in workload.items]) * (1 - query)
    return np.repeat(first[:, None], labels, 1) / labels


@dataclasses.dataclass
class Fakes:
    """Targets that commands opened, and how to spoil them.

    Attributes:
        clock: Of their calls.
        opened: In order.
        prepare: Called with every target before it is handed out.
        refuse: Returns why a target cannot run, or None; asked before anything is opened.
        refuse_late: The same, asked when it is opened.
        forgets: Whether all targets know how.
    """

    clock: Clock
    opened: list[FakeTarget] = dataclasses.field(default_factory=list)
    prepare: Callable[[FakeTarget], object] = lambda _target: None
    refuse: Callable[[TargetSpec], str | None] = lambda _spec: None
    refuse_late: Callable[[TargetSpec], str | None] = lambda _spec: None
    forgets: bool = True

    def opener(self, spec: TargetSpec, *, model: Path | None = None) -> "FakeOpener":
        return FakeOpener(self, spec)


@dataclasses.dataclass
class FakeOpener:
    """Opens a fake."""

    fakes: Fakes
    spec: TargetSpec

    @property
    def forgets(self) -> bool:
        return self.fakes.forgets

    async def check(self) -> None:
        if (why := self.fakes.refuse(self.spec)) is not None:
            raise TargetUnavailable(why)

    async def open(self, tasks: Collection[Task] = ("score",)) -> FakeTarget:
        if (why := self.fakes.refuse_late(self.spec)) is not None:
            raise TargetUnavailable(why)
        target = FakeTarget(self.spec, self.fakes.clock, forgets=self.fakes.forgets)
        self.fakes.prepare(target)
        self.fakes.opened.append(target)
        return target


@dataclasses.dataclass
class Done:
    """What a command came to."""

    result: Result
    folder: Path

    @property
    def status(self) -> int:
        return self.result.exit_code

    @property
    def said(self) -> str:
        return " ".join(self.result.output.split())

    @property
    def results(self) -> Results:
        return read_results(self.folder)

    @property
    def summary(self) -> Summary:
        return summarize(self.results)


def options_of(targets: Sequence[str]) -> list[str]:
    """`--target` for each."""
    return [part for target in targets for part in ("--target", target)]


def by_alias(fakes: Fakes) -> Mapping[str, FakeTarget]:
    """The target of each alias that was opened last."""
    return {target.spec.alias: target for target in fakes.opened}
