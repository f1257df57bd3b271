"""Texts are tokenised in processes that can be ended, small ones first. These are the real processes."""

import asyncio
import contextlib
import functools
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from mis_core.errors import EngineUnavailable, RequestError
from mis_core.tokenization import Tokenizer
from mis_core.validation import Limits
from mis_server.tokenizer_pool import TokenizerPool, _Turns
from mis_server.tokenizer_worker import detokenized, score_request, tokenized

LIMITS = Limits(context_length=256, vocab_size=1024)


def process_id(path: Path) -> int:
    return os.getpid()


def never_ends(note: Path, path: Path) -> None:
    """Work that only a signal ends, as it holds the interpreter's lock when it tokenises."""
    note.write_text(str(os.getpid()))
    signal.pause()


def is_alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def opened(tokenizer: Tokenizer) -> AsyncIterator[TokenizerPool]:
    with TokenizerPool(tokenizer) as pool:
        yield pool


def test_what_travels_is_what_the_tokenizer_gives(tokenizer: Tokenizer) -> None:
    async def run() -> None:
        async with opened(tokenizer) as pool:
            await pool.warm()
            reply = await pool.small(functools.partial(tokenized, b'{"prompt": "a cafe"}', "m", 10, 10, 256), 20)
            assert json.loads(reply)["tokens"] == tokenizer.encode("a cafe").tolist()
            assert await pool.large(functools.partial(detokenized, b'{"tokens": []}', "m", 10, None), 14) == (
                b'{"prompt":""}'
            )
            body = json.dumps({"query": "Is it", "items": [" so", ""], "labels": ["a"]}).encode()
            request = await pool.large(functools.partial(score_request, body, LIMITS, ("m",)), len(body))
            expected = tokenizer.join("Is it", [" so", ""])
            assert request.query.tolist() == expected.query.tolist()
            assert request.item_tokens.tolist() == expected.item_tokens.tolist()
            with pytest.raises(RequestError, match="11 characters") as caught:
                await pool.small(functools.partial(tokenized, b'{"prompt": "eleven char"}', "m", 10, 10, 256), 20)
            assert (caught.value.code, caught.value.param) == ("too_many_tokens", "prompt")

    uvloop.run(run())


def test_what_nobody_waits_for_ends_but_small_work_keeps_its_process(tokenizer: Tokenizer, tmp_path: Path) -> None:
    note = tmp_path / "pid"

    async def run() -> list[int]:
        async with opened(tokenizer) as pool:
            large = asyncio.create_task(pool.large(functools.partial(never_ends, note), 0))
            await until(note.exists)
            await until(note.read_text)
            busy = int(note.read_text())
            small = await pool.small(process_id, 0)  # as the large one has a process of its own
            assert small != busy
            large.cancel()
            with pytest.raises(asyncio.CancelledError):
                await large
            assert not is_alive(busy)
            left = asyncio.create_task(pool.small(process_id, 0))
            await asyncio.sleep(0)
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            assert await pool.small(process_id, 0) == small
            return [small, await pool.large(process_id, 0)]

    for pid in uvloop.run(run()):
        assert not is_alive(pid)  # none outlives the event loop


def test_a_process_that_is_killed_is_replaced(tokenizer: Tokenizer, tmp_path: Path) -> None:
    note = tmp_path / "pid"

    async def run() -> None:
        async with opened(tokenizer) as pool:
            task = asyncio.create_task(pool.small(functools.partial(never_ends, note), 0))
            await until(note.exists)
            await until(note.read_text)
            os.kill(int(note.read_text()), signal.SIGKILL)
            with pytest.raises(EngineUnavailable, match="tokenizer process"):
                await task
            assert await pool.small(process_id, 0) != int(note.read_text())

    uvloop.run(run())


@given(
    sizes=st.lists(st.integers(0, 100).map(lambda step: step * 10**5), max_size=20),
    left=st.sets(st.integers(0, 19)),
    count=st.integers(1, 3),
)
def test_short_texts_go_before_long_ones_and_no_turn_is_lost(sizes: list[int], left: set[int], count: int) -> None:
    order: list[int] = []

    async def job(turns: _Turns, size: int) -> None:
        await turns.take(size)
        order.append(size)
        await asyncio.sleep(0)
        turns.give_back()

    async def run() -> None:
        turns = _Turns(count)
        for _ in range(count):
            await turns.take(0)
        tasks = [asyncio.create_task(job(turns, size)) for size in sizes]
        await asyncio.sleep(0)
        for index in left:
            if index < len(tasks):
                tasks[index].cancel()
        for _ in range(count):
            turns.give_back()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(count):
            await asyncio.wait_for(turns.take(0), 1)

    asyncio.run(run())
    stayed = [size for index, size in enumerate(sizes) if index not in left]
    assert sorted(order) == sorted(stayed)
    if count == 1:
        assert order == sorted(stayed)


def test_a_long_text_is_not_passed_for_ever() -> None:
    async def run() -> None:
        turns, order = _Turns(1), []
        await turns.take(0)

        async def job(name: str, size: int) -> None:
            await turns.take(size)
            order.append(name)
            turns.give_back()

        long = asyncio.create_task(job("long", 300))  # bytes: 30 ms
        await asyncio.sleep(0.05)
        short = asyncio.create_task(job("short", 0))
        await asyncio.sleep(0)
        turns.give_back()
        await asyncio.gather(long, short)
        assert order == ["long", "short"]

    asyncio.run(run())
