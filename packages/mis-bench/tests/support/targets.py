"""Targets for tests, opened as commands open them."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from mis_bench.targets.registry import opener
from mis_bench.targets.spec import TargetSpec
from mis_bench.targets.target import About, Layout, Reply, Target
from mis_bench.workload import Workload


async def ask(target: Target, workload: Workload, layout: Layout = {}) -> Reply:  # noqa: B006 - nobody changes it
    """Prepare and call in one."""
    return (await target.call(target.prepare(workload, layout))).reply


class Connect:
    """`await connect("mis=http://HOST:PORT", api_key="k")`: opens a target, which is closed with the stack."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def __call__(self, spec: str, model: Path | None = None, **options: str) -> Any:
        target: Target = await opener(TargetSpec(spec, spec, options), model=model).open()
        self._stack.push_async_callback(target.close)
        return target


class Local:
    """A target of this process, checked and opened, without what makes it asynchronous."""

    def __init__(self, spec: str, model: Path | None, **options: str) -> None:
        found = opener(TargetSpec(spec, spec, options), model=model)
        asyncio.run(found.check())
        self.target = asyncio.run(found.open())

    @property
    def about(self) -> About:
        return self.target.about

    def score(self, workload: Workload, layout: Layout = {}) -> Reply:  # noqa: B006 - nobody changes it
        return asyncio.run(ask(self.target, workload, layout))

    def forget(self) -> None:
        asyncio.run(self.target.forget())

    def counts(self) -> dict[str, float]:
        return asyncio.run(self.target.counts())

    def close(self) -> None:
        asyncio.run(self.target.close())
