"""Asking targets: whole requests, or item by item."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mis_bench.targets.base import Answer, CallFailed, Layout, Scores, Target
from mis_bench.workload import Workload

Score = Callable[[Workload], Awaitable[Scores]]
"""Returns scores, or raises `CallFailed`."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """A way to ask a target.

    Attributes:
        target: Whom.
        timeout_s: Seconds that a call may take.
        layout: Fields of every request.
        splits: Whether a request is sent for each item, and the query forgotten before each.
    """

    target: Target
    timeout_s: float
    layout: Layout = field(default_factory=dict)
    splits: bool = False

    async def scores(self, workload: Workload) -> Scores:
        """Return the scores of all items; raises `CallFailed`."""
        if not self.splits:
            return (await self._answer(workload)).reply.scores
        answers = await self._one_by_one(workload)
        return np.concatenate([answer.reply.scores for answer in answers])

    async def anew(self, workload: Workload) -> Scores:
        """Return the scores with the query computed again; raises `CallFailed`."""
        await self.target.forget()
        return await self.scores(workload)

    async def milliseconds(self, workload: Workload) -> float:
        """Return how long all items took, the query forgotten before each call, which is not counted."""
        await self.target.forget()
        answers = await self._one_by_one(workload) if self.splits else [await self._answer(workload)]
        return 1e3 * sum(answer.done_s - answer.sent_s for answer in answers)

    async def at_once(self, workloads: Sequence[Workload], callers: int) -> list[Scores]:
        """Return the scores of requests, so many under way at a time."""
        permits = asyncio.Semaphore(callers)

        async def one(workload: Workload) -> Scores:
            async with permits:
                return await self.scores(workload)

        return await asyncio.gather(*map(one, workloads))

    async def _one_by_one(self, workload: Workload) -> list[Answer]:
        answers = []
        for item in workload.items:
            await self.target.forget()
            answers.append(await self._answer(replace(workload, items=(item,))))
        return answers

    async def _answer(self, workload: Workload) -> Answer:
        request = self.target.prepare(workload, self.layout)
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self.target.call(request)
        except TimeoutError:
            raise CallFailed("timeout", f"No answer within {self.timeout_s:g} s.") from None
