"""Targets for tests, opened as commands open them."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from mis_bench.targets.base import BlockingTarget, Target
from mis_bench.targets.blocking import BlockingOpener
from mis_bench.targets.registry import opener
from mis_bench.targets.spec import TargetSpec


class Connect:
    """`await connect("mis=http://HOST:PORT", api_key="k")`: opens a target, which is closed with the stack."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def __call__(self, spec: str, model: Path | None = None, **options: str) -> Any:
        target: Target = await opener(TargetSpec(spec, spec, options), model=model).open()
        self._stack.push_async_callback(target.close)
        return target


def loaded(spec: str, model: Path | None, **options: str) -> BlockingTarget:
    """Load a target of this process, without what makes it asynchronous."""
    found = opener(TargetSpec(spec, spec, options), model=model)
    assert isinstance(found, BlockingOpener)
    found.find()
    return found.make()
