"""Reads a compiled TPU program: which operations run how often, and the cycles that the compiler expects of each.

The compiler writes its own estimate into the text of every fusion and product. Loops name their trip count, but for
the one in which devices exchange what goes to pages, which is kept apart. Kernels written in Pallas have no
estimate: they are listed, and priced from their schedules elsewhere. Copies that run beside other operations have
none either: they are listed with their bytes, and with what runs between their start and where they are waited for.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mis_kernels.aot.program_text import Instruction, callee, computations, known_trips, scope

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CONSTANT = re.compile(r" constant\((\d+)\)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_ARRAY = r"([a-z]+\d+)\[([\d,]*)\]"
_COPIES = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")
_UNKNOWN = 1 << 62  # what the compiler writes where it has no estimate

KERNEL = "tpu_custom_call"
COPY = "async-copy"
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


@dataclass(frozen=True, slots=True)
class HloOperation:
    """One instruction that takes time.

    Attributes:
        name: Its name in the program.
        kind: Its opcode, such as `fusion`; `KERNEL`; or `COPY`, of which the start is listed.
        scope: Where it comes from, such as `jit(step)/layers/while/body/mlp/dot_general`; may be empty.
        cycles: Cycles of one execution, None where the compiler has no estimate; of a copy, those of what runs beside
            it, None if a kernel or a loop does.
        times: How often it runs in one execution of the program, or for each exchange of one.
        exchanged: Whether it runs for each exchange: the step's arguments say how many there are, 0 for most steps.
        bytes: Of a collective or a copy, the size of its result; otherwise 0.
        devices: Of a collective, how many take part; otherwise 1.
    """

    name: str
    kind: str
    scope: str
    cycles: int | None
    times: int
    exchanged: bool = False
    bytes: int = 0
    devices: int = 1


def read_operations(text: str) -> list[HloOperation]:
    """Return the operations of a program's text, those in loops with their number of executions.

    Raises:
        ValueError: the text has no entry, a loop does not name its trip count, or there is a conditional.
    """
    found, entry = computations(text)
    if entry is None:
        raise ValueError("The text of the program has no entry computation.")
    return list(_walk(found, entry, 1, exchanged=False))


def _walk(
    computations: dict[str, list[Instruction]], name: str, times: int, *, exchanged: bool
) -> Iterator[HloOperation]:
    for index, instruction in enumerate(computations[name]):
        line, kind = instruction.line, instruction.kind
        if kind == "while" and _is_exchange(line):
            yield from _walk(computations, callee(line, "body"), times, exchanged=True)
        elif kind == "while":
            trips = _trips(computations, instruction)
            yield from _walk(computations, callee(line, "body"), times * trips, exchanged=exchanged)
        elif kind == "conditional":
            raise ValueError(f"The conditional {instruction.name} does not say which branch it takes.")
        elif kind == "call" or (kind == "async-start" and "calls=" in line):
            called = callee(line, "to_apply" if kind == "call" else "calls")
            yield from _walk(computations, called, times, exchanged=exchanged)
        elif kind in _COPIES:
            beside = _beside(computations[name], index)
            yield HloOperation(instruction.name, COPY, scope(line), beside, times, exchanged, _copied(line))
        else:
            yield from _operation(instruction, times, exchanged=exchanged)


def _is_exchange(loop: str) -> bool:
    return "write_pages" in scope(loop).split("/")


def _beside(instructions: list[Instruction], start: int) -> int | None:
    """Return the cycles of what runs between the start of a copy and its end, None if a kernel or a loop does.

    An end in another computation is behind all that follows here. Writing pages takes no time in most steps.
    """
    used = re.compile(rf"%{re.escape(instructions[start].name)}\b")
    cycles = 0
    for each in instructions[start + 1 :]:
        if each.kind.endswith("-done") and used.search(each.line):
            break
        if (each.kind == "while" or f'"{KERNEL}"' in each.line) and "write_pages" not in each.line:
            return None
        cycles += _cycles(each.line) or 0
    return cycles


def _copied(line: str) -> int:
    """Return the bytes of what the start of a copy makes: the second of its results, the first being what is copied."""
    results = re.findall(_ARRAY, line.partition(" = ")[2].partition("-start(")[0])
    return _size(*results[1]) if len(results) > 1 else 0


def _trips(computations: dict[str, list[Instruction]], loop: Instruction) -> int:
    """Return how often a loop runs: as it says, or the bound that a counter from 0 is compared with."""
    known = known_trips(loop.line)
    if known is not None:
        return known
    condition = computations[callee(loop.line, "condition")]
    bounds = [match.group(1) for each in condition if (match := _CONSTANT.search(each.line))]
    if len(bounds) != 1 or not any("direction=LT" in each.line for each in condition):
        raise ValueError(f"The loop {loop.name} does not say how often it runs.")
    return int(bounds[0])


def _operation(instruction: Instruction, times: int, *, exchanged: bool) -> Iterator[HloOperation]:
    line, kind = instruction.line, instruction.kind
    target = _TARGET.search(line)
    if target is not None and target.group(1) == KERNEL:
        kind = KERNEL
    known = _cycles(line)
    if known is None and kind != KERNEL and not kind.startswith(COLLECTIVES):
        return
    where = scope(line)
    if kind.startswith(COLLECTIVES):
        if not kind.endswith("-done"):
            yield HloOperation(instruction.name, kind, where, None, times, exchanged, _bytes(line), _devices_of(line))
        return
    yield HloOperation(instruction.name, kind, where, known, times, exchanged)


def _bytes(line: str) -> int:
    """Return the size of an instruction's result, of the last one if there are several."""
    return _size(*re.findall(_ARRAY, line.partition(" = ")[2].partition("(%")[0])[-1])


def _size(element: str, sizes: str) -> int:
    count = 1
    for size in filter(None, sizes.split(",")):
        count *= int(size)
    return count * int(re.sub(r"[a-z]+", "", element)) // 8


def _cycles(line: str) -> int | None:
    found = _CYCLES.search(line)
    return int(found.group(1)) if found and int(found.group(1)) < _UNKNOWN else None


def _devices_of(line: str) -> int:
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    if listed is not None:
        return len(listed.group(1).split(","))
    counted = re.search(r"replica_groups=\[\d+,(\d+)\]", line)
    return int(counted.group(1)) if counted else 1
