"""The compiled programs that a trace carries: every instruction, with the `jax.named_scope` that it was traced under.

XProf's tables are empty for CPUs (2.24); so the few fields that matter are declared here, for protobuf to read. Numbers
are those of `xplane.proto` and `hlo.proto`.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROGRAM = re.compile(r"(.*)\((\d+)\)")
"""How a trace calls a program: its name and its number."""

_STRING, _BYTES = 9, 12  # FieldDescriptorProto.Type
_ONE, _MANY = 1, 3  # FieldDescriptorProto.Label
_FIELDS: dict[str, list[tuple[int, str, int | str, int]]] = {
    "XSpace": [(1, "planes", "XPlane", _MANY)],
    "XPlane": [(2, "name", _STRING, _ONE), (4, "event_metadata", "Entry", _MANY)],
    "Entry": [(2, "value", "XEventMetadata", _ONE)],
    "XEventMetadata": [(2, "name", _STRING, _ONE), (5, "stats", "XStat", _MANY)],
    "XStat": [(6, "bytes_value", _BYTES, _ONE)],
    "HloProto": [(1, "hlo_module", "Module", _ONE)],
    "Module": [(3, "computations", "Computation", _MANY)],
    "Computation": [(2, "instructions", "Hlo", _MANY)],
    "Hlo": [(1, "name", _STRING, _ONE), (2, "opcode", _STRING, _ONE), (7, "metadata", "OpMetadata", _ONE)],
    "OpMetadata": [(2, "op_name", _STRING, _ONE)],
}
"""Number, name, type and label of each field, by message."""


class TracedInstruction(NamedTuple):
    """An instruction of a compiled program."""

    kind: str  # opcode, `fusion` for instance
    scope: str  # such as `jit(step)/layers/while/body/mlp/down/dot_general`; empty of what the compiler made


UNKNOWN = TracedInstruction("", "")
"""What is known of an instruction that no program has."""

Programs = Mapping[int, Mapping[str, TracedInstruction]]
"""Every instruction, by its program's number and by its name."""


def read_programs(space: bytes) -> Programs:
    """Read all programs in a trace, which are in its plane `/host:metadata`; raises `DecodeError`."""
    found: dict[int, Mapping[str, TracedInstruction]] = {}
    for plane in _message("XSpace").FromString(space).planes:
        for entry in plane.event_metadata if plane.name == "/host:metadata" else ():
            named = PROGRAM.fullmatch(entry.value.name)
            for content in [stat.bytes_value for stat in entry.value.stats if stat.bytes_value]:
                computations = _message("HloProto").FromString(content).hlo_module.computations
                found[int(named[2]) if named else 0] = {
                    each.name: TracedInstruction(each.opcode, each.metadata.op_name)
                    for computation in computations
                    for each in computation.instructions
                }
    return found


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
