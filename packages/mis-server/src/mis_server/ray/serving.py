"""The server on Ray Serve: a gate that routes by the query, and replicas that are the same application as anywhere."""

import asyncio
import contextlib
import dataclasses
import logging
import math
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import ray.exceptions
from pydantic import TypeAdapter, ValidationError
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy, RequestRouterConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError, RequestError
from mis_server.app import create_app
from mis_server.edge.admission import Admission
from mis_server.edge.body import BodyBytes, BodyLimitMiddleware, BodyRoom, announced_bytes, read_body
from mis_server.edge.expanding import ExpandingMiddleware
from mis_server.edge.middleware import OPEN_PATHS, ApiKeyMiddleware
from mis_server.errors import error_reply
from mis_server.model import running_model
from mis_server.ray.actor import for_actors
from mis_server.ray.routing import routing_key
from mis_server.settings import ServerConfig

logger = logging.getLogger(__name__)

_ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
_NOT_HERE = ("host", "port", "ssl_certfile", "ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs", "playground")
_TOKENS = "tokens_under_way"
_LOST = (
    ray.exceptions.RayActorError,
    ray.exceptions.OwnerDiedError,
    ray.exceptions.ObjectLostError,
    BackPressureError,
    DeploymentUnavailableError,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replicas:
    """How many replicas there are, and what each of them reserves in the cluster.

    Attributes:
        min_replicas: At least so many.
        max_replicas: At most so many; as many as `min_replicas` unless given.
        tokens_per_replica: Tokens under way that a replica should have; with more, there will be more replicas.
        replica_cpus: Cores of each.
        replica_gpus: GPUs of each.
        replica_tpus: TPU chips of each.
        gates: Processes that read bodies and choose replicas.
        gate_cpus: Cores of each gate.
        affinity: Whether requests with one query go to one replica; off only to compare.
    """

    min_replicas: int = 1
    max_replicas: int | None = None
    tokens_per_replica: int = 200_000
    replica_cpus: float = 1.0
    replica_gpus: float = 0.0
    replica_tpus: float = 0.0
    gates: int = 1
    gate_cpus: float = 1.0
    affinity: bool = True


def application(args: dict[str, Any]) -> serve.Application:
    """Return what `mis_server.ray.build_app` does."""
    replicas, settings = _read(args)
    resources = {"resources": {"TPU": replicas.replica_tpus}} if replicas.replica_tpus else {}
    # Twice what the application lets in, so that it is the application that says when there is no room.
    most = 2 * settings.max_queued_requests
    router = {"request_router_config": RequestRouterConfig(request_router_class=_ROUTER)} if replicas.affinity else {}
    model = serve.deployment(Replica).options(
        name="replicas",
        max_ongoing_requests=most,
        graceful_shutdown_timeout_s=settings.shutdown_timeout,
        ray_actor_options={"num_cpus": replicas.replica_cpus, "num_gpus": replicas.replica_gpus, **resources},
        **_scaling(replicas),
        **router,
    )
    gate = serve.deployment(serve.ingress()(RequestGate)).options(
        name="gates",
        num_replicas=replicas.gates,
        max_ongoing_requests=most * (replicas.max_replicas or replicas.min_replicas),
        graceful_shutdown_timeout_s=settings.shutdown_timeout,
        ray_actor_options={"num_cpus": replicas.gate_cpus},
    )
    return gate.bind(model.bind(settings), settings)


def _read(args: dict[str, Any]) -> tuple[Replicas, ServerConfig]:
    """Sort the arguments; values may be texts, as on a command line."""
    left = dict(args)
    for name in _NOT_HERE:
        if name in left:
            raise ConfigError(f"{name} is not an option of replicas on Ray Serve; set it in Serve's own config.", name)

    def read(kind: type[Any], **more: Any) -> Any:
        names = {field.name for field in dataclasses.fields(kind)} & left.keys()
        try:
            return TypeAdapter(kind).validate_python({name: left.pop(name) for name in names} | more)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            raise ConfigError(f"{name}: {first['msg']}.", name) from None

    if "model" not in left:
        raise ConfigError("model is missing: a Hugging Face model directory or name, or a GGUF file.", "model")
    given = str(left["model"])
    replicas, engine = read(Replicas), for_actors(read(EngineConfig))
    left.setdefault("served_model_name", given)
    settings = read(ServerConfig, engine=engine)
    for name in left:
        raise ConfigError(f"Unknown option {name!r}.", name)
    return replicas, settings


def _scaling(replicas: Replicas) -> dict[str, Any]:
    if replicas.max_replicas in (None, replicas.min_replicas):
        return {"num_replicas": replicas.min_replicas}
    policy = AutoscalingPolicy(
        policy_function=TokenPolicy, policy_kwargs={"tokens_per_replica": replicas.tokens_per_replica}
    )
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=replicas.min_replicas, max_replicas=replicas.max_replicas, policy=policy
        )
    }


class TokenPolicy:
    """As many replicas as the tokens under way need; Serve keeps to the bounds and waits before it acts."""

    def __init__(self, tokens_per_replica: int) -> None:
        self._tokens_per_replica = tokens_per_replica

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return how many replicas there should be, and no state."""
        tokens = sum((context.aggregated_metrics or {}).get(_TOKENS, {}).values())
        return max(1, math.ceil(tokens / self._tokens_per_replica)), {}


class Replica:
    """An engine process and the application around it, without a socket."""

    def __init__(self, settings: ServerConfig) -> None:
        self._settings = settings
        self._running = contextlib.AsyncExitStack()
        self._starting = asyncio.Lock()
        self._app: Any = None

    async def check_health(self) -> None:
        """Start, before Serve sends the first request. An engine that dies later is restarted here, not by Serve."""
        async with self._starting:
            if self._app is None:
                self._app = await self._start()

    async def _start(self) -> ASGIApp:
        settings = self._settings
        model = await self._running.enter_async_context(
            running_model(settings.engine, names=settings.model_names, limits=settings.limits)
        )
        await model.wait_ready()
        logger.info("Rerank: %s", model.described_rerank)
        return create_app(model, settings)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what `TokenPolicy` looks at."""
        return {_TOKENS: 0.0 if self._app is None else float(self._app.state.service.admission.tokens)}

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Message]:
        """Yield what the application sends in answer to an HTTP request."""
        await self.check_health()
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if given:
                return given.pop()
            await asyncio.Event().wait()  # a client that goes cancels all of this
            raise AssertionError

        async def run() -> None:
            try:
                await self._app(scope, receive, messages.put)
            finally:
                messages.put_nowait(None)

        running = asyncio.create_task(run())
        try:
            while (message := await messages.get()) is not None:
                yield message
            await running
        finally:
            running.cancel()

    async def __del__(self) -> None:
        await self._running.aclose()


class RequestGate:
    """Reads a request and asks the replica that has its query. Bodies and keys are checked before they are read."""

    def __init__(self, replicas: Any, settings: ServerConfig) -> None:
        self._replicas = replicas.options(stream=True)
        self._body_timeout = settings.body_timeout
        self._admission = Admission(
            settings.max_queued_requests, settings.max_queued_tokens, settings.max_queued_sequences
        )
        self._max_body_bytes = settings.max_body_bytes
        self._bodies = BodyBytes(settings.max_body_bytes_under_way, settings.max_body_bytes)
        limited = BodyLimitMiddleware(self._forward, max_bytes=settings.max_body_bytes)
        expanding = ExpandingMiddleware(limited, max_bytes=settings.max_body_bytes)
        self._app = ApiKeyMiddleware(expanding, OPEN_PATHS, key=settings.api_key, admin_key=settings.admin_api_key)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:  # uvicorn takes no bound method for ASGI 3
            await self._serve(scope, receive, send)

        return app

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await self._app(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a request to its replica, and the reply back."""
        started = False
        try:
            headers = Headers(scope=scope)
            with self._bodies.room(announced_bytes(headers, self._max_body_bytes)) as room:
                body = await self._read(Request(scope, receive), room)
                replicas = self._replicas
                if (key := routing_key(headers, body)) is not None:
                    replicas = replicas.options(session_id=key)
                async for message in replicas.answer.remote(_portable(scope), body):
                    started = started or message["type"] == "http.response.start"
                    await send(_without_id(message))
        except RequestError as error:
            advice = {"retry-after": str(self._admission.retry_after_s())} if error.code == "queue_full" else {}
            await error_reply(error.code, error.message, error.param, advice)(scope, receive, send)
        except _LOST:
            if started:
                raise  # a reply that has begun is cut
            message = "The replica ended before it answered; try again."
            await error_reply("engine_unavailable", message)(scope, receive, send)

    async def _read(self, request: Request, room: BodyRoom) -> bytes:
        """Return the body.

        Raises:
            RequestError: `request_too_large`, `request_timeout` or `queue_full`.
        """
        try:
            async with asyncio.timeout(self._body_timeout):
                with self._admission.body():
                    return await read_body(request, room)
        except ClientDisconnect:
            raise asyncio.CancelledError from None
        except TimeoutError:
            raise RequestError("request_timeout", f"The body did not arrive within {self._body_timeout:g} s.") from None


_SCOPE = ("type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path")


def _portable(scope: Scope) -> dict[str, Any]:
    """Return what of a scope can go to another process."""
    addresses = {name: None if scope.get(name) is None else tuple(scope[name]) for name in ("client", "server")}
    headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    return {name: scope[name] for name in _SCOPE if name in scope} | addresses | {"headers": headers, "extensions": {}}


def _without_id(message: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Leave the request's id out, as Serve adds it."""
    if message["type"] != "http.response.start":
        return message
    return {**message, "headers": [each for each in message["headers"] if each[0] != b"x-request-id"]}
