"""The engine process's end of the socket."""

import contextlib
import socket
import threading

from mis_core.process.wire import HEADER_BYTES, ToEngine, decode_for_engine, payload_size


class Channel:
    """Whole messages over a stream socket, blocking; any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._stream = connection.makefile("rb")

    def send(self, frame: bytes) -> None:
        """Write one encoded message.

        Raises:
            OSError: the front is gone.
        """
        with self._sending:
            self._connection.sendall(frame)

    def post(self, frame: bytes) -> None:
        """Write one encoded message; a front that is gone ends this process through its reader."""
        with contextlib.suppress(OSError):
            self.send(frame)

    def receive(self) -> ToEngine | None:
        """Read one message, or None when the front is gone.

        Raises:
            MalformedFrame: what arrived is not a message.
        """
        header = self._read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return None
        size = payload_size(header)
        payload = self._read(size)
        return decode_for_engine(payload) if len(payload) == size else None

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except ConnectionError:  # the front left answers unread
            return b""
