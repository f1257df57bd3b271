"""Reads the text of a compiled program, TPU's or GPU's: its computations and their instructions."""

import re
from dataclasses import dataclass

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation.

    Attributes:
        name: Its name in the program.
        kind: Its opcode, such as `fusion`.
        line: All of it.
    """

    name: str
    kind: str
    line: str


def computations(text: str) -> tuple[dict[str, list[Instruction]], str | None]:
    """Return the computations of a program's text by name, and the name of its entry if it has one."""
    found: dict[str, list[Instruction]] = {}
    entry = current = None
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = header.group(2)
            found[current] = []
            entry = current if header.group(1) else entry
        elif current is not None and (match := _INSTRUCTION.match(line)):
            found[current].append(Instruction(match.group(1), _opcode(match.group(2)), line))
    return found, entry


def known_trips(loop: str) -> int | None:
    """Return how often a loop says that it runs, if it does."""
    known = _TRIPS.search(loop)
    return int(known.group(1)) if known else None


def scope(line: str) -> str:
    """Return where an instruction comes from, such as `jit(step)/layers/while/body/mlp/dot_general`; may be empty."""
    found = _OP_NAME.search(line)
    return found.group(1) if found else ""


def callee(line: str, attribute: str) -> str:
    """Return the computation that an instruction names as an attribute, such as `body`."""
    match = re.search(attribute + r"=%?([\w.\-]+)", line)
    assert match is not None, f"{attribute} of {line[:80]}"
    return match.group(1)


def _opcode(rest: str) -> str:
    """Return the opcode behind a type, which may be a tuple of types."""
    depth = 0
    for index, character in enumerate(rest):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and character == " ":
            return rest[index + 1 :].partition("(")[0]
    return ""
