"""A replica that does what a test says, where a real one would need luck: end in the middle, stream at a given pace."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_WAIT_S = 60


@dataclass
class PretendedReplica:
    """Answers `/ready` and, as `behave` says, requests with a body.

    Attributes:
        url: Base URL.
        bodies: What has arrived.
        behave: Called with the handler of a request whose body was read; default: an empty object.
        go_on: An event for `behave` to wait for.
        lost: Set when a client was seen to leave.
    """

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    behave: Callable[[Any], None] = lambda handler: handler.reply(b"{}")
    go_on: threading.Event = field(default_factory=threading.Event)
    lost: threading.Event = field(default_factory=threading.Event)


@contextmanager
def pretended_replica() -> Iterator[PretendedReplica]:
    """Run a replica until the block ends."""
    replica = PretendedReplica()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65536  # head and body at once: a check reads no more than it must

        def do_GET(self) -> None:
            self.reply(json.dumps({"status": "ready"}).encode())

        def do_POST(self) -> None:
            replica.bodies.append(self.rfile.read(int(self.headers["content-length"])))
            replica.behave(self)

        def reply(self, content: bytes, status: int = 200, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        replica.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield replica
        finally:
            replica.go_on.set()
            server.shutdown()
            thread.join()


def hang_up(handler: Any) -> None:
    """Close the connection without an answer, as a process does that ends."""
    handler.close_connection = True


def stream_in_two(replica: PretendedReplica) -> Callable[[Any], None]:
    """Send one event, wait until the test has read it, send another."""

    def behave(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for content in (b"data: one\n\n", b"data: two\n\n"):
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
            handler.wfile.flush()
            assert replica.go_on.wait(_WAIT_S), "the first event did not arrive"
        handler.wfile.write(b"0\r\n\r\n")

    return behave


def wait_for_the_client_to_leave(replica: PretendedReplica) -> Callable[[Any], None]:
    """Answer nothing until the connection is closed from the other side."""

    def behave(handler: Any) -> None:
        handler.connection.settimeout(_WAIT_S)
        try:
            left = handler.connection.recv(1) == b""
        except ConnectionResetError:
            left = True
        if left:
            replica.lost.set()
        handler.close_connection = True

    return behave
