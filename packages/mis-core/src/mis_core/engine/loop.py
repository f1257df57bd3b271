"""The engine's thread: takes requests from any thread, keeps the device busy, and hands out answers.

While one step runs, the next one is planned and queued behind it, so the device never waits for the
host; and never more than one, so that a new request gets into the step after the next. What comes after a
long step (`pace`) is planned when that is over, unless nothing is gained by more requests: whoever was answered
may have asked again by then.
"""

import dataclasses
import itertools
import logging
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

import jax

from mis_core.engine.pace import Pace
from mis_core.errors import EngineUnavailable
from mis_core.requests import EngineOutput, GenerateRequest, NewToken, ScoreRequest
from mis_core.runner.memory import Resident
from mis_core.runner.runner import Runner, Running
from mis_core.scheduler.plan import StepPlan
from mis_core.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

_UNDER_WAY = 2

Listener = Callable[[Sequence[tuple[int, NewToken | Exception]]], None]
"""Gets, once in each step, what comes of the sequences that it listens to: the key of each with its next token, or why
no more come. It is called in the engine's thread, so it must not wait."""

_Request = TypeVar("_Request", ScoreRequest, GenerateRequest)
_Waiting = Callable[[Sequence[tuple[int, Any]]], None]  # a `Listener`, or what sets a future


class EngineLoop:
    """Runs a scheduler's steps on a runner. Thread-safe.

    Attributes:
        progress: A number that grows while the device works; needs no lock, so that a stalled engine still answers.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler) -> None:
        self._runner: Runner | None = runner
        self._scheduler = scheduler
        self._changed = threading.Condition()
        self._listeners: dict[int, tuple[_Waiting, int]] = {}
        self._ids = itertools.count()
        self._is_closing = False
        self.progress = 0
        self._counts = Counter(steps=0, new_tokens=0, step_tokens=0, requests=0, items=0)
        self._counts.update(generations=0, written_tokens=0)
        here = copy_context()  # what steps are compiled for, see `mis_kernels.target`
        self._thread = threading.Thread(target=here.run, args=(self._run, runner), name="mis-engine", daemon=True)
        self._thread.start()

    def submit(self, request: ScoreRequest) -> Future[EngineOutput]:
        """Queue a request. Cancelling the future frees what it holds.

        Raises:
            EngineUnavailable: the engine is closed.
        """
        future: Future[EngineOutput] = Future()

        def listen(answers: Sequence[tuple[int, EngineOutput | Exception]]) -> None:
            ((_, answer),) = answers
            with suppress(InvalidStateError):  # cancelled meanwhile
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

        cancel = self._begin(self._scheduler.submit, request, listen, 0, requests=1, items=request.num_items)
        future.add_done_callback(lambda done: cancel() if done.cancelled() else None)
        return future

    def generate(self, request: GenerateRequest, listener: Listener, key: int) -> Callable[[], None]:
        """Queue a sequence; return what ends it early, which frees what it holds.

        Args:
            request: The prompt, and how it goes on.
            listener: Gets its tokens; may listen to others, too.
            key: Comes with each of them.

        Raises:
            EngineUnavailable: the engine is closed.
        """
        return self._begin(self._scheduler.generate, request, listener, key, generations=1)

    def flush(self) -> int:
        """Forget every prefix that no request holds; return how many pages that freed."""
        with self._changed:
            return self._scheduler.flush()

    def statistics(self) -> dict[str, float]:
        """Return counts since the start, and the cache's state."""
        with self._changed:
            waiting = {"waiting_requests": self._scheduler.num_requests}
            return {**self._counts, **waiting, **dataclasses.asdict(self._scheduler.cache)}

    def check(self) -> None:
        """Assert that every page is free, cached or held by a request."""
        with self._changed:
            self._scheduler.check()

    def memory(self) -> dict[str, Resident]:
        """Return what stays on the devices, by name; empty when closed."""
        return self._runner.memory() if self._runner else {}

    def close(self) -> None:
        """Stop after the step under way; requests that are not answered fail."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()
        self._runner = None

    def _begin(
        self, submit: Callable[[int, _Request], None], request: _Request, listener: _Waiting, key: int, **counts: int
    ) -> Callable[[], None]:
        """Hand a request to the scheduler, and what comes of it to a listener; return what ends it early."""
        with self._changed:
            if self._is_closing:
                raise EngineUnavailable("The engine is closed.")
            number = next(self._ids)
            submit(number, request)
            self._listeners[number] = listener, key
            self._counts.update(counts)
            self._changed.notify()
        return lambda: self._cancel(number)

    def _cancel(self, number: int) -> None:
        with self._changed:
            self._listeners.pop(number, None)
            self._scheduler.cancel(number)

    def _run(self, runner: Runner) -> None:
        try:
            self._step_on(runner)
        finally:  # whatever ends the thread, nobody waits for it
            with self._changed:
                self._is_closing = True
            self._fail(lambda: [*self._listeners], "The engine is closed.")

    def _step_on(self, runner: Runner) -> None:
        under_way: deque[Running] = deque()
        pace = Pace()
        while not self._is_closing or under_way:
            waits = pace.runs_long and not self._makes_a_step()
            plan = None if waits else self._next(wait=not under_way)
            try:
                if plan is not None:
                    with self._annotated(plan):
                        under_way.append(runner.run(plan))
                    size = runner.size_of(plan)
                    kind = size, plan.is_decoding, plan.dense_mask, plan.is_mixed
                    pace.begin(kind)
                    self._counts["step_tokens"] += size
                if under_way and (plan is None or len(under_way) == _UNDER_WAY):
                    awaited = self._finish(under_way.popleft())
                    grace_s = pace.end()
                    if waits:
                        self._await(awaited, grace_s)
            except Exception as error:  # the device's memory may be lost: whoever used it starts again
                logger.exception("A step failed.")
                under_way.clear()
                pace.forget()
                self._fail(self._scheduler.abort, f"The engine lost this request: {type(error).__name__}.")
                runner.reset()

    def _makes_a_step(self) -> bool:
        with self._changed:  # others cancel meanwhile
            return self._scheduler.makes_a_step

    def _await(self, requests: int, grace_s: float) -> None:
        """Wait until there were so many requests since the start, or more are of no use, but not for long."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closing or self._num_requests >= requests or self._scheduler.makes_a_step, grace_s
            )

    def _next(self, *, wait: bool) -> StepPlan | None:
        """Plan a step. None: nothing to plan now, or, if `wait`, the engine closes."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._is_closing or self._scheduler.has_work)
            if self._is_closing:
                return None
            with jax.profiler.TraceAnnotation("mis.plan"):
                plan = self._scheduler.next_step()
            if plan is not None:
                self._counts["steps"] += 1
                self._counts["new_tokens"] += plan.new_tokens
            return plan

    def _annotated(self, plan: StepPlan) -> jax.profiler.StepTraceAnnotation:
        """Mark a step's launch in profiles, with the requests that have items scored in it."""
        return jax.profiler.StepTraceAnnotation(
            "mis.step",
            step_num=int(self._counts["steps"]),
            tokens=plan.new_tokens,
            items=sum(len(reading.rows) for reading in plan.readings),
            requests=" ".join(map(str, dict.fromkeys(reading.owner.id for reading in plan.readings))),
        )

    def _finish(self, running: Running) -> int:
        """Answer; return how many requests there will have been if all who are answered ask again."""
        values = running.wait()
        self.progress += 1
        with self._changed, jax.profiler.TraceAnnotation("mis.answer"):
            requests = self._num_requests
            answers: dict[_Waiting, list[tuple[int, EngineOutput | NewToken]]] = defaultdict(list)
            for number, output in self._scheduler.complete(running.plan, values):
                listener, key = self._listeners.pop(number) if output.is_last else self._listeners[number]
                answers[listener].append((key, output))
                requests += output.is_last
                self._counts["written_tokens"] += isinstance(output, NewToken)
        for listener, outputs in answers.items():
            listener(outputs)
        return requests

    @property
    def _num_requests(self) -> int:
        return self._counts["requests"] + self._counts["generations"]

    def _fail(self, numbers: Callable[[], list[int]], message: str) -> None:
        """Fail the requests that a function names, which is called under the lock."""
        with self._changed:
            failed = [self._listeners.pop(number) for number in numbers() if number in self._listeners]
        for listener, key in failed:
            listener([(key, EngineUnavailable(message))])
