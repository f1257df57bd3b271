"""A large request and many callers of one item beside each other, for `stall.py --callers`.

An item has 15 tokens, a query 60; every request has a query of its own. First the large request is alone, and 500
small ones come at once without it. Then 500 come at once while the large one is under way; and once more the large
one, while 500 callers ask again as soon as they are answered. What each took is printed.
"""

import asyncio
import itertools
import random
import sys
import time
from pathlib import Path

import httpx
import numpy as np

from mis_testing.checkpoint import tiny_checkpoint
from mis_testing.published import SHAPES
from mis_testing.server import RunningServer

TIMES_SMALL, TIMES_LARGE = 2, 4
"""Most times as long as alone: a small request beside the large one, one step more not counted; the large one."""

_STEPS = "mis_engine_steps_total"


def checkpoint(folder: Path) -> str:
    """Write random weights whose steps cost more than their requests' HTTP: four layers of SmolLM2's shape."""
    return str(tiny_checkpoint(folder, **SHAPES["smollm2-135m"] | {"num_hidden_layers": 4}))


class Sides:
    """Who asks a server: one client with a large request, and many with requests of one item.

    Args:
        server: Whom they ask.
        http: With a connection for each.
        callers: How many ask for one item.
        items: Of the large request.
    """

    def __init__(self, server: RunningServer, http: httpx.AsyncClient, callers: int, items: int) -> None:
        self.callers, self._items, self._server, self._http = callers, items, server, http
        self._random, self._answered = random.Random(0), 0

    async def large(self) -> float:
        """Ask for many items; return the seconds it took."""
        return await self._ask([self._tokens(15) for _ in range(self._items)])

    async def at_once(self) -> np.ndarray:
        """Ask for one item each, all at once; return the seconds that each took, `[callers]`."""
        return np.array(await asyncio.gather(*(self._ask([self._tokens(15)]) for _ in range(self.callers))))

    async def large_beside_callers(self) -> float:
        """Ask for many items while callers ask for one each, and again once they are answered; return the seconds."""

        async def call() -> None:
            for _ in itertools.count():
                await self._ask([self._tokens(15)])
                self._answered += 1

        async with asyncio.TaskGroup() as tasks:
            calling = [tasks.create_task(call()) for _ in range(self.callers)]
            while self._answered < self.callers:
                await asyncio.sleep(0.05)
            seconds = await self.large()
            for each in calling:
                each.cancel()
        return seconds

    async def steps(self) -> float:
        """Return how many steps the engine has counted."""
        lines = (await self._http.get("/metrics")).raise_for_status().text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(_STEPS))

    async def until_stepped(self, since: float) -> None:
        """Wait for two steps more than so many."""
        while await self.steps() < since + 2:
            await asyncio.sleep(0.05)

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(100, 1000) for _ in range(count)]

    async def _ask(self, items: list[list[int]]) -> float:
        body = {"query": self._tokens(60), "items": items, "label_token_ids": [5, 9]}
        began = time.perf_counter()
        reply = (await self._http.post("/v1/score", json=body)).raise_for_status().json()
        assert len(reply["scores"]) == len(items)
        return time.perf_counter() - began


async def measure(server: RunningServer, callers: int, items: int, slack: float) -> list[str]:
    """Measure and print; return what was beyond its bounds."""
    limits = httpx.Limits(max_connections=callers + 2, max_keepalive_connections=callers + 2)
    async with httpx.AsyncClient(base_url=server.base_url, trust_env=False, timeout=3600, limits=limits) as http:
        sides, write, bad = Sides(server, http, callers, items), sys.stdout.write, []
        await sides.at_once()  # connections are made
        steps = await sides.steps()
        alone = await sides.large()
        step_s = alone / (await sides.steps() - steps)
        write(f"large, {items:,} items alone      {alone:8.2f} s, {step_s * 1e3:.0f} ms a step\n")
        without = await sides.at_once()
        steps = await sides.steps()
        large = asyncio.create_task(sides.large())
        await sides.until_stepped(steps)
        beside = await sides.at_once()
        if large.done():
            bad.append("the large request ended before the small ones: give it more --items")
        await large
        for percentile in (50, 99):
            found, least = (float(np.percentile(seconds, percentile)) for seconds in (beside, without))
            bound = (TIMES_SMALL * least + step_s) * slack
            write(f"p{percentile} of {callers} with one item   {found:8.2f} s beside it, {least:.2f} s without it; ")
            write(f"at most {bound:.2f} s\n")
            bad += [f"p{percentile} of small requests"] * (found > bound)
        seconds = await sides.large_beside_callers()
        bound = TIMES_LARGE * alone * slack
        write(f"large, beside {callers} callers    {seconds:8.2f} s, {seconds / alone:.2f} times alone; ")
        write(f"at most {bound:.2f} s\n")
        return bad + ["the large request"] * (seconds > bound)
