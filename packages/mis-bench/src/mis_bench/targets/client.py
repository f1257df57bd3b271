"""The HTTP client that all servers share, and how everything that can go wrong with one is named."""

from types import TracebackType
from typing import Any, Self

import httpx

from mis_bench.targets.base import CallFailed, TargetUnavailable

_REJECTED = (400, 413, 422)
_SHOWN = 300  # characters of a server's own words in an error


class Client:
    """Kept-alive connections to one server, as many as there are calls under way. For one event loop.

    Args:
        url: `http://HOST:PORT`; a trailing `/v1` is dropped.
        api_key: Bearer token, if the server wants one.
        timeout_s: Longest wait for a reply.

    Raises:
        TargetUnavailable: that is no URL.
    """

    def __init__(self, url: str, *, api_key: str | None, timeout_s: float) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        if not self.url.startswith(("http://", "https://")):
            raise TargetUnavailable(f"{url[:80]!r} is no address of a server; write http://HOST:PORT.")
        if "@" in self.url.split("/")[2]:  # it would be in results and messages
            raise TargetUnavailable("Write no user or password into a server's address; api_key is for what it wants.")
        headers = {"content-type": "application/json"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        # Idle connections are dropped before a server would do it, in the middle of the next request perhaps.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)
        self._http = httpx.AsyncClient(
            headers=headers,
            limits=limits,
            timeout=timeout_s,
            verify=self.url.startswith("https"),  # reading the certificates takes a while
            trust_env=False,  # a proxy would be measured too
        )
        self._secrets = {api_key} if api_key else set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float | None = None,
        api_key: str | None = None,
    ) -> httpx.Response:
        """Send a request and return the whole reply, of status 200.

        Args:
            method: `GET` or `POST`.
            path: Behind the server's address.
            body: JSON.
            timeout_s: Instead of the client's.
            api_key: Instead of the client's.

        Raises:
            CallFailed: there is no reply, or it is an error.
        """
        more: dict[str, Any] = {} if timeout_s is None else {"timeout": timeout_s}
        if api_key is not None:
            more["headers"] = {"authorization": f"Bearer {api_key}"}
            self._secrets.add(api_key)
        try:
            reply = await self._http.request(method, self.url + path, content=body, **more)
        except httpx.TimeoutException as error:
            waited_s = error.request.extensions["timeout"]["read"]
            raise CallFailed("timeout", f"{self.url}{path} did not answer within {waited_s:g} s.") from None
        except httpx.HTTPError as error:
            raise CallFailed("connection_error", f"{self.url}{path}: {error or type(error).__name__}") from None
        except httpx.InvalidURL as error:
            raise CallFailed("connection_error", f"{self.url}: {error}") from None
        if reply.status_code != 200:
            raise self._failure(path, reply)
        return reply

    async def get(self, path: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Get a JSON object.

        Raises:
            CallFailed: there is none.
        """
        return self.decoded(await self.send("GET", path, timeout_s=timeout_s))

    def decoded(self, reply: httpx.Response) -> dict[str, Any]:
        """Return the JSON object that a reply is.

        Raises:
            CallFailed: `bad_json`.
        """
        try:
            value = reply.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise CallFailed("bad_json", f"{reply.url.path} answered no JSON object: {self._shown(reply.text)}")
        return value

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def _failure(self, path: str, reply: httpx.Response) -> CallFailed:
        """Name an error by its status and text; some servers run out of memory with a status of 500, others 400."""
        text = self._shown(_message(reply))
        low = text.lower()
        if "out of memory" in low or "resource_exhausted" in low:
            reason = "out_of_memory"
        else:
            reason = "rejected" if reply.status_code in _REJECTED else "http_error"
        return CallFailed(reason, f"{path} answered {reply.status_code}: {text}")

    def _shown(self, text: str) -> str:
        """Shorten a server's words, which may repeat the key that it was sent."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = " ".join(text.split())
        return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _message(reply: httpx.Response) -> str:
    """Return the error's sentence, nested as OpenAI has it or flat."""
    try:
        body = reply.json()
    except ValueError:
        return reply.text
    if isinstance(body, dict):
        body = body.get("error", body)
    if isinstance(body, dict):
        body = body.get("message", body.get("detail", body))
    return str(body)
