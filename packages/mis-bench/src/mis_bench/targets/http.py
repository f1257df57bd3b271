"""Servers over HTTP as targets."""

import contextlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.base import About, Answer, CallFailed, Capabilities, Layout, TargetUnavailable
from mis_bench.targets.client import Client
from mis_bench.targets.dialect import PROBE, Dialect, Json
from mis_bench.targets.options import is_secret, read_options
from mis_bench.workload import Workload

HEALTH_TIMEOUT_S = 5.0
"""Within this time a server must say that it is well before anything is measured, and which model it serves."""

PROBE_TIMEOUT_S = 30.0
"""Within this time it must answer a tiny request."""

_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})? (\S+)(?: \d+)?")
_STAGE = re.compile(r"[{,]stage=\"(\w+)\"[,}]")
_IGNORED = ("_bucket", "_created")


@dataclass(frozen=True, slots=True)
class Request:
    """A workload and the bodies that ask for it, whose answers are read together."""

    workload: Workload
    bodies: tuple[bytes, ...]


class Server:
    """A server. `ServerOpener` makes it."""

    def __init__(self, about: About, client: Client, dialect: Dialect) -> None:
        self._about, self._client, self._dialect = about, client, dialect
        self._salt, self._run = 0, np.random.default_rng().bytes(8).hex()  # no earlier run used it

    @property
    def about(self) -> About:
        """What it is, by its own account."""
        return self._about

    def prepare(self, workload: Workload, layout: Layout = {}) -> Request:  # noqa: B006 - nobody changes it
        """Encode the bodies; raises `CallFailed`, `rejected`, for a layout that the server does not take."""
        if layout and not self._dialect.LAYOUTS:
            raise CallFailed("rejected", f"{self.about.name} takes no layout with a request.")
        fields = {"model": self._about.model, **layout}
        bodies = self._dialect.bodies(workload)
        return Request(workload, tuple(json.dumps(body | fields, separators=(",", ":")).encode() for body in bodies))

    async def call(self, request: Request) -> Answer:
        """Send the bodies, one after another; raises `CallFailed`."""
        sent, done, answers = await self._exchange(request, None)
        return Answer(self._dialect.reply(answers, request.workload), sent, done)

    async def probe(self) -> None:
        """Ask for something tiny; raises `CallFailed`."""
        *_, answers = await self._exchange(self.prepare(PROBE), PROBE_TIMEOUT_S)
        self._dialect.check_probe(answers)

    async def forget(self) -> None:
        """Change the cache salt of requests to come, or flush the cache, as the dialect says.

        Raises:
            CallFailed: `rejected` if there is no way: ask a query that is new (`Workload.another`). Another reason if
                the server refused to.
        """
        if self._dialect.forgets == "salt":
            self._salt += 1
        elif self._dialect.forgets == "flush":
            await self._client.send("POST", "/flush_cache", b"{}", api_key=self._dialect.admin_key)
        else:
            raise CallFailed("rejected", self._dialect.why_not_forget)

    async def counts(self) -> dict[str, float]:
        """Return the server's metrics (`parse_metrics`), and for `mis` its engine's statistics.

        `mis_stage_seconds_sum.queue`, for instance, is the time that requests have waited. `memory_bytes` is the
        resident memory of the process that answers HTTP. What a server does not tell is absent.
        """
        counts: dict[str, float] = {}
        with contextlib.suppress(CallFailed):
            counts = parse_metrics((await self._client.send("GET", "/metrics", timeout_s=HEALTH_TIMEOUT_S)).text)
        if "process_resident_memory_bytes" in counts:
            counts["memory_bytes"] = counts["process_resident_memory_bytes"]
        try:
            return counts | await self._dialect.counts(self._client)
        except CallFailed:
            return counts

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _exchange(self, request: Request, timeout_s: float | None) -> tuple[float, float, list[Json]]:
        """Return when the first body was sent and the last reply complete, and the replies, decoded after that."""
        bodies = [self._salted(body) for body in request.bodies]
        sent = time.perf_counter()
        replies = [await self._client.send("POST", self._dialect.PATH, body, timeout_s=timeout_s) for body in bodies]
        done = time.perf_counter()
        return sent, done, [self._client.decoded(reply) for reply in replies]

    def _salted(self, body: bytes) -> bytes:
        """Add the salt of today to an encoded object."""
        if self._dialect.forgets != "salt":
            return body
        return b'%s,"cache_salt":"%s-%d"}' % (body[:-1], self._run.encode(), self._salt)


class ServerOpener:
    """A server that was asked for.

    Args:
        spec: Name of the target.
        url: Address of the server.
        dialect: How it is asked.
        options: `api_key`, `timeout_s`, `model` (the name that must be served), and the dialect's own.
        directory: The checkpoint that is served, if it can be read here.
        timeout_s: Longest wait for an answer, unless the options say otherwise.

    Raises:
        TargetUnavailable: an option is wrong, or that is no address.
    """

    def __init__(
        self,
        spec: str,
        url: str,
        dialect: type[Dialect],
        options: Mapping[str, str],
        directory: Path | None,
        timeout_s: float,
    ) -> None:
        declared = {"api_key": None, "timeout_s": float(timeout_s), "model": None, **dialect.OPTIONS}
        self._values: dict[str, Any] = read_options(spec, options, declared)
        self._spec, self._url, self._directory = spec, url, directory
        self._given = {name: value for name, value in options.items() if name in dialect.OPTIONS}
        self._dialect = dialect(self._values, directory)
        self._client()

    @property
    def capabilities(self) -> Capabilities:
        """What the server can do; what depends on its version is known after `check`."""
        return Capabilities(forgets=self._dialect.forgets is not None, texts=True, layouts=self._dialect.LAYOUTS)

    async def check(self) -> None:
        """Ask for the server's health and model.

        Raises:
            TargetUnavailable: it is not well within 5 s, or serves another model.
        """
        async with self._client() as client:
            await self._described(client)

    async def open(self) -> Server:
        """Connect, check again, and ask one tiny request, which must be answered within 30 s.

        Raises:
            TargetUnavailable: the server fails a check.
        """
        client = self._client()
        try:
            target = Server(await self._described(client), client, self._dialect)
            await target.probe()
        except CallFailed as error:
            await client.close()
            raise self._failed(error) from None
        except TargetUnavailable:
            await client.close()
            raise
        return target

    def _client(self) -> Client:
        return Client(self._url, api_key=self._values["api_key"], timeout_s=self._values["timeout_s"])

    async def _described(self, client: Client) -> About:
        try:
            await client.send("GET", "/health", timeout_s=HEALTH_TIMEOUT_S)
            model = await self._model(client)
            details = await self._dialect.details(client)
        except CallFailed as error:
            raise self._failed(error) from None
        backend, version = self._dialect.BACKEND, details.get("version")
        return About(
            name=self._spec,
            backend=backend,
            model=model,
            model_sha256=_checksum(self._directory or Path(model)),
            dtype=details.get("dtype"),
            options=details.get("options", {}) | {k: value for k, value in self._given.items() if not is_secret(k)},
            versions={backend: version} if version else {},
        )

    async def _model(self, client: Client) -> str:
        """Return the name of the served model, which must be the wanted one."""
        models = (await client.get("/v1/models", timeout_s=HEALTH_TIMEOUT_S)).get("data")
        names = [str(each["id"]) for each in models if "id" in each] if isinstance(models, list) else []
        wanted = self._values["model"]
        if wanted is not None and wanted not in names:
            raise TargetUnavailable(f"{client.url} serves {', '.join(names) or 'no model'}, not {wanted}.")
        if not names:
            raise TargetUnavailable(f"{client.url} serves no model.")
        return wanted or names[0]

    def _failed(self, error: CallFailed) -> TargetUnavailable:
        return TargetUnavailable(f"{self._spec} failed its check ({error.reason}): {error}")


def parse_metrics(text: str) -> dict[str, float]:
    """Return values of Prometheus' text format by name, `NAME.STAGE` where there is a label `stage`.

    Those of other labels are summed, buckets and times of creation left out.
    """
    values: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match is None or match[1].endswith(_IGNORED):
            continue
        stage = _STAGE.search(match[2] or "")
        name = f"{match[1]}.{stage[1]}" if stage else match[1]
        try:
            values[name] = values.get(name, 0.0) + float(match[3])
        except ValueError:
            continue
    return values


def _checksum(directory: Path) -> str | None:
    try:
        return checkpoint_sha256(directory)
    except (OSError, ValueError):
        return None
