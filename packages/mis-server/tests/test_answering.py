"""Answers that are written in a task of their own: who stops reading ends it, whenever that is."""

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mis_core import EngineUnavailable
from mis_core.process.client import Reader
from mis_core.requests import NewToken
from mis_core.tasks.text.sampling import Stops
from mis_core.tasks.text.writing import GenerateChunk, GeneratedChoice, Writing
from mis_server.answering import Answering, write_all

NONE = np.zeros(0, np.int32)
ANY: Any = None


async def room() -> None:
    """There is always room."""


def chunk(number: int) -> GenerateChunk:
    return GenerateChunk(0, str(number), number, -1.0, NONE, NONE.astype(np.float32), None)


async def writes(answering: Answering[Any, Any]) -> None:
    """Write until it is cancelled."""
    answering.begin(ANY, ANY)
    for number in range(1_000_000):
        await answering.room()
        answering.tell(chunk(number))


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


def test_sequences_are_made_and_written_some_at_a_time() -> None:
    """Thousands that wait are no tasks, and no requests."""
    made, told, most = [0], [0] * 4000, 0

    class Numbers(Sequence[Any]):
        def __len__(self) -> int:
            return len(told)

        def __getitem__(self, index: Any) -> Any:
            if index == len(told):
                raise IndexError
            made[0] += 1
            return index

    async def generate(sequence: Any, reader: Reader) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            if not reader(sequence):
                return

    def tell(index: int, token: Any) -> bool:
        nonlocal most
        assert index == token
        told[index] += 1
        most = max(most, len(asyncio.all_tasks()), made[0] - told.count(2))
        return told[index] < 2

    asyncio.run(write_all(generate, Numbers(), tell, room))
    assert told == [2] * 4000
    assert most <= 18


def test_one_that_fails_ends_the_others() -> None:
    ended: list[int] = []

    async def generate(sequence: Any, reader: Reader) -> None:
        try:
            await asyncio.sleep(0 if sequence == 7 else 60)
            raise EngineUnavailable("no engine")
        finally:
            ended.append(sequence)

    with pytest.raises(EngineUnavailable):
        asyncio.run(write_all(generate, range(100), lambda index, token: True, room))  # type: ignore[arg-type]
    assert sorted(ended) == list(range(16))


def test_an_answer_that_has_ended_is_handed_over_and_not_kept(tokenizer: Any) -> None:
    async def write(answering: Answering[Any, Any]) -> None:
        writing = Writing(tokenizer, Stops(), 500)
        answering.begin(ANY, writing)
        for index in range(500):
            for place in range(4):
                token = NewToken(70, -1.0, NONE, NONE.astype(np.float32), "length" if place == 3 else None)
                chunk = writing.add(index, token)
                assert chunk is not None
                await answering.room()
                answering.tell(chunk)

    async def read() -> int:
        gc.collect()
        before, most, taken = alive(), 0, []
        answering = await Answering[Any, Any].start(write)

        async def receive(choice: GeneratedChoice) -> None:
            nonlocal most
            taken.append((choice.index, len(choice.token_ids)))
            most = max(most, alive() - before) if choice.index % 100 == 99 else most

        await answering.hand_over_each(receive)
        assert taken == [(index, 4) for index in range(500)]
        return most

    def alive() -> int:
        return sum(type(each) in (NewToken, GeneratedChoice) for each in gc.get_objects())

    assert asyncio.run(read()) < 200  # those of chunks that are not read yet


def test_an_error_before_the_beginning_is_raised_there_and_later_in_place_of_a_chunk() -> None:
    async def fails(answering: Answering[Any, Any]) -> None:
        raise EngineUnavailable("no engine")

    async def fails_later(answering: Answering[Any, Any]) -> None:
        answering.begin(ANY, ANY)
        answering.tell(chunk(0))
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
