"""The engine's process seen from its socket: it answers, skips, reports, and leaves when it should."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from mis_core.process.wire import (
    HEADER_BYTES,
    Cancel,
    Configure,
    Failed,
    Ready,
    Score,
    Scored,
    Shutdown,
    ToEngine,
    ToFront,
    decode_for_front,
    encode_frame,
    payload_size,
)
from mis_core.requests import ScoreRequest

SCRIPTED = Path(__file__).with_name("scripted_engine.py")


class Front:
    """The other end of an engine process's socket."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
        connection.settimeout(120)
        self.connection = connection
        self.process = process

    def send(self, *messages: ToEngine) -> None:
        self.connection.sendall(b"".join(encode_frame(message) for message in messages))

    def receive(self) -> ToFront:
        header = self.connection.recv(HEADER_BYTES, socket.MSG_WAITALL)
        return decode_for_front(self.connection.recv(payload_size(header), socket.MSG_WAITALL))

    def exit_code(self) -> int:
        return self.process.wait(timeout=120)


@contextmanager
def front(*command: str) -> Iterator[Front]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            fd = theirs.fileno()
            process = subprocess.Popen([sys.executable, *command, str(fd)], pass_fds=[fd], stderr=subprocess.PIPE)
        with process:
            try:
                yield Front(ours, process)
            finally:
                process.kill()


@contextmanager
def scripted(model: str = "scripted") -> Iterator[Front]:
    with front(str(SCRIPTED)) as opened:
        opened.send(Configure({"model": model}))
        yield opened


@contextmanager
def ready() -> Iterator[Front]:
    with scripted() as opened:
        assert opened.receive() == Ready(vocab_size=1000, context_length=4096, summary={"devices": "1 x pretended"})
        yield opened


def score(id: int, script: str | None = None) -> Score:
    request = ScoreRequest(
        query=np.array([1, 2], np.int32),
        item_tokens=np.array([10, 20], np.int32),
        item_starts=np.array([0, 1, 2], np.int32),
        context_lens=np.array([2, 2], np.int32),
        label_ids=np.array([[5]], np.int32),
        cache_salt=script,
    )
    return Score(id, request)


def test_it_answers_in_order_of_arrival() -> None:
    with ready() as front:
        front.send(score(3), score(1), score(2))
        answers = [front.receive() for _ in range(3)]
        assert [answer.id for answer in answers if isinstance(answer, Scored)] == [3, 1, 2]


def test_a_hung_engine_ends_itself() -> None:
    with front(str(SCRIPTED)) as hung:
        hung.send(Configure({"model": "scripted", "watchdog_timeout": 1.0}))
        assert isinstance(hung.receive(), Ready)
        hung.send(score(1, "slow"))
        assert isinstance(hung.receive(), Scored)
        hung.send(score(2, "hang"))
        assert hung.exit_code() == 3
        assert hung.process.stderr is not None
        assert "No progress for 1 s with 1 requests waiting" in hung.process.stderr.read().decode()


def test_a_cancelled_request_gets_no_answer() -> None:
    with ready() as front:
        front.send(score(1, "slow"), score(2), Cancel(2), score(3))
        answers = [front.receive(), front.receive()]
        assert [answer.id for answer in answers if isinstance(answer, Scored)] == [1, 3]


def test_cancelling_what_was_answered_or_never_sent_is_ignored() -> None:
    with ready() as front:
        front.send(score(1))
        assert isinstance(front.receive(), Scored)
        front.send(Cancel(1), Cancel(99), score(2))
        assert isinstance(front.receive(), Scored)


def test_shutdown_answers_earlier_requests_and_exits_with_zero(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with scripted(f"log:{log}") as front:
        front.receive()
        front.send(score(1, "slow"), score(2), Shutdown())
        assert [type(front.receive()) for _ in range(2)] == [Scored, Scored]
        assert front.exit_code() == 0
    assert log.read_text().splitlines() == ["slow", "None", "closed"]


@pytest.mark.parametrize("script", [None, "hang"])
def test_it_leaves_at_once_when_the_front_is_gone(script: str | None) -> None:
    with ready() as front:
        front.send(score(1, script))
        front.connection.close()
        assert front.exit_code() == 0


@pytest.mark.parametrize("gone", [True, False])
def test_it_leaves_while_loading(gone: bool) -> None:
    with scripted("endless") as front:
        if gone:
            front.connection.close()
        else:
            front.send(Shutdown())
        assert front.exit_code() == 0


def test_a_refused_model_is_one_message_and_silent_on_stderr() -> None:
    with scripted("refused") as front:
        assert front.receive() == Failed(message="model.norm.weight is missing.")
        assert front.exit_code() == 1
        assert front.process.stderr is not None
        assert front.process.stderr.read() == b""


def test_garbage_ends_the_process_with_one_line() -> None:
    with ready() as front:
        front.connection.sendall(b"\x03\x00\x00\x00abc")
        assert front.exit_code() == 1
        assert front.process.stderr is not None
        error = front.process.stderr.read().decode()
        assert "does not hold a message" in error
        assert "Traceback" not in error


def test_the_real_engine_reports_a_missing_model() -> None:
    with front("-m", "mis_core.process.main") as opened:
        opened.connection.settimeout(120)
        opened.send(Configure({"model": "/no/such/model"}))
        assert opened.receive() == Failed(message="Model directory '/no/such/model' does not exist.")
        assert opened.exit_code() == 1


LOADING = """
import gc, socket, sys
from mis_core.errors import ModelError
from mis_core.process.main import run

def make_engine(config):
    raise ModelError(f"collects while it loads: {gc.isenabled()}")

run(socket.socket(fileno=int(sys.argv[1])), make_engine)
print(f"collects later: {gc.isenabled()}", file=sys.stderr)
"""


def test_it_looks_for_no_garbage_while_it_loads() -> None:
    with front("-c", LOADING) as engine:
        engine.send(Configure({"model": "none"}))
        assert engine.receive() == Failed("collects while it loads: False")
        assert engine.process.stderr is not None
        assert engine.process.stderr.read() == b"collects later: True\n"


@pytest.mark.parametrize("says_so", [True, False])
def test_a_front_that_gives_up_early_leaves_no_trace(says_so: bool) -> None:
    with front("-m", "mis_core.process.main") as mine:
        if says_so:
            mine.send(Shutdown())
        else:
            mine.connection.close()
        assert mine.process.wait(timeout=60) == 0
        assert mine.process.stderr is not None
        assert mine.process.stderr.read() == b""
