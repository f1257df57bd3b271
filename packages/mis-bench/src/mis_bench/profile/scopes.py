"""Which part of the model an operation belongs to: from the compiled programs that a trace carries.

A trace (`*.xplane.pb`) has the optimised HLO of every program that ran, in the plane `/host:metadata`. Its
instructions keep the `jax.named_scope` they were traced under. JAX's reader of traces shows events only, so the
few fields that matter are read here from the protobuf itself; numbers are those of `xplane.proto` and `hlo.proto`.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_PROGRAM = re.compile(r"(.*)\((\d+)\)")

CONTAINERS = frozenset({"while", "conditional", "call", "async-start", "async-done"})
"""Kinds of instructions whose time is that of the instructions inside."""

Scopes = dict[int, dict[str, "Instruction"]]
"""Instructions by program id and name."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a compiled program.

    Attributes:
        kind: Its opcode, `fusion` for instance.
        scope: Where it comes from, such as `jit(step)/layers/while/body/mlp/down/dot_general`; may be empty.
    """

    kind: str
    scope: str


def read_scopes(space: bytes) -> Scopes:
    """Read the instructions of all programs in a trace.

    Args:
        space: The bytes of an `*.xplane.pb` file.
    """
    found: Scopes = {}
    for plane in _all(memoryview(space), 1):
        if _text(plane, 2) != "/host:metadata":
            continue
        for entry in _all(plane, 4):
            (metadata,) = _all(entry, 2)
            named = _PROGRAM.fullmatch(_text(metadata, 2))
            for stat in _all(metadata, 5):
                for proto in _all(stat, 6):
                    for module in _all(proto, 1):
                        found[int(named.group(2)) if named else 0] = _instructions(module)
    return found


@dataclass(slots=True)
class _Raw:
    name: str
    kind: str
    scope: str
    computation: int
    calls: list[int]


def _instructions(module: memoryview) -> dict[str, Instruction]:
    raw = [
        _Raw(_text(each, 1), _text(each, 2), _scope(each), _number(computation, 5), _numbers(each, 38))
        for computation in _all(module, 3)
        for each in _all(computation, 2)
    ]
    callers = {called: each for each in raw for called in each.calls}
    inside: dict[int, Counter[str]] = {}
    for each in raw:
        if each.scope:
            inside.setdefault(each.computation, Counter())[each.scope] += 1

    def scope_of(each: _Raw) -> str:
        if each.scope:
            return each.scope
        # What the compiler made has no scope: take that of most of what is fused in it, or else of what calls it.
        if each.kind == "fusion":
            for called in each.calls:
                if called in inside:
                    return inside[called].most_common(1)[0][0]
        caller = callers.get(each.computation)
        return scope_of(caller) if caller is not None else ""

    return {each.name: Instruction(each.kind, scope_of(each)) for each in raw}


def _scope(instruction: memoryview) -> str:
    return next((_text(metadata, 2) for metadata in _all(instruction, 7)), "")


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield number and value of every field: an integer, or bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value, at = _varint(message, at)
                yield key >> 3, value
            case 2:
                length, at = _varint(message, at)
                yield key >> 3, message[at : at + length]
                at += length
            case kind:
                at += 8 if kind == 1 else 4  # fixed 64 and 32 bits, which nothing here needs


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _all(message: memoryview, number: int) -> list[memoryview]:
    return [value for field, value in _fields(message) if field == number and isinstance(value, memoryview)]


def _text(message: memoryview, number: int) -> str:
    return next((str(value, "utf-8", "replace") for value in _all(message, number)), "")


def _number(message: memoryview, number: int) -> int:
    return next(iter(_numbers(message, number)), 0)


def _numbers(message: memoryview, number: int) -> list[int]:
    """Return a repeated integer, packed or not."""
    found: list[int] = []
    for field, value in _fields(message):
        if field != number:
            continue
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            each, at = _varint(value, at)
            found.append(each)
    return found
