"""The life of the front process: listen, start the engine, serve, drain."""

import asyncio
import contextlib
import errno
import gc
import logging
import math
import signal
import socket
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from mis_core.errors import ConfigError
from mis_core.process.heap import return_freed_memory, without_collection
from mis_core.process.wire import Ready
from mis_server.edge.memory import return_memory_between
from mis_server.edge.tls import tls_context
from mis_server.model import running_model
from mis_server.settings import ServerConfig

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from mis_server.service import HttpService

logger = logging.getLogger(__name__)

_FAULTS_OF_PORTS = (errno.EADDRINUSE, errno.EACCES)
_KEEP_ALIVE_S = 75  # longer than the usual 60 s of load balancers, so that they close first and no request is lost


async def serve(settings: ServerConfig) -> None:
    """Serve until SIGTERM or SIGINT, then finish the requests under way. A second SIGINT stops at once.

    HTTP is served from the start, with 503 until the engine is ready.

    Raises:
        asyncio.CancelledError: SIGTERM arrived before HTTP was served.
        ConfigError: the address or a TLS file cannot be used.
        ModelError: the model cannot be served as it stands.
        EngineUnavailable: the engine could not start.
    """
    began = time.monotonic()
    return_freed_memory()
    _cancel_on_sigterm()
    tls_context(settings)  # reports errors before the model is loaded
    with listen(settings) as listener:
        async with running_model(settings.engine, names=settings.model_names, limits=settings.limits) as model:
            with without_collection():  # a quarter of a second, in which the engine starts
                from mis_server.app import create_app

            app = create_app(model, settings)
            http = _HttpServer(uvicorn_config(settings, app))
            serving = asyncio.create_task(http.serve(sockets=[listener]))
            starting = asyncio.create_task(model.wait_ready())
            trimming = asyncio.create_task(return_memory_between(), name="memory")
            try:
                await asyncio.wait((serving, starting), return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    info = starting.result()
                    # What stays for ever is looked at for the last time: to look at all of it again, whenever
                    # requests have made many objects, would hold up the event loop.
                    gc.collect()
                    gc.freeze()
                    took = time.monotonic() - began
                    if not http.should_exit:  # a stopped server finishes its replies, but has closed its listener
                        url = _url(listener, "http" if settings.ssl_certfile is None else "https")
                        lines = _summary(settings, app.state.service, info, url)
                        logger.info("Ready at %s after %.1f s.\n%s", url, took, lines)
                    await serving
                    logger.info("Stopped.")
            finally:
                starting.cancel()
                trimming.cancel()
                http.should_exit = True
                await serving
                # The engine gets the rest of the shutdown time; no request is waiting for it any more.
                await model.client.close(max(0.0, http.stop_requested + settings.shutdown_timeout - time.monotonic()))


def _cancel_on_sigterm() -> None:
    """Until HTTP is served, SIGTERM only has to stop the engine process."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


class _HttpServer(uvicorn.Server):
    """Uvicorn, except that it does not raise the signal again that stopped it: a drained server exits with 0.

    Attributes:
        stop_requested: When the first signal arrived, by the monotonic clock; infinity before that.
    """

    stop_requested = math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Record the time of the first signal."""
        self.stop_requested = min(self.stop_requested, time.monotonic())
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield  # the handlers stay: the engine is not closed yet


def uvicorn_config(settings: ServerConfig, app: "Starlette") -> uvicorn.Config:
    """Return the configuration of the HTTP server.

    Raises:
        ConfigError: a TLS file cannot be used.
    """
    tls = tls_context(settings)
    return uvicorn.Config(
        app,
        http="mis_server.edge.protocol:Protocol",  # imported by uvicorn, when the engine has started
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # only the access log uses the client's address
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=settings.shutdown_timeout,
        ssl_context_factory=None if tls is None else lambda *_defaults: tls,
    )


def listen(settings: ServerConfig) -> socket.socket:
    """Return a socket that listens on the configured address.

    Raises:
        ConfigError: the address cannot be used; names the option, host or port.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        # Resolved first: given a name that cannot be encoded, create_server leaves its socket open.
        (*_, address), *_ = socket.getaddrinfo(settings.host, settings.port, family, socket.SOCK_STREAM)
        listener = socket.create_server(address, family=family, backlog=2048)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # Python appends the address
        message = f"Cannot listen on {settings.host}, port {settings.port}: {reason}."
        raise ConfigError(message, "port" if error.errno in _FAULTS_OF_PORTS else "host") from None
    except UnicodeError:  # characters or lengths that are not allowed in a name
        raise ConfigError(f"{settings.host[:80]!r} is not a host name.", "host") from None
    # Connections inherit it. asyncio sets it only on sockets that were created with their protocol, unlike these;
    # without it, a reply waits 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _summary(settings: ServerConfig, service: "HttpService", info: Ready, url: str) -> str:
    """Return what an operator wants to see at startup, one line each."""
    from mis_server.app import has_playground

    lines = {
        "model": settings.model_name,
        **info.summary,
        "rerank": service.model.described_rerank,
        "API key": "required" if settings.api_key is not None else "none: open to everyone who can reach it",
        "playground": f"{url}/playground" if has_playground(settings) else "off",
        "limits": f"{settings.max_items_per_request} items, {settings.max_labels_per_request} labels, "
        f"{settings.max_request_tokens} tokens, {settings.max_sequences_per_request} sequences per request; "
        f"{settings.max_queued_requests} requests, {settings.max_queued_tokens} tokens, "
        f"{settings.max_queued_sequences} sequences, {service.bodies.most} bytes of bodies under way",
    }
    return "\n".join(f"    {name.replace('_', ' '):16}{value}" for name, value in lines.items())


def _url(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
