"""A server over HTTP as a target: its connections, checks and calls. Kinds of servers are in `servers`."""

import contextlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import httpx
import numpy as np

from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.asking import Asking, Json, Tasks
from mis_bench.targets.spec import Options, is_secret, read_options
from mis_bench.targets.target import (
    About,
    CallFailed,
    Layout,
    TargetReply,
    TargetUnavailable,
    is_out_of_memory,
    unsupported,
)
from mis_bench.workload import Task, Workload, build_workload

TOLD_TIMEOUT_S = 5.0
"""Time for a server to pass its health check, and to report its model and what else it says of itself."""

PROBE_TIMEOUT_S = 30.0
"""Within this time it must answer a tiny request before anything is measured, and forget a query."""

_ADDRESS = re.compile(r"https?://([\w.-]+|\[[\da-f:]+\])(:\d+)?(/[^@]*)?")
_RESIDENT = re.compile(r"^process_resident_memory_bytes (\S+)", re.MULTILINE)
_REJECTED = (400, 413, 422)
_SHOWN = 300  # characters of a server's own words in an error


class ServerOptions(Options):
    """What every server takes: the bearer token, if it wants one, and the name of the model that it must serve."""

    api_key: str | None = None
    model: str | None = None


class Request(NamedTuple):
    """A workload, how it is asked, and the bodies that ask for it, whose answers are read together."""

    workload: Workload
    asking: Asking
    bodies: tuple[bytes, ...]


class Server:
    """A server, from its first check to the last call; its own opener.

    Attributes:
        BACKEND: Name for results.
        INFO: Where it tells of itself.
        OPTIONS: What the target takes.
        options: As given.
        forgetting: How the server is made to compute the next query anew: by another cache salt in requests, by
            `POST /flush_cache`, it does so anyway, or not at all (None). Final after `check`.
        tasks: How it is asked for each task, or why it cannot be.
        about: What it is, by its own account; there after `check`.

    Args:
        spec: `KIND=http://HOST:PORT`; a trailing `/v1` is dropped.
        given: Options as written.
        directory: The checkpoint that is served, if it can be read here.

    Raises:
        TargetUnavailable: that is no address, or an option is wrong.
    """

    BACKEND: ClassVar[str]
    INFO: ClassVar[str] = "/version"
    OPTIONS: ClassVar[type[ServerOptions]] = ServerOptions
    forgetting: Literal["salt", "flush", "needless"] | None = None
    tasks: Tasks
    about: About

    def __init__(self, spec: str, given: Mapping[str, str], directory: Path | None) -> None:
        url = spec.partition("=")[2]
        if _ADDRESS.fullmatch(url) is None:
            raise TargetUnavailable(
                "The server's address is not valid; write http://HOST:PORT, without user or password."
            )
        self.options = read_options(spec, given, self.OPTIONS)
        self._spec, self._url, self._directory = spec, url.rstrip("/").removesuffix("/v1"), directory
        self._salt, self._run = 0, np.random.default_rng().bytes(8).hex()  # no earlier run used it

    async def details(self) -> Json:
        """Return its settings, `version` and `dtype` among them; raises `CallFailed` if it does not tell."""
        return await self.get(self.INFO)

    @property
    def forgets(self) -> bool:
        """Whether the server can be made to forget; final after `check`."""
        return self.forgetting is not None

    async def check(self) -> None:
        """Ask for the server's health, model and details; raises `TargetUnavailable`."""
        await self._connect(self._describe)
        await self.close()

    async def open(self, tasks: Collection[Task] = ("score",)) -> Self:
        """Connect, check again, and ask tiny requests until one is answered; raises `TargetUnavailable`."""
        await self._connect(self._describe, partial(self._probe, tasks))
        return self

    def prepare(self, workload: Workload, layout: Layout = {}) -> Request:  # noqa: B006 - nobody changes it
        """Encode the bodies; raises `CallFailed`, `rejected`.

        That is for a task that the server does not have, and for a layout: servers are started with one.
        """
        asking = self.tasks[workload.task]
        if isinstance(asking, str):
            raise unsupported(workload.task, self.BACKEND, asking)
        if layout:
            raise CallFailed("rejected", f"{self._spec} does not accept a layout with a request.")
        named = [body | {"model": self.about.model} for body in asking.bodies(workload)]
        return Request(workload, asking, tuple(json.dumps(body, separators=(",", ":")).encode() for body in named))

    async def call(self, request: Request) -> TargetReply:
        """Send the bodies, one after another; raises `CallFailed`."""
        bodies = [self._salted(body, request.asking) for body in request.bodies]
        sent = time.perf_counter()
        replies = [await self._send("POST", request.asking.path, body) for body in bodies]
        done = time.perf_counter()
        answers = [self._decoded(reply, request.asking.answer_type) for reply in replies]
        return TargetReply(request.asking.reply(answers, request.workload), sent, done)

    async def forget(self) -> None:
        """Change the cache salt of requests to come, or flush the cache; raises `CallFailed` if neither works."""
        if self.forgetting == "salt":
            self._salt += 1
        elif self.forgetting == "flush":
            await self._send("POST", "/flush_cache", b"{}", timeout_s=PROBE_TIMEOUT_S)
        elif self.forgetting is None:
            raise CallFailed("rejected", f"{self._spec} cannot clear its prefix cache, so only new queries are cold.")

    async def counts(self) -> dict[str, float]:
        """Return `memory_bytes`, the resident memory of the process that answers HTTP, where it tells."""
        try:
            found = _RESIDENT.search((await self._send("GET", "/metrics", timeout_s=TOLD_TIMEOUT_S)).text)
        except CallFailed:
            return {}
        return {"memory_bytes": float(found[1])} if found else {}

    async def product_rate(self) -> float | None:
        """None: what computes is elsewhere."""

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def get(self, path: str) -> Json:
        """Get a JSON object that the server tells of itself; raises `CallFailed`."""
        return self._decoded(await self._send("GET", path, timeout_s=TOLD_TIMEOUT_S))

    async def _connect(self, *steps: Callable[[], Awaitable[None]]) -> None:
        """Make connections, as many as there will be calls under way, and take steps; raises `TargetUnavailable`."""
        key = self.options.api_key
        self._http = httpx.AsyncClient(
            base_url=self._url,
            headers={"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {}),
            # Idle connections are dropped before a server would do it, in the middle of the next request perhaps.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0),
            verify=self._url.startswith("https"),  # reading the certificates takes a while
            trust_env=False,  # a proxy would be measured too
        )
        try:
            for step in steps:
                await step()
        except CallFailed as error:
            await self.close()
            raise TargetUnavailable(f"{self._spec} failed its check ({error.reason}): {error}") from None

    async def _describe(self) -> None:
        await self._send("GET", "/health", timeout_s=TOLD_TIMEOUT_S)
        model = await self._model()
        told, sha256 = {}, None
        with contextlib.suppress(CallFailed):
            told = await self.details()
        with contextlib.suppress(OSError, ValueError):  # it is not here
            sha256 = checkpoint_sha256(self._directory or Path(model))
        own = self.options.model_dump(exclude={"model"}, exclude_none=True)
        self.about = About(
            name=self._spec,
            backend=self.BACKEND,
            model=model,
            model_sha256=sha256,
            dtype=told.get("dtype"),
            options={
                name: value
                for name, value in (told | own).items()
                if isinstance(value, str | int | float | None) and not is_secret(name)
            },
            versions={self.BACKEND: told["version"]} if told.get("version") else {},
        )

    async def _model(self) -> str:
        """Return the name of the served model, which must be the wanted one."""
        models = (await self.get("/v1/models")).get("data")
        names = [str(each["id"]) for each in models if "id" in each] if isinstance(models, list) else []
        wanted = self.options.model or next(iter(names), "a model")
        if wanted not in names:
            raise CallFailed("rejected", f"it serves {', '.join(names) or 'no model'}, not {wanted}.")
        return wanted

    async def _probe(self, tasks: Collection[Task]) -> None:
        """Ask a tiny request, whose ids are in every vocabulary, of one task after the other until one is answered."""
        failures: list[CallFailed] = []
        for task in tasks:
            try:
                request = self.prepare(replace(build_workload(f"{task}-3-1-1").within(8), apply_softmax=True))
                body = self._salted(request.bodies[0], request.asking)
                reply = await self._send("POST", request.asking.path, body, timeout_s=PROBE_TIMEOUT_S)
                self._decoded(reply, request.asking.answer_type)
                return
            except CallFailed as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    async def _send(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float | None = None
    ) -> httpx.Response:
        """Send a request and return the whole reply, of status 200; raises `CallFailed`.

        Calls have no time limit here: who makes them has one.
        """
        try:
            reply = await self._http.request(method, path, content=body, timeout=timeout_s)
        except httpx.TimeoutException:
            raise CallFailed("timeout", f"{self._url}{path} did not answer within {timeout_s:g} s.") from None
        except httpx.HTTPError as error:
            raise CallFailed("connection_error", f"{self._url}{path}: {error or type(error).__name__}") from None
        if reply.status_code == 200:
            return reply
        reason = "rejected" if reply.status_code in _REJECTED else "http_error"
        if is_out_of_memory(reply.text):  # with a status of 500 or 400
            reason = "out_of_memory"
        raise CallFailed(reason, f"{path} answered {reply.status_code}: {self._shown(reply.text)}")

    def _decoded(self, reply: httpx.Response, wanted: type = dict) -> Any:
        try:
            value = reply.json()
        except ValueError:
            value = None
        if not isinstance(value, wanted):
            what = "object" if wanted is dict else "list"
            raise CallFailed(
                "bad_json", f"{reply.url.path} did not answer with a JSON {what}: {self._shown(reply.text)}"
            )
        return value

    def _salted(self, body: bytes, asking: Asking) -> bytes:
        """Add the salt of today to an encoded object."""
        if self.forgetting != "salt":
            return body
        return b'%s,"%s":"%s-%d"}' % (body[:-1], asking.salt_field.encode(), self._run.encode(), self._salt)

    def _shown(self, text: str) -> str:
        """Shorten a server's words, which may repeat the key that it was sent."""
        if self.options.api_key:
            text = text.replace(self.options.api_key, "***")
        text = " ".join(text.split())
        return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
