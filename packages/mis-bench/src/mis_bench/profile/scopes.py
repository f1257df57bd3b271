"""Which part of the model an operation belongs to: from the compiled programs that a trace carries.

A trace (`*.xplane.pb`) has the optimised HLO of every program that ran, in the plane `/host:metadata`. Its
instructions keep the `jax.named_scope` they were traced under. JAX's reader of traces shows events only, and XProf's
tables have no operations of CPUs; so the few fields that matter are declared here, for protobuf to read. Numbers are
those of `xplane.proto` and `hlo.proto`.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_PROGRAM = re.compile(r"(.*)\((\d+)\)")

CONTAINERS = frozenset({"while", "conditional", "call", "async-start", "async-done"})
"""Kinds of instructions whose time is that of the instructions inside."""

Scopes = dict[int, dict[str, "Instruction"]]
"""Instructions by program id and name."""

_STRING, _BYTES, _INT64 = 9, 12, 3  # FieldDescriptorProto.Type
_MESSAGES: dict[str, list[tuple[int, str, int | str, bool]]] = {
    "XSpace": [(1, "planes", "XPlane", True)],
    "XPlane": [(2, "name", _STRING, False), (4, "event_metadata", "Entry", True)],
    "Entry": [(2, "value", "XEventMetadata", False)],
    "XEventMetadata": [(2, "name", _STRING, False), (5, "stats", "XStat", True)],
    "XStat": [(6, "bytes_value", _BYTES, False)],
    "HloProto": [(1, "hlo_module", "Module", False)],
    "Module": [(3, "computations", "Computation", True)],
    "Computation": [(2, "instructions", "Hlo", True), (5, "id", _INT64, False)],
    "Hlo": [
        (1, "name", _STRING, False), (2, "opcode", _STRING, False), (7, "metadata", "OpMetadata", False),
        (38, "called_computation_ids", _INT64, True),
    ],
    "OpMetadata": [(2, "op_name", _STRING, False)],
}  # fmt: skip
"""Number, name, type and whether it is repeated, of each field, by message."""


class ScopesError(ValueError):
    """Bytes are no trace."""


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

    Raises:
        ScopesError: it is none.
    """
    found: Scopes = {}
    try:
        for plane in _message("XSpace").FromString(space).planes:
            for entry in plane.event_metadata if plane.name == "/host:metadata" else ():
                named = _PROGRAM.fullmatch(entry.value.name)
                for stat in entry.value.stats:
                    if stat.bytes_value:
                        module = _message("HloProto").FromString(stat.bytes_value).hlo_module
                        found[int(named.group(2)) if named else 0] = _instructions(module.computations)
    except DecodeError as error:
        raise ScopesError(str(error)) from None
    return found


def _instructions(computations: Iterable[Any]) -> dict[str, Instruction]:
    raw = [(computation.id, each) for computation in computations for each in computation.instructions]
    home = {each.name: computation for computation, each in raw}
    callers = {called: each for _, each in raw for called in each.called_computation_ids}
    inside: dict[int, Counter[str]] = {}
    for computation, each in raw:
        if each.metadata.op_name:
            inside.setdefault(computation, Counter())[each.metadata.op_name] += 1

    def scope_of(each: Any) -> str:
        if each.metadata.op_name:
            return each.metadata.op_name
        # What the compiler made has no scope: take that of most of what is fused in it, or else of what calls it.
        if each.opcode == "fusion":
            for called in each.called_computation_ids:
                if called in inside:
                    return inside[called].most_common(1)[0][0]
        caller = callers.get(home[each.name])
        return scope_of(caller) if caller is not None else ""

    return {each.name: Instruction(each.opcode, scope_of(each)) for _, each in raw}


@cache
def _message(name: str) -> Any:
    """Return the class of a message of `_MESSAGES`."""
    file = descriptor_pb2.FileDescriptorProto(name="mis_bench/trace.proto", package="mis_bench", syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for number, field, kind, is_repeated in fields:
            label = 3 if is_repeated else 1  # FieldDescriptorProto.Label
            if isinstance(kind, str):
                described.field.add(name=field, number=number, type=11, type_name=f".mis_bench.{kind}", label=label)
            else:
                described.field.add(name=field, number=number, type=kind, label=label)  # pyrefly: ignore
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"mis_bench.{name}"))
