"""Any target, with a limit on how long a call may take."""

import threading
from concurrent.futures import Future
from queue import SimpleQueue

from mis_bench.targets.base import About, BlockingTarget, CallFailed, Reply
from mis_bench.workload import Workload


class TimeLimited:
    """A target whose calls fail with `timeout` after a while.

    Every caller's thread has a helper that does its calls, so a call costs two hand-overs between threads, some tens
    of microseconds. A call that is late cannot be stopped: its helper is left behind, and the caller gets another.
    """

    def __init__(self, target: BlockingTarget, seconds: float) -> None:
        self._target, self._seconds = target, seconds
        self._callers = threading.local()

    @property
    def about(self) -> About:
        """What it is."""
        return self._target.about

    def score(self, workload: Workload) -> Reply:
        """Score a workload.

        Raises:
            CallFailed: `timeout`, or whatever the target itself raises.
        """
        helper: _Helper | None = getattr(self._callers, "helper", None)
        if helper is None:
            helper = self._callers.helper = _Helper(self._target)
        answer = helper.ask(workload)
        try:
            return answer.result(self._seconds)
        except TimeoutError:
            if answer.done():
                raise  # the target's own
            helper.leave()
            self._callers.helper = None
            raise CallFailed("timeout", f"No answer within {self._seconds:g} s.") from None

    def forget(self) -> None:
        """Make it compute the next query anew."""
        self._target.forget()

    def counts(self) -> dict[str, float]:
        """Return what it counts about itself."""
        return self._target.counts()

    def close(self) -> None:
        """Free what it holds."""
        self._target.close()


class _Helper:
    """A thread that does calls; it ends with its caller's thread, or when it is left."""

    def __init__(self, target: BlockingTarget) -> None:
        self._asked: SimpleQueue[tuple[Workload, Future[Reply]] | None] = SimpleQueue()
        threading.Thread(target=_serve, args=(target, self._asked), name="mis-bench-call", daemon=True).start()

    def ask(self, workload: Workload) -> "Future[Reply]":
        answer: Future[Reply] = Future()
        self._asked.put((workload, answer))
        return answer

    def leave(self) -> None:
        self._asked.put(None)

    def __del__(self) -> None:
        self.leave()


def _serve(target: BlockingTarget, asked: "SimpleQueue[tuple[Workload, Future[Reply]] | None]") -> None:
    while (each := asked.get()) is not None:
        workload, answer = each
        try:
            answer.set_result(target.score(workload))
        except BaseException as error:  # the caller's to handle, whatever it is
            answer.set_exception(error)
