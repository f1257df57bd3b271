"""Connections to a server, and how everything that can go wrong with them is named."""

import json
from typing import Any

import httpx

from mis_bench.targets.base import CallFailed, TargetUnavailable

TIMEOUT_S = 300.0
"""Longest wait for a reply, unless told otherwise."""

_REJECTED = (400, 413, 422)
_SHOWN = 300  # characters of a server's own words in an error


class Connection:
    """Kept-alive connections to one server, as many as there are callers. Thread-safe.

    Args:
        url: `http://HOST:PORT`; a trailing `/v1` is dropped.
        api_key: Bearer token, if the server wants one.
        timeout_s: Longest wait for a reply.

    Raises:
        TargetUnavailable: that is no URL.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        if not self.url.startswith(("http://", "https://")):
            raise TargetUnavailable(f"{url[:80]!r} is no address of a server; write http://HOST:PORT.")
        if "@" in self.url.split("/")[2]:  # it would be in artifacts and messages
            raise TargetUnavailable("Write no user or password into a server's address; api_key is for what it wants.")
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        # Idle connections are dropped before a server would do it, in the middle of the next request perhaps.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0)
        # No proxy from the environment: it would be measured too.
        self._client = httpx.Client(headers=headers, limits=limits, trust_env=False)
        self._timeout_s = timeout_s
        self._secrets = {api_key} if api_key else set()

    def post(
        self, path: str, body: Any, *, timeout_s: float | None = None, api_key: str | None = None
    ) -> dict[str, Any]:
        """Post JSON and return the JSON object that comes back.

        Raises:
            CallFailed: it does not.
        """
        headers = {"content-type": "application/json"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
            self._secrets.add(api_key)
        content = json.dumps(body, separators=(",", ":")).encode()
        return self._object(self._send("POST", path, timeout_s, content=content, headers=headers))

    def get(self, path: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Get a JSON object; as `post`."""
        return self._object(self._send("GET", path, timeout_s))

    def text(self, method: str, path: str, *, timeout_s: float | None = None) -> str:
        """Return a reply's text, whatever it is.

        Raises:
            CallFailed: there is no reply, or it is an error.
        """
        return self._send(method, path, timeout_s).text

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _send(self, method: str, path: str, timeout_s: float | None, **content: Any) -> httpx.Response:
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            reply = self._client.request(method, self.url + path, timeout=wait_s, **content)
        except httpx.TimeoutException:
            raise CallFailed("timeout", f"{self.url}{path} did not answer within {wait_s:g} s.") from None
        except httpx.HTTPError as error:
            raise CallFailed("connection_error", f"{self.url}{path}: {error or type(error).__name__}") from None
        except httpx.InvalidURL as error:
            raise CallFailed("connection_error", f"{self.url}: {error}") from None
        if reply.status_code != 200:
            raise self._failure(path, reply)
        return reply

    def _object(self, reply: httpx.Response) -> dict[str, Any]:
        try:
            value = reply.json()
        except ValueError:
            raise CallFailed("bad_json", f"{reply.url.path} answered no JSON: {self._shown(reply.text)}") from None
        if not isinstance(value, dict):
            raise CallFailed("bad_json", f"{reply.url.path} answered no JSON object: {self._shown(reply.text)}")
        return value

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
