"""Reads a compiled TPU program: which operations run how often, and the cycles that the compiler expects of each.

The compiler writes its own estimate into the text of every fusion and product. Loops name their trip count, but for
those that a step's arrays decide: exchanges of what goes to pages, and chunks of recurrent layers, whose branches these
decide, too. Such loops and branches are known by their named scopes, and kept apart. Kernels written in Pallas have no
estimate: they are listed, and priced from their schedules elsewhere. Copies that run beside other operations have
none either: they are listed with their bytes, and with what runs between their start and where they are waited for.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mis_kernels.aot.program_text import Instruction, callee, computations, known_trips, scope
from mis_kernels.backends.xla.recurrence import Branches

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CONSTANT = re.compile(r" constant\((\d+)\)")
_BRANCHES = re.compile(r"branch_computations=\{%?([\w.\-]+), %?([\w.\-]+)\}")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_ARRAY = r"([a-z]+\d+)\[([\d,]*)\]"
_COPIES = ("copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice-start")
_UNKNOWN = 1 << 62  # what the compiler writes where it has no estimate

KERNEL = "tpu_custom_call"
COPY = "async-copy"
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

EXCHANGES, CHUNKS = "write_pages", "chunks"
"""Scopes of loops whose iterations a step's arrays decide."""

NOT = "not "
"""Before the name of a branch: it is not taken."""


@dataclass(frozen=True, slots=True)
class HloOperation:
    """One instruction that takes time.

    Attributes:
        name: Its name in the program.
        kind: Its opcode, such as `fusion`; `KERNEL`; or `COPY`, of which the start is listed.
        scope: Where it comes from, such as `jit(step)/layers/while/body/mlp/dot_general`; may be empty.
        cycles: Cycles of one execution, None where the compiler has no estimate; of a copy, those of what runs beside
            it, None if a kernel or a loop does.
        times: How often it runs in one execution of the program, or of the last of what it is within.
        within: Loops and branches around it that a step's arrays decide, outermost first: `EXCHANGES`, `CHUNKS`, or a
            field of `mis_kernels.backends.xla.recurrence.Branches`, after `NOT` where it is the other branch.
        bytes: Of a collective or a copy, the size of its result; otherwise 0.
        devices: Of a collective, how many take part; otherwise 1.
    """

    name: str
    kind: str
    scope: str
    cycles: int | None
    times: int
    within: tuple[str, ...] = ()
    bytes: int = 0
    devices: int = 1


def read_operations(text: str) -> list[HloOperation]:
    """Return the operations of a program's text, those in loops with their number of executions.

    Raises:
        ValueError: the text has no entry, or nothing says how often a loop runs or which branch is taken.
    """
    found, entry = computations(text)
    if entry is None:
        raise ValueError("The text of the program has no entry computation.")
    return list(_walk(found, entry, 1, ()))


def _walk(
    computations: dict[str, list[Instruction]], name: str, times: int, within: tuple[str, ...]
) -> Iterator[HloOperation]:
    for index, instruction in enumerate(computations[name]):
        line, kind = instruction.line, instruction.kind
        if kind == "while":
            trips = _trips(computations, instruction)
            around = within if isinstance(trips, int) else (*within, trips)
            each = times * trips if isinstance(trips, int) else times
            yield from _walk(computations, callee(line, "body"), each, around)
        elif kind == "conditional":
            for taken, branch in _branches(instruction):
                yield from _walk(computations, branch, times, (*within, taken))
        elif kind == "call" or (kind == "async-start" and "calls=" in line):
            called = callee(line, "to_apply" if kind == "call" else "calls")
            yield from _walk(computations, called, times, within)
        elif kind in _COPIES:
            beside = _beside(computations[name], index)
            yield HloOperation(instruction.name, COPY, scope(line), beside, times, within, _copied(line))
        else:
            yield from _operation(instruction, times, within)


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


def _trips(computations: dict[str, list[Instruction]], loop: Instruction) -> int | str:
    """Return how often a loop runs: as it says, or the bound that a counter from 0 is compared with; or its scope."""
    known = known_trips(loop.line)
    if known is not None:
        return known
    condition = computations[callee(loop.line, "condition")]
    bounds = [match.group(1) for each in condition if (match := _CONSTANT.search(each.line))]
    if len(bounds) == 1 and any("direction=LT" in each.line for each in condition):
        return int(bounds[0])
    scopes = scope(loop.line).split("/")
    decided = [name for name in (EXCHANGES, CHUNKS) if name in scopes]
    if not decided:
        raise ValueError(f"The loop {loop.name} does not say how often it runs.")
    return decided[0]


def _branches(conditional: Instruction) -> Iterator[tuple[str, str]]:
    """Yield both branches of a conditional of a recurrent layer's chunk: when it is taken, and its computation."""
    around = scope(conditional.line).rpartition("/cond")[0].rpartition("/")[2]
    listed = _BRANCHES.search(conditional.line)
    if around not in Branches._fields or listed is None:
        raise ValueError(f"The conditional {conditional.name} does not say which branch it takes.")
    yield from zip((NOT + around, around), listed.groups(), strict=True)


def _operation(instruction: Instruction, times: int, within: tuple[str, ...]) -> Iterator[HloOperation]:
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
            yield HloOperation(instruction.name, kind, where, None, times, within, _bytes(line), _devices_of(line))
        return
    yield HloOperation(instruction.name, kind, where, known, times, within)


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
