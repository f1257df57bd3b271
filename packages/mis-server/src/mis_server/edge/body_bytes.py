"""How many bytes of bodies may be under way: from before they are read until their requests are answered."""

import contextlib
from collections.abc import Iterator

from mis_core.errors import RequestError
from mis_server.edge.memory import allowed_memory

_SHARE_OF_MEMORY = 10  # the default is this part of it


class BodyRoom:
    """What one body holds, inside `with BodyBytes.room()`."""

    def __init__(self, bodies: "BodyBytes") -> None:
        self._bodies = bodies
        self._held = 0
        self._received = 0

    def receive(self, count: int) -> None:
        """Receive so many bytes; hold more if they were not announced.

        Raises:
            RequestError: `queue_full`.
        """
        self._received += count
        self.hold(self._received)

    def hold(self, size: int) -> None:
        """Hold at least so many bytes.

        Raises:
            RequestError: `queue_full`.
        """
        if size > self._held:
            self._bodies.check(size, self._held)
            self._bodies.used += size - self._held
            self._held = size

    def leave(self) -> None:
        """Hold nothing any more."""
        self._bodies.used -= self._held
        self._held = 0


class BodyBytes:
    """Shares the memory for bodies out: each may hold at most half of what the others leave.

    However many large bodies arrive, as slowly as they like, there is room for smaller ones; each further body only has
    to be smaller. This is the dynamic threshold by which switches share buffers (Choudhury, Hahne, IEEE/ACM
    Transactions on Networking 6(2), 1998).

    Attributes:
        most: What is shared; at least twice the largest body, so that one that is alone always fits.
        used: What is held now.
    """

    def __init__(self, most: int | None, largest: int) -> None:
        """Share out a number of bytes; None: a tenth of the memory that this process may use, or twice the largest."""
        self.most = max(2 * largest, allowed_memory() // _SHARE_OF_MEMORY) if most is None else most
        self.used = 0

    @contextlib.contextmanager
    def room(self, announced: int | None) -> Iterator[BodyRoom]:
        """Surround all that is done with a body.

        Args:
            announced: Its length, as its headers say; None where they don't.

        Raises:
            RequestError: on entering; `queue_full`, before any of the body is read.
        """
        room = BodyRoom(self)
        room.hold(announced or 0)
        try:
            yield room
        finally:
            room.leave()

    def check(self, size: int, held: int) -> None:
        """Refuse a body of this size, of which some is held.

        Raises:
            RequestError: `queue_full`.
        """
        free = self.most - (self.used - held)
        if 2 * size > free:
            raise RequestError(
                "queue_full",
                f"{self.used - held} bytes of other bodies are under way, so a body may have {max(free, 0) // 2} now. "
                "Try again later, or send a smaller one.",
            )
