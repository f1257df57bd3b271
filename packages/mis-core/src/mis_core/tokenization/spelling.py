"""The bytes that each token stands for, within a text."""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import tokenizers

from mis_core.checkpoints.components import components

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Spelling:
    """Spells tokens as their decoder does where they follow others: byte by byte, so parts of a character are exact."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        state = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        self._steps = [_STEPS[step["type"]](step) for step in components(state) if step["type"] in _STEPS]

    def __call__(self, token: int) -> bytes:
        """Return the bytes of a token; none of an id without a token."""
        spelled: str | bytes = self._backend.id_to_token(token) or ""
        for step in self._steps:
            if isinstance(spelled, str):
                spelled = step(spelled)
        return spelled.encode() if isinstance(spelled, str) else spelled


def _replace(state: dict[str, Any]) -> Callable[[str], str | bytes]:
    ((kind, source),) = state["pattern"].items()
    pattern = re.escape(source) if kind == "String" else source
    return lambda spelled: re.sub(pattern, lambda _: state["content"], spelled)


def _metaspace(state: dict[str, Any]) -> Callable[[str], str | bytes]:
    return lambda spelled: spelled.replace(state["replacement"], " ")


def _byte_fallback(state: dict[str, Any]) -> Callable[[str], str | bytes]:
    def step(spelled: str) -> str | bytes:
        match = _BYTE.fullmatch(spelled)
        return spelled if match is None else bytes.fromhex(match[1])

    return step


def _byte_level(state: dict[str, Any]) -> Callable[[str], str | bytes]:
    def step(spelled: str) -> str | bytes:
        values = [_byte_of_character().get(character) for character in spelled]
        return spelled if None in values else bytes(value for value in values if value is not None)

    return step


@cache
def _byte_of_character() -> dict[str, int]:
    """Return the bytes that characters of a byte-level vocabulary stand for, by GPT-2's rule."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


_STEPS: dict[str, Callable[[dict[str, Any]], Callable[[str], str | bytes]]] = {
    "Replace": _replace,
    "Metaspace": _metaspace,
    "ByteFallback": _byte_fallback,
    "ByteLevel": _byte_level,
}
