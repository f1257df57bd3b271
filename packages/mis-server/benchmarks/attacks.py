"""What attackers send, for `stall.py`: each entry of `ATTACKS` is one, in a process of its own until it is ended.

A new attack is a coroutine function of a `Victim` and an entry of the table.
"""

import asyncio
import contextlib
import itertools
import json
import os
import sys
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
from costliest import costliest_requests
from worst_requests import worst_requests

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_HEAD = b"POST /v1/score HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
_YIELDS = 10  # steps of priority
_PART = b" " * 65_536
_JSON = {"content-type": "application/json"}

# What a message says, and what the template then does.
_TRAPS = {
    "power": "{% set x = messages|length + 8 %}{{ x ** (x ** x) }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor %}",
    "double": (
        "{% set n = namespace(s='double') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}"
    ),
    "format": "{{ '%0999999999d' % messages|length }}",
    "long": "{{ messages[0].content * 9000000 }}",
    "raise": "{{ messages|dictsort }}",
    "recurse": "{% macro again(n) %}{{ again(n + 1) }}{% endmacro %}{{ again(messages|length) }}",
}
_CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant"
TRAPPED_TEMPLATE = (
    "".join(
        f"{{% {'elif' if place else 'if'} messages[-1].content == '{word}' %}}{source}"
        for place, (word, source) in enumerate(_TRAPS.items())
    )
    + f"{{% else %}}{_CHAT}{{% endif %}}"
)
"""A chat template that attacks only when a message says so."""


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


async def templates(victim: Victim) -> None:
    """Send messages that make the chat template compute, grow, raise or recurse, if it is `TRAPPED_TEMPLATE`."""
    chats = [{"messages": [{"role": "user", "content": word}], "max_tokens": 1} for word in _TRAPS]
    await _repeat(victim, [("/v1/chat/completions", json.dumps(chat).encode()) for chat in chats])


async def sequences(victim: Victim) -> None:
    """Send small bodies that ask for thousands of answers: more than a request may, just as many, and many such."""
    scale = 8 if victim.small else 1
    many = {"max_tokens": 16, "temperature": 1.0}
    one = {"messages": [{"role": "user", "content": "Which words?"}], "n": 128} | many
    completions: list[dict[str, Any]] = [
        {"prompt": [[7]] * 156, "n": 128} | many,  # refused
        {"prompt": [[7, 8]] * (32 // scale), "n": 128} | many,
        {"prompt": [[7, 8, number % 900] for number in range(4096 // scale)], "max_tokens": 2},
        {"prompt": ["Which words?"] * (32 // scale), "n": 128, "stream": True} | many,
        {"prompt": [[9]] * (256 // scale), "max_tokens": 200},
    ]
    bodies = [("/v1/completions", body) for body in completions] + [("/v1/chat/completions", one)]
    await _repeat(victim, [(path, json.dumps(body).encode()) for path, body in bodies])


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


async def bombs(victim: Victim) -> None:
    """Send small bodies that expand to very large ones, that want a large window, or that are nothing but frames."""
    size = (1 << 26 if victim.small else 1 << 30) >> 20
    block, empty = bytes(1 << 20), zstd.compress(b"")
    wide = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    packed, gzipped = zstd.ZstdCompressor(), zlib.compressobj(wbits=31)
    bodies = itertools.cycle(
        [
            ("zstd", b"".join([packed.compress(block) for _ in range(size)]) + packed.flush()),
            ("gzip", b"".join([gzipped.compress(block) for _ in range(size)]) + gzipped.flush()),
            ("zstd", wide.compress(os.urandom(1 << 20)) + wide.flush()),
            ("zstd", empty * 5000),
        ]
    )

    async def client() -> None:
        while True:
            encoding, content = next(bodies)
            with contextlib.suppress(httpx.TransportError):  # the connection is closed while the rest is sent
                reply = await http.post("/v1/score", content=content, headers=_JSON | {"content-encoding": encoding})
                victim.began()
                if reply.status_code not in (413, 429, 503):
                    victim.wrong(f"a bomb in {encoding} is answered with {reply.status_code}")
            await asyncio.sleep(0.05)

    async with httpx.AsyncClient(base_url=victim.url, trust_env=False, timeout=600) as http:
        await asyncio.gather(*(client() for _ in range(victim.clients)))


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
    "templates": templates,
    "sequences": sequences,
    "bodies": bodies,
    "bombs": bombs,
    "framing": framing,
}
"""All attacks by name."""

OF_GENERATION = ("templates", "sequences")
"""Those that a model with a classification head has no route for."""


def attack(name: str, victim_of: dict[str, Any], began: Any, wrong: Any) -> None:
    """Run an attack in this process; `began` is an event and `wrong` a queue."""
    os.nice(_YIELDS)
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
