"""Consistent hashing with bounded load, as HAProxy has it.

`balance hash`, `hash-type consistent` and `hash-balance-factor` of its configuration are meant. Its manual
(docs.haproxy.org/2.6/configuration.html) describes the rule; where points lie and how places are counted was read in
its source (`src/lb_chash.c`). `cluster/test_simulation.py` compares this with HAProxy, key by key.
"""

import bisect
from collections.abc import Callable, Sequence

POINTS = 16
"""Points on the ring for each unit of a server's weight."""

_POINTS_OF_A_SERVER = 256 * POINTS  # servers' numbers are that far apart; 256 is the largest weight
_WORD = 0xFFFFFFFF


def avalanche(value: int) -> int:
    """Return HAProxy's hash of 32 bits: Bob Jenkins's (burtleburtle.net/bob/hash/integer.html), times a prime."""
    value = (value + 0x7ED55D16 + (value << 12)) & _WORD
    value = (value ^ 0xC761C23C ^ (value >> 19)) & _WORD
    value = (value + 0x165667B1 + (value << 5)) & _WORD
    value = ((value + 0xD3A2646C) ^ (value << 9)) & _WORD
    value = (value + 0xFD7046C5 + (value << 3)) & _WORD
    value = (value ^ 0xB55A4F09 ^ (value >> 16)) & _WORD
    return value * 3221225473 & _WORD


def key_of(text: str) -> int:
    """Return HAProxy's hash of what is balanced by, with `hash-type consistent`: sdbm, and `avalanche` of it."""
    value = 0
    for byte in text.encode():
        value = (byte + (value << 6) + (value << 16) - value) & _WORD
    return avalanche(value)


class Ring:
    """Which server a key goes to. Servers are numbered from 0, in the order of the configuration."""

    def __init__(self, weights: Sequence[int], balance_factor: int = 0) -> None:
        """Put all servers on the ring.

        Args:
            weights: Weight of each server, 1 to 256.
            balance_factor: Most requests of a server in percent of the average, above 100; 0: as many as come.

        Raises:
            ValueError: a weight or the factor is outside its range.
        """
        if not all(1 <= weight <= 256 for weight in weights):
            raise ValueError("A weight must be between 1 and 256.")
        if balance_factor and balance_factor <= 100:
            raise ValueError("balance_factor must be above 100, or 0.")
        self._weights = [weight * POINTS for weight in weights]
        self._factor = balance_factor
        self._up = [True] * len(weights)
        self._lay_out()

    def set_up(self, server: int, is_up: bool) -> None:
        """Put a server on the ring or take it off, as a health check does; nothing of the others moves."""
        if self._up[server] != is_up:  # of 1,000 servers, laying out takes seconds
            self._up[server] = is_up
            self._lay_out()

    def choose(self, key: int, served: Sequence[int], *, avoid: int | None = None) -> int | None:
        """Return the server of a request.

        Args:
            key: Its hash, of 32 bits.
            served: Requests that each server has now.
            avoid: A server that just refused it; another is taken if there is one.

        Returns:
            The first server from the nearest point on that has room and is not avoided; None if none is up.
        """
        points, owners = self._points, self._owners
        if not points:
            return None
        at = bisect.bisect_left(points, key) % len(points)
        before = at - 1
        if (key - points[before]) & _WORD <= (points[at] - key) & _WORD:
            at = before
        if not self._factor and avoid is None:
            return owners[at]
        has_room = self._room(served)
        for step in range(len(points)):
            owner = owners[(at + step) % len(points)]
            if owner != avoid and has_room(owner):
                return owner
        return owners[at]

    def home(self, key: int) -> int | None:
        """Return the server of a key if all have room; None if none is up."""
        factor, self._factor = self._factor, 0
        try:
            return self.choose(key, ())
        finally:
            self._factor = factor

    def _lay_out(self) -> None:
        """Lay out the points of the servers that are up, and what of the places each has."""
        pairs = sorted(
            (avalanche((server + 1) * _POINTS_OF_A_SERVER + point), server)
            for server, weight in enumerate(self._weights)
            if self._up[server]
            for point in range(weight)
        )
        self._points, self._owners = [point for point, _ in pairs], [server for _, server in pairs]
        self._before, self._total = [0] * len(self._weights), 0
        for server, weight in enumerate(self._weights):
            self._before[server] = self._total
            self._total += weight if self._up[server] else 0

    def _room(self, served: Sequence[int]) -> Callable[[int], bool]:
        """Return whether a server may get one more: the places are shared out by weight, each at least one."""
        if not self._factor:
            return lambda _: True
        room = ((sum(served) + 1) * self._factor + 99) // 100
        each, rest = divmod(room, self._total)

        def has_room(server: int) -> bool:
            weight, before = self._weights[server], self._before[server]
            share = (before + weight) * rest // self._total - before * rest // self._total
            return served[server] < max(weight * each + share, 1)

        return has_room
