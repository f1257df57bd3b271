"""Whether the running step takes long, so that it pays to plan the next one when it is over: with all who ask again.

A step that is planned while another runs leaves out whoever is answered by that one. Callers that wait for answers
before they ask again then fall into two groups, each in every second step. Planned afterwards, one step holds them all.
"""

import time
from collections import deque
from collections.abc import Hashable

WORTH_S = 0.05
"""A step that takes less is short: those of accelerators, which would be idle while the next is planned."""

_REMEMBERED = 8
_GRACE = 1 / 32


class Pace:
    """Expects of a step what the shortest of the last ones of its kind took. For one thread."""

    def __init__(self) -> None:
        self._seconds: dict[Hashable, deque[float]] = {}
        self._begins: deque[tuple[Hashable, float]] = deque()

    def begin(self, kind: Hashable) -> None:
        """Take note that a step is started, or queued behind the one that runs."""
        self._begins.append((kind, time.perf_counter()))

    def end(self) -> float:
        """Take note that the running step is done; one that was queued behind it begins.

        Returns:
            Seconds that may be spent on waiting for those whom it answered: a small part of what it took.
        """
        now = time.perf_counter()
        kind, began = self._begins.popleft()
        self._seconds.setdefault(kind, deque(maxlen=_REMEMBERED)).append(now - began)
        self._begins = deque((kind, now) for kind, _ in self._begins)
        return (now - began) * _GRACE

    def forget(self) -> None:
        """Take note that steps under way are lost."""
        self._begins.clear()

    @property
    def runs_long(self) -> bool:
        """Whether one step runs alone, and is of a kind that takes long."""
        return len(self._begins) == 1 and min(self._seconds.get(self._begins[0][0], [0.0])) >= WORTH_S
