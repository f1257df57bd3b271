"""Answers that are written in a task of their own: who stops reading ends it, whenever that is."""

import asyncio
from typing import Any

import numpy as np
import pytest

from mis_core import EngineUnavailable
from mis_core.tasks.writing import GenerateChunk
from mis_server.answering import Answering

NONE = np.zeros(0, np.int32)
ANY: Any = None


def chunk(number: int) -> GenerateChunk:
    return GenerateChunk(0, str(number), number, -1.0, NONE, NONE.astype(np.float32), None)


async def writes(answering: Answering[Any, Any]) -> None:
    """Write until it is cancelled."""
    answering.begin(ANY, ANY)
    for number in range(1_000_000):
        await answering.tell(chunk(number))


def test_chunks_come_in_order_and_who_leaves_ends_the_work() -> None:
    async def read() -> tuple[list[int], bool]:
        answering = await Answering[Any, Any].start(writes)
        async with answering.chunks() as chunks:
            found = [(await anext(chunks)).token_id for _ in range(1_000)]
        await asyncio.wait([answering._task], timeout=10)
        return found, answering._task.cancelled()

    assert asyncio.run(read()) == (list(range(1_000)), True)


def test_who_leaves_before_the_first_chunk_ends_the_work() -> None:
    async def leave() -> bool:
        answering = await Answering[Any, Any].start(writes)
        async with answering.chunks():
            pass
        await asyncio.wait([answering._task], timeout=10)
        return answering._task.cancelled()

    assert asyncio.run(leave())


def test_who_reads_nothing_holds_up_the_work() -> None:
    async def wait() -> int:
        answering = await Answering[Any, Any].start(writes)
        await asyncio.sleep(0.1)
        held = answering._told.qsize()
        answering._task.cancel()
        return held

    assert asyncio.run(wait()) == 256


def test_an_error_before_the_beginning_is_raised_there_and_later_in_place_of_a_chunk() -> None:
    async def fails(answering: Answering[Any, Any]) -> None:
        raise EngineUnavailable("no engine")

    async def fails_later(answering: Answering[Any, Any]) -> None:
        answering.begin(ANY, ANY)
        await answering.tell(chunk(0))
        raise EngineUnavailable("no engine")

    async def read() -> None:
        answering = await Answering[Any, Any].start(fails_later)
        async with answering.chunks() as chunks:
            assert (await anext(chunks)).token_id == 0
            with pytest.raises(EngineUnavailable):
                await anext(chunks)

    with pytest.raises(EngineUnavailable):
        asyncio.run(Answering[Any, Any].start(fails))
    asyncio.run(read())
