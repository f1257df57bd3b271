"""Answers that are generated in a task of their own: who stops reading ends it, whenever that is."""

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mis_core import EngineUnavailable
from mis_core.requests import NewToken
from mis_core.tasks.text.choices import GenerateChunk, GeneratedChoice, GeneratedChoices
from mis_core.tasks.text.sampling import Stops
from mis_server.generation import GenerationStream
from mis_server.model import in_order, some_at_a_time
from mis_server.streams import LineStream

NONE = np.zeros(0, np.int32)
ANY: Any = None


def chunk(number: int) -> GenerateChunk:
    return GenerateChunk(0, str(number), number, -1.0, NONE, NONE.astype(np.float32), None)


async def writes(stream: GenerationStream[Any, Any]) -> None:
    """Write until it is cancelled."""
    stream.begin(ANY, ANY)
    for number in range(1_000_000):
        await stream.room()
        stream.put(chunk(number))


def test_chunks_come_in_order_and_who_leaves_ends_the_work() -> None:
    async def read() -> tuple[list[int], bool]:
        stream = await GenerationStream[Any, Any].start(writes)
        async with stream:
            found = [(await anext(stream)).token_id for _ in range(1_000)]
        await asyncio.wait([stream._task], timeout=10)
        return found, stream._task.cancelled()

    assert asyncio.run(read()) == (list(range(1_000)), True)


def test_who_leaves_before_the_first_chunk_ends_the_work() -> None:
    async def leave() -> bool:
        stream = await GenerationStream[Any, Any].start(writes)
        async with stream:
            pass
        await asyncio.wait([stream._task], timeout=10)
        return stream._task.cancelled()

    assert asyncio.run(leave())


def test_who_reads_nothing_holds_up_the_work() -> None:
    async def wait() -> int:
        stream = await GenerationStream[Any, Any].start(writes)
        await asyncio.sleep(0.1)
        held = stream._chunks.qsize()
        stream._task.cancel()
        return held

    assert asyncio.run(wait()) == 256


def test_items_are_processed_a_few_at_a_time_in_order() -> None:
    """Thousands that wait are no tasks."""
    made, ended, most = 0, 0, 0

    def numbers() -> Iterator[int]:
        nonlocal made
        for number in range(4000):
            made += 1
            yield number

    async def work(number: int) -> int:
        nonlocal ended, most
        for _ in range(1 + number % 3):
            await asyncio.sleep(0)
        most = max(most, len(asyncio.all_tasks()), made - ended)
        ended += 1
        return -number

    assert asyncio.run(some_at_a_time(work, numbers())) == [-number for number in range(4000)]
    assert most <= 18


def test_one_that_fails_ends_the_others() -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        try:
            await asyncio.sleep(0 if number == 7 else 60)
            raise EngineUnavailable("no engine")
        finally:
            ended.append(number)

    with pytest.raises(EngineUnavailable):
        asyncio.run(some_at_a_time(work, range(100)))
    assert sorted(ended) == list(range(16))


def test_results_are_in_order_and_no_unread_item_is_begun() -> None:
    begun, ended = 0, 0

    async def work(number: int) -> int:
        nonlocal begun, ended
        begun += 1
        try:
            await asyncio.sleep(0.002 * (number * 7 % 5))
            return -number
        finally:
            ended += 1

    async def read() -> list[int]:
        found = []
        async with contextlib.aclosing(in_order(work, range(1_000_000), 8)) as results:
            async for each in results:
                found.append(each)
                await asyncio.sleep(0.01 if len(found) % 10 == 0 else 0)
                assert begun <= len(found) + 7
                if len(found) == 100:
                    break
        return found

    assert asyncio.run(read()) == [-number for number in range(100)]
    assert begun == ended == 107


def test_a_result_comes_as_soon_as_those_before_it_are_there() -> None:
    async def work(number: int) -> int:
        await asyncio.sleep(60 if number == 3 else 0)
        return number

    async def read() -> list[int]:
        results = in_order(work, range(5))
        async with contextlib.aclosing(results):
            return [await asyncio.wait_for(anext(results), 30) for _ in range(3)]

    assert asyncio.run(read()) == [0, 1, 2]


def test_one_that_fails_ends_those_after_it() -> None:
    ended = []

    async def work(number: int) -> int:
        try:
            await asyncio.sleep(0 if number == 2 else 60 if number > 2 else 0.01)
            return number // (number - 2)
        finally:
            ended.append(number)

    async def read() -> list[int]:
        return [each async for each in in_order(work, range(100), 4)]

    with pytest.raises(ZeroDivisionError):
        asyncio.run(read())
    assert {0, 1, 2, 3} <= {*ended} <= {*range(6)}  # the last two may have been cancelled before they ran


def test_no_further_line_is_made_ready_before_the_last_is_read() -> None:
    async def write(stream: LineStream) -> None:
        stream.open()
        for number in range(10):
            await stream.room()
            stream.put(b"%d" % number)

    async def read() -> list[bytes]:
        stream = await LineStream.start(write)
        found = []
        async with stream:
            async for line in stream:
                await asyncio.sleep(0.001)
                assert stream._chunks.qsize() <= 2  # the next line, and the end
                found.append(line)
        return found

    assert asyncio.run(read()) == [b"%d" % number for number in range(10)]


def test_an_answer_that_has_ended_is_handed_over_and_not_kept(tokenizer: Any) -> None:
    async def write(stream: GenerationStream[Any, Any]) -> None:
        choices = GeneratedChoices(tokenizer, Stops(), 500)
        stream.begin(ANY, choices)
        for index in range(500):
            for place in range(4):
                token = NewToken(70, -1.0, NONE, NONE.astype(np.float32), "length" if place == 3 else None)
                chunk = choices.add(index, token)
                assert chunk is not None
                await stream.room()
                stream.put(chunk)

    async def read() -> int:
        gc.collect()
        before, most, taken = alive(), 0, []
        stream = await GenerationStream[Any, Any].start(write)

        async def receive(choice: GeneratedChoice) -> None:
            nonlocal most
            taken.append((choice.index, len(choice.token_ids)))
            most = max(most, alive() - before) if choice.index % 100 == 99 else most

        await stream.hand_over_each(receive)
        assert taken == [(index, 4) for index in range(500)]
        return most

    def alive() -> int:
        return sum(type(each) in (NewToken, GeneratedChoice) for each in gc.get_objects())

    assert asyncio.run(read()) < 200  # those of chunks that are not read yet


def test_an_error_is_raised_at_the_start_or_replaces_a_chunk() -> None:
    async def fails(stream: GenerationStream[Any, Any]) -> None:
        raise EngineUnavailable("no engine")

    async def fails_later(stream: GenerationStream[Any, Any]) -> None:
        stream.begin(ANY, ANY)
        stream.put(chunk(0))
        raise EngineUnavailable("no engine")

    async def read() -> None:
        stream = await GenerationStream[Any, Any].start(fails_later)
        async with stream:
            assert (await anext(stream)).token_id == 0
            with pytest.raises(EngineUnavailable):
                await anext(stream)

    with pytest.raises(EngineUnavailable):
        asyncio.run(GenerationStream[Any, Any].start(fails))
    asyncio.run(read())
