"""The compiled programs that a trace carries: every instruction, with the `jax.named_scope` that it was traced under.

XProf's tables are empty for CPUs (2.24); so the few fields that matter are declared here, for protobuf to read. Numbers
are those of `xplane.proto` and `hlo.proto`.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from mis_bench.profile.traffic import bytes_of, bytes_read

_UNSEEN = ("bitcast", "get-tuple-element", "tuple")
"""Kinds of instructions that a trace never shows: what reads their results reads those of their operands."""

COPY = "copy"
"""What `TracedInstruction.call` says of copies and conversions."""

_COPIES = {"copy", "convert", "bitcast-convert", "transpose", "reshape", "concatenate"}
_PLAIN = {"fusion", "parameter", "constant", "bitcast", "tuple", "get-tuple-element"}

PROGRAM = re.compile(r"(.*)\((\d+)\)")
"""How a trace calls a program: its name and its number."""

_INT64, _STRING, _BYTES = 3, 9, 12  # FieldDescriptorProto.Type
_ONE, _MANY = 1, 3  # FieldDescriptorProto.Label
_FIELDS: dict[str, list[tuple[int, str, int | str, int]]] = {
    "XSpace": [(1, "planes", "XPlane", _MANY)],
    "XPlane": [(2, "name", _STRING, _ONE), (4, "event_metadata", "Entry", _MANY)],
    "Entry": [(2, "value", "XEventMetadata", _ONE)],
    "XEventMetadata": [(2, "name", _STRING, _ONE), (5, "stats", "XStat", _MANY)],
    "XStat": [(6, "bytes_value", _BYTES, _ONE)],
    "HloProto": [(1, "hlo_module", "Module", _ONE)],
    "Module": [(3, "computations", "Computation", _MANY)],
    "Computation": [(2, "instructions", "Hlo", _MANY), (5, "id", _INT64, _ONE)],
    "Hlo": [
        *((1, "name", _STRING, _ONE), (2, "opcode", _STRING, _ONE), (7, "metadata", "OpMetadata", _ONE)),
        *((35, "id", _INT64, _ONE), (36, "operand_ids", _INT64, _MANY)),
        *((3, "shape", "Shape", _ONE), (28, "custom_call_target", _STRING, _ONE)),
        (38, "called_computation_ids", _INT64, _MANY),
    ],
    "Shape": [(2, "element_type", _INT64, _ONE), (3, "dimensions", _INT64, _MANY), (4, "tuple_shapes", "Shape", _MANY)],
    "OpMetadata": [(2, "op_name", _STRING, _ONE)],
}
"""Number, name, type and label of each field, by message."""


class TracedInstruction(NamedTuple):
    """An instruction of a compiled program."""

    kind: str  # opcode, `fusion` for instance
    scope: str  # such as `jit(step)/layers/while/body/mlp/down/dot_general`; empty of what the compiler made
    readers: frozenset[str] = frozenset()  # names of the instructions that run on its result
    call: str = ""  # the function that a custom call calls; `COPY` of what copies or converts and computes nothing
    bytes: int = 0  # of its result
    bytes_read: int = 0  # of its operands, as `traffic.bytes_read` counts them


UNKNOWN = TracedInstruction("", "")
"""What is known of an instruction that no program has."""


class TracedProgram(NamedTuple):
    """A compiled program."""

    name: str  # `jit_step` for instance; several have the same
    instructions: Mapping[str, TracedInstruction]


NO_PROGRAM = TracedProgram("", {})
"""What is known of a program that the trace does not carry."""

Programs = Mapping[int, TracedProgram]
"""Programs by their numbers in the process that made the trace."""

Run = tuple[str, int]
"""Name and number of a program, as its operations tell them."""


def read_programs(space: bytes) -> Programs:
    """Read all programs in a trace, which are in its plane `/host:metadata`; raises `DecodeError`."""
    found: dict[int, TracedProgram] = {}
    for plane in _message("XSpace").FromString(space).planes:
        for entry in plane.event_metadata if plane.name == "/host:metadata" else ():
            named = PROGRAM.fullmatch(entry.value.name)
            for content in [stat.bytes_value for stat in entry.value.stats if stat.bytes_value]:
                computations = _message("HloProto").FromString(content).hlo_module.computations
                instructions: dict[str, TracedInstruction] = {}
                kinds = {each.id: {inner.opcode for inner in each.instructions} for each in computations}
                for computation in computations:
                    instructions |= _described(computation.instructions, kinds)
                name, number = (named[1], int(named[2])) if named else (entry.value.name, 0)
                found[number] = TracedProgram(name, instructions)
    return found


def _described(instructions: Sequence[Any], kinds: Mapping[int, set[str]]) -> dict[str, TracedInstruction]:
    """Describe the instructions of a computation, as protobuf has them, by name.

    `kinds` are those of the instructions of every computation, by its number.
    """
    shapes = {each.id: each.shape for each in instructions}
    users: dict[int, list[Any]] = defaultdict(list)
    for each in instructions:
        for number in each.operand_ids:
            users[number].append(each)

    def readers(number: int) -> frozenset[str]:
        found = (readers(each.id) if each.opcode in _UNSEEN else {each.name} for each in users[number])
        return frozenset().union(*found)

    def call(each: Any) -> str:
        within = {each.opcode}.union(*(kinds[number] for number in each.called_computation_ids)) - _PLAIN
        return COPY if within and within <= _COPIES else each.custom_call_target

    def described(each: Any) -> TracedInstruction:
        name, operands = call(each), [shapes[number] for number in each.operand_ids]
        sizes = bytes_of(each.shape), bytes_read(name, operands)
        return TracedInstruction(each.opcode, each.metadata.op_name, readers(each.id), name, *sizes)

    return {each.name: described(each) for each in instructions}


def instructions_of(
    runs: Mapping[Run, Collection[str]], programs: Programs
) -> dict[Run, Mapping[str, TracedInstruction]]:
    """Find the instructions of programs that ran on a CPU.

    There, a step from the folder of compiled steps runs under the number that it had in the process that compiled it.
    This process describes it under another, and the old number may be another step's. So where one program shows that,
    no number counts: a program is one of its name that has most of what ran. Several may be, steps of other sizes for
    instance; of those, an instruction is what they agree on.

    Args:
        runs: Names of the instructions that ran.
        programs: All that the trace carries.
    """
    fitting = {(name, number): _fitting(name, ran, programs) for (name, number), ran in runs.items()}
    is_renumbered = any(found and run[1] not in found for run, found in fitting.items())
    numbers = fitting if is_renumbered else {run: [run[1]] for run in runs}
    described = {run: [programs.get(each, NO_PROGRAM).instructions for each in found] for run, found in numbers.items()}
    return {run: _agreed(found) for run, found in described.items()}


def _fitting(name: str, ran: Collection[str], programs: Programs) -> list[int]:
    """Return the numbers of the programs of a name that have most of the instructions that ran, and one at least."""
    alike = {number: program.instructions for number, program in programs.items() if program.name == name}
    covered = {number: len(instructions.keys() & set(ran)) for number, instructions in alike.items()}
    return [number for number, count in covered.items() if count == max(covered.values()) > 0]


def _agreed(programs: Sequence[Mapping[str, TracedInstruction]]) -> Mapping[str, TracedInstruction]:
    """Return the instructions that are the same in all programs that have one of that name, with their common readers.

    Sizes that differ are unknown, and 0.
    """
    found: dict[str, list[TracedInstruction]] = defaultdict(list)
    for program in programs:
        for name, instruction in program.items():
            found[name].append(instruction)
    agreed: dict[str, TracedInstruction] = {}
    for name, (first, *others) in found.items():
        if all(each[:2] == first[:2] for each in others):
            readers = first.readers.intersection(*(each.readers for each in others))
            sizes = {(each.bytes, each.bytes_read) for each in (first, *others)}
            written, read = sizes.pop() if len(sizes) == 1 else (0, 0)
            agreed[name] = first._replace(readers=readers, bytes=written, bytes_read=read)
    return agreed


def by_kernel(program: Mapping[str, TracedInstruction]) -> Mapping[str, TracedInstruction]:
    """Return kind and scope by the names that kernels have: the instruction's, or the one that Pallas was given."""
    found: dict[str, TracedInstruction] = {}
    for name, instruction in program.items():
        found.setdefault(re.sub(r"\W", "_", name), instruction)
        parts = instruction.scope.split("/")
        if instruction.kind == "custom-call" and len(parts) > 1 and parts[-1] == "pallas_call":
            found.setdefault(parts[-2], instruction)
    return found


@cache
def _message(name: str) -> Any:
    """Return the class of a message of `_FIELDS`."""
    file = descriptor_pb2.FileDescriptorProto(name="mis_bench/programs.proto", package="mis_bench", syntax="proto3")
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for number, field, kind, label in fields:
            is_message = isinstance(kind, str)
            what = {"type_name": f".mis_bench.{kind}"} if is_message else {"type": kind}
            described.field.add(name=field, number=number, label=label, **what)  # pyrefly: ignore
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"mis_bench.{name}"))
