"""What attackers send, for `stall.py`: each entry of `ATTACKS` is one, in a process of its own until it is ended.

A new attack is a coroutine function of a `Victim` and an entry of the table.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
from costliest import costliest_requests
from worst_requests import worst_requests

_HEAD = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
_PART = b" " * 65_536
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Victim:
    """The server that is attacked.

    Attributes:
        url: Where it is.
        model: Its checkpoint.
        small: Whether the machine is to be spared.
        head: Whether the model has a classification head.
        clients: How many connections each attack uses.
        began: Called when the first answer or refusal is there.
        wrong: Called with what must not happen.
    """

    url: str
    model: str
    small: bool
    head: bool
    clients: int
    began: Callable[[], None] = field(repr=False)
    wrong: Callable[[str], None] = field(repr=False)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        url = httpx.URL(self.url)
        return url.host, url.port or 80


async def texts(victim: Victim) -> None:
    """Send the worst requests that are admitted, and worse ones."""
    await _repeat(victim, worst_requests(victim.small, victim.head))


async def costs(victim: Victim) -> None:
    """Send of every route the requests that cost the tokenizer most for each byte."""
    await _repeat(victim, costliest_requests(victim.model, victim.small, victim.head))


async def bodies(victim: Victim) -> None:
    """Send large bodies without their last byte, with and without their length."""
    size = (8 if victim.small else 60) << 20
    announced = _HEAD + b"content-length: %d\r\n\r\n" % size

    async def send(is_chunked: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reply = asyncio.create_task(reader.read(65_536))
        writer.write(_HEAD + b"transfer-encoding: chunked\r\n\r\n" if is_chunked else announced)
        for _ in range(size // len(_PART) - 1):
            if reply.done():
                break
            writer.write(b"%x\r\n%s\r\n" % (len(_PART), _PART) if is_chunked else _PART)
            await writer.drain()
        victim.began()
        _check(victim, await reply, b"429", b"408", b"503")

    await asyncio.gather(*(_connect(victim, partial(send, number % 2 == 1)) for number in range(victim.clients)))


async def framing(victim: Victim) -> None:
    """Send requests on whose end a proxy might disagree; each is refused, and what follows it is not read."""
    hidden = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    kinds = itertools.cycle(
        _HEAD + lines + b"\r\n\r\n0\r\n\r\n" + hidden
        for lines in (
            b"transfer-encoding: identity\r\ntransfer-encoding: chunked",
            b"transfer-encoding: chunked\r\ntransfer-encoding: identity",
            b"transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            b"transfer-encoding: identity, chunked",
            b"transfer-encoding: chunked\r\ncontent-length: 5",
            b"content-length: 5\r\ncontent-length: 6",
        )
    )

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(next(kinds))
        data = await reader.read()
        victim.began()
        _check(victim, data, b"400")
        if b"HTTP/1.1 200" in data:
            victim.wrong("a hidden request was answered")

    await _connect(victim, send)


ATTACKS: dict[str, Callable[[Victim], Awaitable[None]]] = {
    "texts": texts,
    "costs": costs,
    "bodies": bodies,
    "framing": framing,
}
"""All attacks by name."""


def attack(name: str, victim_of: dict[str, Any], began: Any, wrong: Any) -> None:
    """Run an attack in this process; `began` is an event and `wrong` a queue."""
    victim = Victim(**victim_of, began=began.set, wrong=lambda what: wrong.put(f"{name}: {what}"))
    asyncio.run(_run(name, victim))


async def _run(name: str, victim: Victim) -> None:
    await ATTACKS[name](victim)


async def _repeat(victim: Victim, requests: list[tuple[str, bytes]]) -> None:
    """Send requests over and over: some clients wait for the answer, some leave, some name a short deadline."""

    async def client(number: int) -> None:
        # From places all over the list, so that a short run sends every kind.
        for turn in itertools.count(number * len(requests) // victim.clients):
            path, body = requests[turn % len(requests)]
            deadline = {"x-request-timeout": "0.5"} if turn % 3 == 1 else {}
            try:
                async with asyncio.timeout(0.3 if turn % 3 == 2 else 600):
                    reply = await http.post(path, content=body, headers=_JSON | deadline)
                if reply.status_code == 500:
                    victim.wrong(f"{path} {body[:80]!r} is answered with 500")
            except (httpx.TransportError, TimeoutError):
                await asyncio.sleep(0.05)
            victim.began()

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=victim.url, trust_env=False, timeout=600, limits=limits) as http:
        await asyncio.gather(*map(client, range(victim.clients)))


async def _connect(
    victim: Victim, send: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> None:
    """Send on one connection after the other; they may break at any moment."""
    while True:
        with contextlib.suppress(ConnectionError):
            reader, writer = await asyncio.open_connection(*victim.address)
            try:
                await send(reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.05)


def _check(victim: Victim, reply: bytes, *statuses: bytes) -> None:
    if reply and reply[9:12] not in statuses:
        victim.wrong(f"the status is {reply[9:12]!r}, not one of {statuses}")
