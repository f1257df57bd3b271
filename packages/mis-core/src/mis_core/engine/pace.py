"""When the step behind the running one is planned: as late as is safe, so that all who ask meanwhile are in it.

A step that is planned as soon as another runs leaves out whoever asks later. Callers that wait for their answers before
they ask again then fall into three groups: of the step that runs, of the one behind it, and those who wait. Planned
late, there are two, and each step has half as many more of them.
"""

import statistics
import time
from collections import deque
from collections.abc import Hashable

WORTH_S = 0.05
"""Steps that take less are planned at once: those of accelerators, where a host that is late leaves the device idle."""

_REMEMBERED = 8
_BEFORE_END = 4  # plan when a quarter of the running step is left


class Pace:
    """Expects of a step what the shortest of the last ones of its kind took. For one thread."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, deque[float]] = {}
        self._begins: deque[tuple[Hashable, float]] = deque()
        self._host: deque[float] = deque(maxlen=_REMEMBERED)

    def begin(self, kind: Hashable, host_s: float) -> None:
        """Take note that a step is started, or queued behind the one that runs; `host_s` was spent on planning it."""
        self._begins.append((kind, time.perf_counter()))
        self._host.append(host_s)

    def end(self) -> None:
        """Take note that the running step is done; one that was queued behind it begins."""
        now = time.perf_counter()
        kind, began = self._begins.popleft()
        self._seconds.setdefault(kind, deque(maxlen=_REMEMBERED)).append(now - began)
        self._begins = deque((kind, now) for kind, _ in self._begins)

    def forget(self) -> None:
        """Take note that steps under way are lost."""
        self._begins.clear()

    def time_to_plan(self) -> float | None:
        """Return until when planning can wait, as `time.perf_counter` tells it.

        None where nothing runs, or it is not known how long what runs will take.
        """
        if len(self._begins) != 1:
            return None
        kind, began = self._begins[0]
        expected = min(self._seconds.get(kind, [0.0]))
        if expected < WORTH_S:
            return None
        return began + expected - max(expected / _BEFORE_END, 2 * statistics.median(self._host))
