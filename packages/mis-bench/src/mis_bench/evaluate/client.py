"""A server that rows are asked of: connections, the key, and waiting when it says so."""

import asyncio
import re
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from mis_bench.targets.asking import Json
from mis_bench.targets.target import CallFailed, TargetUnavailable

MOST_TRIES = 8
"""How often a request is sent while the server says that it is busy."""

MOST_WAIT_S = 300.0
"""A server that asks for a longer wait has failed."""

TOLD_TIMEOUT_S = 10.0

_ADDRESS = re.compile(r"https?://([\w.-]+|\[[\da-f:]+\])(:\d+)?(/[^@?#]*)?")
_BUSY = (429, 503, 529)  # the last, where System One's servers are overloaded
_REJECTED = (400, 404, 413, 422)
_NO_SUCH_PATH = "answered 404"
_SYSTEM_ONE_ALIAS = "jev-latest"
_SHOWN = 300  # characters of a server's own words in an error


class Client:
    """A server over HTTP.

    Args:
        url: `http://HOST:PORT`, with the path in front of its routes if there is one; `/v1` at the end is dropped.
        key: Sent as a bearer token.
        timeout_s: A request may take.
        model: Name of the model; by default that of `default_model`.
        callers: Requests under way at once.
        calibration: What our own server is asked for in place of its calibration: `none`; None: nothing.

    Raises:
        TargetUnavailable: that is no address.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        timeout_s: float,
        model: str | None,
        callers: int,
        calibration: str | None = None,
    ) -> None:
        if _ADDRESS.fullmatch(url) is None:
            raise TargetUnavailable(
                "The server's address is not valid; write http://HOST:PORT, without user or password."
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self.model = model
        self._key = key
        self._calibration = calibration
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=callers, keepalive_expiry=2.0),
            follow_redirects=False,  # the key is for this server
        )

    async def look_for_model(self) -> None:
        """Take the model of `default_model`, unless one was named.

        Raises:
            TargetUnavailable: nothing answers there.
        """
        try:
            reply = await self._http.get(f"{self.url}/v1/models", timeout=TOLD_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise TargetUnavailable(f"{self.url} does not answer: {error or type(error).__name__}") from None
        if reply.status_code in (401, 403):
            raise TargetUnavailable(f"{self.url} refuses the key: {self._shown(reply.text)}")
        if self.model is not None:
            return
        try:
            listed: Any = reply.json() if reply.status_code == 200 else None
        except ValueError:
            listed = None
        self.model = self.default_model(listed)

    def default_model(self, listed: Any) -> str | None:
        """Return the model that is asked where none was named: the first of OpenAI's list, or none.

        Args:
            listed: What the server says of its models, whatever it is.
        """
        return _first(listed, "data", "id")

    async def send(self, path: str, body: Json) -> Json:
        """Send a body, waiting as long as a busy server says; raises `CallFailed`."""
        named = body if self.model is None else body | {"model": self.model}
        if self._calibration is not None:
            name = "x_calibration" if path == "/v1/systemone" else "calibration"
            named = named | {name: self._calibration}
        waited, reply = 0.0, await self._post(path, named)
        for number in range(MOST_TRIES - 1):
            wait_s = _wait_s(reply, number)
            if reply.status_code not in _BUSY or waited + wait_s > MOST_WAIT_S:
                break
            waited += wait_s
            await asyncio.sleep(wait_s)
            reply = await self._post(path, named)
        if reply.status_code == 200:
            return self._decoded(reply)
        reason = "rejected" if reply.status_code in _REJECTED else "http_error"
        raise CallFailed(reason, f"{path or self.url} answered {reply.status_code}: {self._shown(reply.text)}")

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _post(self, path: str, body: Json) -> httpx.Response:
        try:
            return await self._http.post(f"{self.url}{path}", json=body)
        except httpx.TimeoutException:
            raise CallFailed("timeout", f"{path or self.url} did not answer in time.") from None
        except httpx.HTTPError as error:
            raise CallFailed("connection_error", f"{path or self.url}: {error or type(error).__name__}") from None

    def _decoded(self, reply: httpx.Response) -> Json:
        try:
            value: Any = reply.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise CallFailed(
                "bad_json", f"{reply.url.path} did not answer with a JSON object: {self._shown(reply.text)}"
            )
        return value

    def _shown(self, text: str) -> str:
        """Shorten a server's words, which may repeat the key that it was sent."""
        if self._key:
            text = text.replace(self._key, "***")
        text = " ".join(text.split())
        return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


class SystemOneClient(Client):
    """A server of System One, which refuses a request without a model."""

    def default_model(self, listed: Any) -> str | None:
        """Return the first of OpenAI's list or of the published one; of none the alias that all servers know."""
        return super().default_model(listed) or _first(listed, "models", "name") or _SYSTEM_ONE_ALIAS


class CohereClient(Client):
    """A server of Cohere's rerank, at the first path of `PATHS` that it has."""

    PATHS: Sequence[str] = ("/v2/rerank", "/v1/rerank", "/rerank")

    _path: str | None = None

    async def send(self, path: str, body: Json) -> Json:
        """Send a body to its path; raises `CallFailed`."""
        if self.url.endswith("rerank"):
            return await super().send("", body)
        if self._path is not None:
            return await super().send(self._path, body)
        failures: list[CallFailed] = []
        for each in self.PATHS:
            try:
                reply = await super().send(each, body)
            except CallFailed as failure:
                if _NO_SUCH_PATH not in str(failure):
                    raise
                failures.append(failure)
            else:
                self._path = each
                return reply
        raise failures[0]


def _first(listed: Any, models: str, name: str) -> str | None:
    """Return the name of the first model of a list; None where that is not what the server says."""
    try:
        return str(listed[models][0][name])
    except (KeyError, IndexError, TypeError):
        return None


def _wait_s(reply: httpx.Response, number: int) -> float:
    """Return how long a busy server wants its client to wait: by its header, or longer each time."""
    told = reply.headers.get("retry-after", "")
    try:
        return max(0.0, float(told))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(told)
    except ValueError:
        return float(2**number)
    return max(0.0, until.timestamp() - time.time())
