"""Small work that no reply waits for."""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

_DELAY_S = 0.5
_MOST = 64  # requests' work at once: a few milliseconds of the event loop


class Afterwards:
    """Does small work in batches, soon after it was given.

    Counting and logging one request takes a sixth of its CPU time, since their code has left the processor's caches
    when it is needed again; for the next of a batch it is still there.
    """

    def __init__(self) -> None:
        self._work: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Call a function within half a second, on the event loop."""
        self._work.append(work)
        if len(self._work) == _MOST:
            asyncio.get_running_loop().call_soon(self.finish)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_S, self.finish)

    def finish(self) -> None:
        """Do now what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        works, self._work = self._work, []
        for work in works:
            try:
                work()
            except Exception:
                logger.exception("Counting or logging a request failed.")
