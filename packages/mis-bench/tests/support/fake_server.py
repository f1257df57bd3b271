"""A server whose replies a test decides."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeServer:
    """A server whose replies a test decides.

    `routes[path]` is a reply, `(status, text)`, `(status, text, headers)`, or a function of the body.
    """

    def __init__(self) -> None:
        self.routes: dict[str, Any] = {
            "/health": {},
            "/v1/models": {"data": [{"id": "fake"}]},
            "/version": {"version": "9"},
        }
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake.answer(self)

            def do_POST(self) -> None:
                fake.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        size = int(handler.headers.get("content-length") or 0)
        body = json.loads(handler.rfile.read(size) or b"{}")
        self.bodies.append((handler.path, body))
        self.headers.append(dict(handler.headers))
        reply = self.routes.get(handler.path, (404, "no such route"))
        if callable(reply):
            reply = reply(body)
        if reply is None:  # say nothing and hang up
            handler.close_connection = True
            return
        status, text, *headers = reply if isinstance(reply, tuple) else (200, json.dumps(reply))
        handler.send_response(status)
        for name, value in headers[0].items() if headers else ():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(text.encode())))
        handler.end_headers()
        handler.wfile.write(text.encode())

    def asked(self, path: str) -> list[dict[str, Any]]:
        return [body for where, body in self.bodies if where == path]
