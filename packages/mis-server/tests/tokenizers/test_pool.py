"""Texts are tokenised in processes that can be ended, small ones first. These are the real processes."""

import asyncio
import contextlib
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from mis_core.errors import EngineUnavailable, RequestError
from mis_core.tasks.limits import Limits
from mis_core.tasks.score.task import SCORE
from mis_core.tokenization import Tokenizer
from mis_server.tokenizers import pool as tokenizer_pool
from mis_server.tokenizers import process as tokenizer_process
from mis_server.tokenizers.decoding import decode_body, parse_text
from mis_server.tokenizers.pool import TokenizerPool, TokenizersUnavailable
from mis_server.tokenizers.process import TokenizerProcess
from mis_server.tokenizers.tokens import detokenize, tokenize

# uvloop forks, and other tests leave JAX in this process; the server's process, which does so, never loads it.
pytestmark = pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")

LIMITS = Limits(context_length=256, vocab_size=1024)
PARALLEL = [pytest.param(asyncio.run, id="asyncio", marks=pytest.mark.full), pytest.param(uvloop.run, id="uvloop")]


def children() -> set[int]:
    """Tokenizer processes of this one."""
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread or a child has ended meanwhile
            for pid in (thread / "children").read_text().split():
                with contextlib.suppress(OSError):
                    if b"mis_server.tokenizers.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.add(int(pid))
    return found


def process_id(tokenizer: Tokenizer) -> int:
    return os.getpid()


def num_threads(tokenizer: Tokenizer) -> int:
    import scipy.special  # noqa: F401

    return len(list(Path("/proc/self/task").iterdir()))


def renders_at_once(tokenizer: Tokenizer) -> bool:
    return "transformers" in sys.modules


def noted(note: Path, tokenizer: Tokenizer) -> None:
    """Work that only a signal ends."""
    with note.open("a") as file:
        file.write(f"{os.getpid()}\n")
    signal.pause()


def slow(seconds: float, name: str, tokenizer: Tokenizer) -> str:
    time.sleep(seconds)
    return name


def unreadable(tokenizer: Tokenizer) -> Any:
    return lambda: None  # does not travel


def panic(tokenizer: Tokenizer) -> None:
    class PanicException(BaseException):
        """What the tokenizer's library raises."""

    raise PanicException("a bug of the library")


class Large:
    """A result that is read as the number of the thread that reads it."""

    def __reduce__(self) -> tuple[Callable[[bytes], int], tuple[bytes]]:
        return reading_thread, (bytes(100_000),)


def reading_thread(data: bytes) -> int:
    return threading.get_ident()


def large(tokenizer: Tokenizer) -> Large:
    return Large()


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    """Functions of this module can be read in processes that do not look into the working directory."""
    paths = [os.environ.get("PYTHONPATH", ""), str(pytestconfig.rootpath)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(240):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def opened(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """`async with opened() as pool`: with one process of each kind; none is left behind."""
    monkeypatch.setattr(tokenizer_pool, "_MAX_PROCESSES", 1)

    @contextlib.asynccontextmanager
    async def open_() -> AsyncIterator[TokenizerPool]:
        async with TokenizerPool(tokenizer) as pool:
            yield pool
        assert not children()

    return open_


Run = Callable[[Coroutine[Any, Any, None]], None]


def test_a_pool_is_not_ready_until_the_templates_are_compiled(opened: Callable[[], Any]) -> None:
    async def main() -> None:
        async with opened() as pool:
            assert not pool.ready
            await pool.compiled()
            assert pool.ready

    asyncio.run(main())


@pytest.mark.parametrize("run", PARALLEL)
def test_what_travels_is_what_the_tokenizer_gives(opened: Callable[[], Any], tokenizer: Tokenizer, run: Run) -> None:
    async def main() -> None:
        async with opened() as pool:
            tokens = await pool.small(functools.partial(tokenize, b'{"prompt": "a cafe"}', ("m",), 10, 10), 20)
            assert json.loads(tokens.ids) == tokenizer.encode("a cafe").tolist()
            empty = functools.partial(detokenize, b'{"tokens": []}', ("m",), 10, 10, None)
            assert await pool.large(empty, 14) == b'""'
            body = json.dumps({"query": "Is it", "items": [" so", ""], "labels": ["a"]}).encode()
            request = await pool.large(
                functools.partial(parse_text, SCORE, LIMITS, ("m",), decode_body, body, None), len(body)
            )
            request = request.request
            expected = tokenizer.join("Is it", [" so", ""])
            assert request.query.tolist() == expected.query.tolist()
            assert request.item_tokens.tolist() == expected.item_tokens.tolist()
            with pytest.raises(RequestError, match="11 characters") as caught:
                await pool.small(functools.partial(tokenize, b'{"prompt": "eleven char"}', ("m",), 10, 10), 20)
            assert (caught.value.code, caught.value.param) == ("too_many_tokens", "prompt")
            pid = await pool.small(process_id, 0)
            for work in (unreadable, panic):
                with pytest.raises((RuntimeError, AttributeError)):
                    await pool.small(work, 0)
            assert await pool.small(process_id, 0) == pid

    run(main())


def test_no_small_text_waits_for_the_first_chat(opened: Callable[[], Any], tokenizer: Tokenizer) -> None:
    async def main() -> None:
        assert tokenizer.chat_template is not None
        async with opened() as pool:
            assert await pool.small(renders_at_once, 0)
            assert not await pool.large(renders_at_once, 0)  # which are started anew all the time

    asyncio.run(main())


def test_large_results_are_read_beside_the_event_loop(opened: Callable[[], Any]) -> None:
    async def main() -> None:
        async with opened() as pool:
            assert await pool.small(large, 0) != threading.get_ident()

    asyncio.run(main())


@pytest.mark.parametrize("run", PARALLEL)
def test_abandoned_work_ends_but_small_work_keeps_its_process(
    opened: Callable[[], Any], tmp_path: Path, run: Run
) -> None:
    note = tmp_path / "pids"

    async def main() -> None:
        async with opened() as pool:
            small, first = await pool.small(process_id, 0), await pool.large(process_id, 0)
            assert small != first  # each kind has a process of its own
            large = asyncio.create_task(pool.large(functools.partial(noted, note), 0))
            await until(note.exists)
            large.cancel()
            with pytest.raises(asyncio.CancelledError):
                await large
            await until(lambda: first not in children())
            left = asyncio.create_task(pool.small(functools.partial(slow, 0.5, ""), 0))
            await asyncio.sleep(0.1)
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            assert await pool.small(process_id, 0) == small
            assert await pool.large(process_id, 0) != first

    run(main())


def busy(seconds: float, note: Path, tokenizer: Tokenizer) -> int:
    """Work that computes so long."""
    with note.open("a") as file:
        file.write(f"{os.getpid()}\n")
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return os.getpid()


def test_small_work_that_takes_long_after_all_gives_its_lane_up(
    opened: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: a template that never ends, a regular expression that backtracks."""
    note = tmp_path / "pids"

    def allow(cpu_s: float) -> None:
        monkeypatch.setattr(tokenizer_pool, "_SMALL_CPU_S", cpu_s)

    def pids() -> list[int]:
        return list(map(int, note.read_text().split())) if note.exists() else []

    async def main() -> None:
        async with opened() as pool:
            allow(60)  # a process's first job of a test imports the test
            first, large = await pool.small(process_id, 0), await pool.large(process_id, 0)
            allow(0.3)
            assert await pool.small(functools.partial(busy, 1, note), 0) == large
            assert pids() == [first, large]
            allow(60)
            second = await pool.small(process_id, 0)
            allow(0.3)
            endless = asyncio.create_task(pool.small(functools.partial(busy, 600, note), 0))
            await until(lambda: pids() == [first, large, second, large])
            allow(60)
            third = await pool.small(process_id, 0)  # though it is not done
            endless.cancel()
            await until(lambda: large not in children())
            allow(0.3)
            left = asyncio.create_task(pool.small(functools.partial(busy, 600, note), 0))
            await until(lambda: pids()[4:] == [third])
            left.cancel()
            await until(lambda: third not in children())
            allow(60)
            assert await pool.small(process_id, 0)
            assert await pool.large(process_id, 0)
            assert len(pids()) == 5  # nobody waited for it, so no other process did it

    uvloop.run(main())


def test_callers_that_leave_at_once_leave_no_process_behind(opened: Callable[[], Any]) -> None:
    async def main() -> None:
        async with opened() as pool:
            for wait_s in (0, 0.05, 0.1, 0.2, 0.1, 0.05):
                task = asyncio.create_task(pool.large(functools.partial(slow, 60, ""), 0))
                await asyncio.sleep(wait_s)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert len(children()) <= 2
            assert await pool.large(functools.partial(slow, 0, "done"), 0) == "done"
            assert len(children()) == 2

    uvloop.run(main())


def test_a_process_that_is_killed_is_replaced(opened: Callable[[], Any], tmp_path: Path) -> None:
    note = tmp_path / "pids"

    async def main() -> None:
        async with opened() as pool:
            task = asyncio.create_task(pool.small(functools.partial(noted, note), 0))
            await until(lambda: note.exists() and note.read_text())
            os.kill(int(note.read_text()), signal.SIGKILL)
            with pytest.raises(EngineUnavailable, match="tokenizer process"):
                await task
            assert await pool.small(process_id, 0) != int(note.read_text())

    uvloop.run(main())


def test_signals_to_all_processes_end_no_work(opened: Callable[[], Any]) -> None:
    async def main() -> None:
        async with opened() as pool:
            pid = await pool.small(process_id, 0)
            task = asyncio.create_task(pool.small(functools.partial(slow, 0.5, "done"), 0))
            await asyncio.sleep(0.1)
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(pid, number)
            assert await task == "done"
            assert os.getpgid(pid) != os.getpgid(0)  # what is typed at the terminal does not reach it

    uvloop.run(main())


def test_a_process_that_cannot_be_started_is_tried_again(
    opened: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    command = tokenizer_process._COMMAND
    monkeypatch.setattr(tokenizer_process, "_COMMAND", ("/no/such/program",))
    monkeypatch.setattr(tokenizer_pool, "_FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(tokenizer_pool, "_ENOUGH_FAILURES", 1_000_000)

    async def main() -> None:
        async with opened() as pool:
            task = asyncio.create_task(pool.small(process_id, 0))
            await until(lambda: "could not be started" in caplog.text)
            monkeypatch.setattr(tokenizer_process, "_COMMAND", command)
            assert await task

    uvloop.run(main())


def test_short_texts_go_before_long_ones_but_not_for_ever(opened: Callable[[], Any]) -> None:
    order: list[str] = []

    async def ask(pool: TokenizerPool, name: str, size: int) -> None:
        order.append(await pool.small(functools.partial(slow, 0, name), size))

    async def main() -> None:
        async with opened() as pool:
            first = asyncio.create_task(pool.small(functools.partial(slow, 0.5, ""), 0))
            old = asyncio.create_task(ask(pool, "old", 300))  # bytes: 30 ms
            long = asyncio.create_task(ask(pool, "long", 100_000))
            await asyncio.sleep(0.1)
            left = asyncio.create_task(ask(pool, "left", 0))
            short = asyncio.create_task(ask(pool, "short", 0))
            await asyncio.sleep(0)
            left.cancel()
            await asyncio.gather(first, old, long, short)
        assert order == ["old", "short", "long"]

    uvloop.run(main())


def test_memory_of_a_large_body_is_given_back(opened: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_pool, "_RENEWED_BYTES", 100)

    async def main() -> None:
        async with opened() as pool:
            pids = [await pool.large(process_id, size) for size in (100, 101, 1)]
        assert pids[0] == pids[1] != pids[2]

    uvloop.run(main())


@pytest.mark.parametrize("run", PARALLEL)
def test_a_process_that_ends_between_jobs_refuses_one_request(opened: Callable[[], Any], run: Run) -> None:
    async def main() -> None:
        async with opened() as pool:
            os.kill(await pool.small(process_id, 0), signal.SIGKILL)
            await asyncio.sleep(0.5)
            with pytest.raises(EngineUnavailable):
                await pool.small(process_id, 0)
            assert await pool.small(process_id, 0)

    run(main())


def test_no_process_makes_threads_for_every_processor(opened: Callable[[], Any]) -> None:
    """Each would take 42 MB of what a job may have."""

    async def main() -> None:
        async with opened() as pool:
            assert await pool.small(num_threads, 0) == 1

    asyncio.run(main())


def test_nothing_is_held_of_work_that_is_done_or_has_failed(opened: Callable[[], Any]) -> None:
    async def main() -> None:
        async with opened() as pool:
            for lane in (pool.small, pool.large):
                works = [
                    functools.partial(detokenize, body, "m", 1000, 1000, None) for body in (b'{"tokens": [7]}', b"{")
                ]
                held = [weakref.ref(work) for work in works]
                await lane(works[0], 15)
                with contextlib.suppress(RequestError):  # pytest.raises would hold the error
                    await lane(works[1], 1)
                del works
                await asyncio.sleep(0.5)  # its lane turns to the next
                assert [each() for each in held] == [None, None]

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_a_lane_restarts_its_process_and_reports_when_it_cannot(
    opened: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = TokenizerProcess.start

    async def fail(*arguments: Any, **options: Any) -> TokenizerProcess:
        raise AttributeError("nobody expects this")

    monkeypatch.setattr(TokenizerProcess, "start", fail)
    monkeypatch.setattr(tokenizer_pool, "_FIRST_RETRY_S", 0.01)

    async def main() -> None:
        async with opened() as pool:
            waiting = asyncio.create_task(pool.small(process_id, 0))
            with pytest.raises(TokenizersUnavailable, match="cannot be started"):
                await waiting
            with pytest.raises(TokenizersUnavailable):  # at once
                pool.check()
            with pytest.raises(TokenizersUnavailable):
                await pool.compiled()
            assert "AttributeError: nobody expects this" in caplog.text
            monkeypatch.setattr(TokenizerProcess, "start", start)
            monkeypatch.setattr(tokenizer_pool, "_LAST_RETRY_S", 0.01)
            await until(lambda: pool.failures == 0)
            pool.check()
            assert await pool.small(process_id, 0)

    asyncio.run(main())


_FRONT = """
import asyncio, functools, operator, sys
from mis_core.tokenization import Tokenizer
from mis_server.tokenizers import pool as tokenizer_pool

tokenizer_pool._MAX_PROCESSES = 1

async def main():
    async with tokenizer_pool.TokenizerPool(Tokenizer.from_json(sys.stdin.read())) as pool:
        await pool.compiled()
        # One operation, which compares for ever: no other thread of that process runs meanwhile.
        await pool.large(functools.partial(operator.contains, range(10**18)), 0)

asyncio.run(main())
"""


def descendants(pid: int) -> set[int]:
    """Processes below one."""
    found = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in map(int, (thread / "children").read_text().split()):
                found |= {child} | descendants(child)
    return found


def test_no_process_outlives_a_front_killed_during_a_locked_job(tokenizer: Tokenizer) -> None:
    with subprocess.Popen([sys.executable, "-c", _FRONT], stdin=subprocess.PIPE, text=True) as front:
        assert front.stdin is not None
        front.stdin.write(tokenizer.to_json())
        front.stdin.close()

        async def main() -> None:
            # Two tokenizer processes, of which one computes, and what renders for the other.
            await until(lambda: len(descendants(front.pid)) == 3)
            children = descendants(front.pid)
            await asyncio.sleep(2)
            front.kill()
            await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))

        try:
            asyncio.run(main())
        finally:
            front.kill()
