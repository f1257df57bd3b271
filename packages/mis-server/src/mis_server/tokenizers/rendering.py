"""Chat templates rendered in a child process, which the kernel ends where a rendering takes too much.

Templates are code of strangers. A rendering may hold the interpreter lock for ever, so nothing within its own process
can stop it: a timer of the kernel counts the processor time of the child, and its signal ends it. The child is forked
from the tokenizer process, where everything is imported and compiled, so nobody waits for that again.
"""

import contextlib
import ctypes
import gc
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mis_core.tasks.text.messages import count_characters
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.chat_template import ChatTemplate, reason_of, refused
from mis_core.tokenization.decision_contract import DecisionContract

BRIEF_S = 0.03
"""Seconds of processor time that all renderings of a job may take if others wait for it."""
LONGEST_S = 10.0
"""Seconds of processor time that all renderings of any other job may take."""

_MEMORY_BYTES = 256 * 1024 * 1024
_BYTES_PER_CHARACTER = 32  # up to four each, in eight copies
_CHARACTERS = 16 * 1024 * 1024
_CHARACTERS_PER_CHARACTER = 4
_KEPT_BYTES = 16 * 1024 * 1024  # that a child may keep; one that keeps more is replaced
_MOST_FILES = 4096
_PR_SET_PDEATHSIG = 1


class TakesLong(Exception):
    """A rendering takes longer than `BRIEF_S`; it may be done where nobody waits behind it."""


class RenderingFailed(Exception):
    """There is no result; the message says why."""


class _Overrun(Exception):
    """A rendering took all the time that its job has."""


class _Limits(NamedTuple):
    seconds: float
    memory_bytes: int
    characters: int


class _Done(msgspec.Struct, frozen=True):
    """What the child answers.

    Attributes:
        text: The result; None if there is none.
        reason: Why there is none.
        left_s: What is left of the seconds.
        stays: Whether the child takes more work.
    """

    text: str | None
    reason: str | None
    left_s: float
    stays: bool


@dataclass(slots=True)
class Allowance:
    """What the renderings of one job may take together.

    Attributes:
        left_s: Seconds of processor time.
        is_brief: Whether others wait for the job.
    """

    left_s: float = LONGEST_S
    is_brief: bool = False


class Renderer:
    """Renders in a child, which is started when it is needed and ends with the thread that has started it.

    Attributes:
        allowance: Of the job that is done now.
    """

    def __init__(self, begin_child: Callable[[], None]) -> None:
        """Prepare; nothing starts yet.

        Args:
            begin_child: Called in the child first: takes away what the job that started it has set for this process.
        """
        self.allowance = Allowance()
        self._begin_child = begin_child
        self._child: _Child | None = None

    def run(self, work: Callable[[], str], characters: int) -> str:
        """Return what a function returns in the child.

        Args:
            work: A function that can be pickled.
            characters: Size of what it works on; memory and length may grow with it.

        Raises:
            RenderingFailed: it fails, or takes too much time or memory, or its result is too long; says why.
            TakesLong: it takes more time than a brief job has.
        """
        memory = _MEMORY_BYTES + _BYTES_PER_CHARACTER * characters
        allowance = self.allowance
        limits = _Limits(allowance.left_s, memory, _CHARACTERS + _CHARACTERS_PER_CHARACTER * characters)
        try:
            done = self._ask(work, limits)
        except _Overrun:
            allowance.left_s = 0.0
            if allowance.is_brief:
                raise TakesLong from None
            raise RenderingFailed(f"it takes more than {LONGEST_S:g} s of processor time.") from None
        allowance.left_s = done.left_s
        if done.text is None:
            raise RenderingFailed(done.reason)
        return done.text

    def _ask(self, work: Callable[[], str], limits: _Limits) -> _Done:
        if limits.seconds <= 0:
            raise _Overrun
        try:
            request = pickle.dumps((work, limits), pickle.HIGHEST_PROTOCOL)
        except RecursionError as error:
            return _Done(None, reason_of(error), limits.seconds, stays=True)
        if self._child is None:
            self._child = _Child(self._begin_child)
        child = self._child
        with contextlib.suppress(EOFError, ConnectionError):
            done = child.ask(request)
            if not done.stays:
                self._end()
            return done
        number = self._end()
        if number == signal.SIGPROF:
            raise _Overrun
        return _Done(None, f"its process ended ({number}).", limits.seconds, stays=False)

    def _end(self) -> int:
        """Wait for the end of the child; return the number of the signal that ended it, or 0."""
        child, self._child = self._child, None
        return 0 if child is None else child.wait()


class WatchedTemplate(ChatTemplate, frozen=True):
    """A template that a renderer renders."""

    renderer: Renderer | None = None

    @classmethod
    def of(cls, template: ChatTemplate, renderer: Renderer) -> "WatchedTemplate":
        """Return a template that renders there."""
        return cls(template.source, template.special_tokens, template.option, template.fault, renderer)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Render as a `ChatTemplate`, within limits.

        Raises:
            RequestError: `invalid_messages`; the template refuses these messages, or takes too much for them.
            TakesLong: it takes more time than a brief job has.
        """
        assert self.renderer is not None
        plain = ChatTemplate(self.source, self.special_tokens)
        render = partial(plain.unguarded, messages, add_generation_prompt=add_generation_prompt, **variables)
        try:
            return self.renderer.run(render, count_characters([*messages, variables]))
        except RenderingFailed as error:
            raise refused(str(error)) from None

    def find_fault(self) -> str | None:
        """Compile the template in the child, and where that does no harm, here: every other child has it compiled."""
        assert self.renderer is not None
        plain = ChatTemplate(self.source)
        try:
            fault = self.renderer.run(partial(_fault, plain), len(self.source))
        except RenderingFailed as error:
            return str(error)
        return fault or plain.find_fault()


def watch_templates(tokenizer: Tokenizer, renderer: Renderer) -> None:
    """Have a renderer render the templates of a tokenizer."""
    chat, rerank = tokenizer.chat_template, tokenizer.rerank_template
    tokenizer.chat_template = None if chat is None else WatchedTemplate.of(chat, renderer)
    tokenizer.rerank_template = None if rerank is None else WatchedTemplate.of(rerank, renderer)
    if isinstance(tokenizer.decision, DecisionContract):
        watched = WatchedTemplate.of(tokenizer.decision.template, renderer)
        tokenizer.decision = msgspec.structs.replace(tokenizer.decision, template=watched)


Faults = tuple[str | None, str | None, str | None]
"""Why the templates of chat, rerank and decisions cannot be compiled; None for what can be or is not there."""


def find_faults(tokenizer: Tokenizer) -> Faults:
    """Compile the templates of a tokenizer, and return what is wrong with them."""
    chat, rerank, decision_fault = (
        None if template is None else template.find_fault()
        for template in (tokenizer.chat_template, tokenizer.rerank_template, tokenizer.decision_template)
    )
    return chat, rerank, decision_fault


def _fault(template: ChatTemplate) -> str:
    return template.find_fault() or ""


class _Child:
    """The child, as its parent has it."""

    def __init__(self, begin: Callable[[], None]) -> None:
        # Here once, instead of in each child.
        import transformers.utils.chat_template_utils  # noqa: F401

        self._connection, theirs = Pipe()
        parent = os.getpid()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                _live(parent, theirs, begin)
                status = 0
            finally:
                os._exit(status)
        theirs.close()

    def ask(self, request: bytes) -> _Done:
        """Have a piece of work done; raises EOFError or ConnectionError if the child has ended."""
        self._connection.send_bytes(request)
        return msgspec.msgpack.decode(self._connection.recv_bytes(), type=_Done)

    def wait(self) -> int:
        self._connection.close()
        _, status = os.waitpid(self._pid, 0)
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def _live(parent: int, connection: Connection, begin: Callable[[], None]) -> None:
    """Do one piece of work after the other, in the child."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # of the thread that forks, which is the only one
    if os.getppid() != parent:
        return
    for before, after in pairwise([-1, *sorted((2, connection.fileno())), _MOST_FILES]):
        os.closerange(before + 1, after)  # the front sees the end of the parent's pipes, whatever this process does
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    begin()
    gc.freeze()
    stays = True
    with contextlib.suppress(EOFError, ConnectionError):
        while stays:
            done = _do(*pickle.loads(connection.recv_bytes()))
            connection.send_bytes(msgspec.msgpack.encode(done))
            stays = done.stays


def _do(work: Callable[[], str], limits: _Limits) -> _Done:
    pages, resident = _memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    signal.setitimer(signal.ITIMER_PROF, limits.seconds)
    began_s = time.process_time()
    text = reason = None
    try:
        text = work()
    except Exception as error:
        reason = reason_of(error)
    signal.setitimer(signal.ITIMER_PROF, 0)
    left_s = limits.seconds - (time.process_time() - began_s)  # the timer may miss work between two of its ticks
    if text is not None and len(text) > limits.characters:
        text, reason = None, f"it writes {len(text)} characters; at most {limits.characters} are allowed."
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    _, now = _memory()
    return _Done(text, reason, left_s, stays=now - resident < _KEPT_BYTES)


def _memory() -> tuple[int, int]:
    """Return bytes of address space and of memory."""
    pages, resident, *_ = Path("/proc/self/statm").read_text().split()
    return int(pages) * resource.getpagesize(), int(resident) * resource.getpagesize()
