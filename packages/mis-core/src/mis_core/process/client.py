"""The front's side of the engine: starts its process, sends it requests, and restarts it when it ends.

Requests are multiplexed over one socket: any number may wait, each in its own coroutine. Knows neither
HTTP nor JAX; `wire` defines the messages.
"""

import asyncio
import contextlib
import itertools
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

from mis_core.config import EngineConfig
from mis_core.errors import EngineUnavailable, MisError
from mis_core.process.engine_process import STOP_S, EngineFault, EngineProcess, Reader, RequestLost
from mis_core.process.quarantine import Quarantine
from mis_core.process.wire import Generate, MalformedFrame, Operate, Operation, Ready, Score
from mis_core.requests import EngineOutput, GenerateRequest, ScoreRequest

__all__ = ["ENGINE_COMMAND", "EngineClient", "EngineFault", "Reader", "RequestLost"]

logger = logging.getLogger(__name__)

ENGINE_COMMAND = (sys.executable, "-P", "-m", "mis_core.process.main")

_FIRST_BACKOFF_S = 0.5
_LAST_BACKOFF_S = 30.0
_STABLE_S = 60.0  # an engine that lived this long failed for a new reason: back to the shortest wait
_SILENCE_S = 30.0  # the process answers questions about itself within milliseconds, whatever its device does


class EngineClient:
    """An engine process, kept alive. Use it as an async context manager, within one event loop.

    Entering starts the process and returns at once; `wait_ready` waits for the model.

    Attributes:
        info: What the engine said about its model when it was last ready; None before it was ready for the first time.
        statistics: Its counts as it last reported them, which it is asked for every few seconds.
    """

    def __init__(self, config: EngineConfig, *, command: Sequence[str] = ENGINE_COMMAND) -> None:
        """Prepare; nothing starts yet.

        Args:
            config: Sent to the engine process.
            command: Starts the engine process; the number of a socket to inherit is appended.
        """
        self._config = config
        self._command = tuple(command)
        self._process: EngineProcess | None = None
        self.info: Ready | None = None
        self.statistics: dict[str, float] = {}
        self._ids = itertools.count(1)
        self._quarantine = Quarantine()
        self._starts = 0
        self._stop_s = STOP_S

    async def __aenter__(self) -> "EngineClient":
        self._first_ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._supervision = asyncio.create_task(self._supervise(), name="engine supervision")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def ready(self) -> bool:
        """Whether the engine can answer now."""
        return self._process is not None

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for an answer."""
        return self._process.in_flight if self._process is not None else 0

    @property
    def restarts(self) -> int:
        """How often the engine process was restarted."""
        return max(self._starts - 1, 0)

    async def wait_ready(self) -> Ready:
        """Wait until the engine is ready for the first time.

        Raises:
            ModelError: the engine refused the model or an option; one line says why.
            EngineUnavailable: the engine process failed or ended before it was ready.
        """
        return await asyncio.shield(self._first_ready)

    async def score(self, request: ScoreRequest) -> EngineOutput:
        """Compute the label logits of a validated request. Cancelling the caller frees the engine's work.

        Raises:
            EngineUnavailable: the engine is starting or has ended, perhaps before it answered.
            RequestError: only the engine could see what is wrong with the request.
            EngineFault: the engine failed on this request.
            RequestRefused: the engine process ended, or its device failed, twice while it worked on this request.
        """
        return await self._compute(Score(next(self._ids), request))

    async def generate(self, request: GenerateRequest, reader: Reader) -> None:
        """Generate a validated sequence, until it has ended. Cancelling the caller frees the engine's work.

        Args:
            request: The sequence.
            reader: Called in the event loop with each token as it comes; returns whether it wants another one. What it
                raises ends the sequence and is raised here.

        Raises:
            EngineUnavailable, RequestError, EngineFault, RequestRefused: as `score`.
        """
        await self._compute(Generate(next(self._ids), request), reader)

    async def operate(self, action: Operation, argument: str | None = None) -> dict[str, float]:
        """Do something to the engine as a whole; return numbers by name, see `wire.Operated`.

        Args:
            action: `statistics`, `flush_cache`, `start_profile` or `stop_profile`, which returns when it is written.
            argument: Of `start_profile`, a folder on the engine's machine.

        Raises:
            EngineUnavailable: the engine is starting or has ended.
            RequestError: `profile_under_way` or `no_profile`.
        """
        return await self._operate(self._running(), action, argument)

    async def _operate(
        self, process: EngineProcess, action: Operation, argument: str | None = None
    ) -> dict[str, float]:
        values = await process.operate(Operate(next(self._ids), action, argument))
        if action == "statistics":
            self.statistics = values
        return values

    async def _compute(self, message: Score | Generate, reader: Reader | None = None) -> Any:
        async with self._quarantine.watched(message.request):
            try:
                return await self._running().compute(message, reader)
            except RequestLost:
                self._quarantine.blame([message.request])
                raise

    def _running(self) -> EngineProcess:
        if self._process is None:
            raise EngineUnavailable("The engine is not ready.")
        return self._process

    async def close(self, within_s: float = STOP_S) -> None:
        """End the engine process and fail what is in flight. Closing twice is fine.

        Args:
            within_s: Seconds that the process has to exit by itself, at most five.
        """
        self._stop_s = min(within_s, STOP_S)
        self._supervision.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._supervision
        self._fail_start(EngineUnavailable("The engine was closed."))

    async def _supervise(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            began = time.monotonic()
            try:
                await self._live_once()
            except Exception as error:  # whatever it is, the server must not answer 503 for ever
                if not isinstance(error, MisError):
                    logger.exception("The supervision of the engine process failed.")
                    error = EngineUnavailable("The engine process was lost; the log says how.")
                if self._fail_start(error):
                    return
                if time.monotonic() - began > _STABLE_S:
                    backoff_s = _FIRST_BACKOFF_S
                logger.error("%s Restarting it in %g s.", error.message, backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)

    async def _live_once(self) -> None:
        """Run one engine process until it ends, as an error says: `ModelError` if it refused the model."""
        process = await EngineProcess.start(self._command)
        self._starts += 1
        try:
            self.info = await process.configure(self._config)
            self._process = process
            if not self._first_ready.done():
                self._first_ready.set_result(self.info)
            watching = asyncio.create_task(self._kill_if_silent(process), name="engine heartbeat")
            try:
                await process.deliver_answers()
            finally:
                watching.cancel()
        except MalformedFrame as error:
            raise EngineUnavailable(f"The engine process broke the protocol: {error}") from None
        finally:
            self._process = None
            self._quarantine.blame(process.requests)
            await process.stop(self._stop_s)

    async def _kill_if_silent(self, process: EngineProcess) -> None:
        """Kill a process that is frozen as a whole; one whose device hangs exits by itself, see `watchdog_timeout`."""
        silence_s = min(_SILENCE_S, self._config.watchdog_timeout)
        with contextlib.suppress(EngineUnavailable):  # it ended by itself
            while True:
                await asyncio.sleep(silence_s / 4)
                try:
                    async with asyncio.timeout(silence_s):
                        await self._operate(process, "statistics")
                except TimeoutError:
                    logger.critical("The engine process did not answer for %g s and is killed.", silence_s)
                    process.kill()
                    return

    def _fail_start(self, error: MisError) -> bool:
        if self._first_ready.done():
            return False
        self._first_ready.set_exception(error)
        self._first_ready.exception()  # mark it as retrieved: nobody has to wait for it
        return True
