"""What ran when, and for which part of the model: operations of the devices and marks of the host, from a trace.

JAX's reader of traces (`*.xplane.pb`) shows events. Which part of the model an operation belongs to is in the compiled
programs, which the trace carries as well, with the `jax.named_scope` that every instruction was traced under. XProf's
tables are empty for CPUs (2.24); so the few fields that matter are declared here, for protobuf to read. Numbers are
those of `xplane.proto` and `hlo.proto`.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from mis_bench.profile.records import ProfileError

REQUEST = "mis_bench.request"
"""Mark around each profiled request of `mis-bench profile`."""

_MARKS = ("mis.", "mis_bench.")
_PROGRAM = re.compile(r"(.*)\((\d+)\)")
_CONTAINERS = ("while", "conditional", "call", "async-start", "async-done")  # their time is that of what is inside

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

Programs = Mapping[int, Mapping[str, tuple[str, str]]]
"""Kind and scope of every instruction, by program id and by the instruction's name."""


class Operation(NamedTuple):
    """One run of an operation of a compiled program, by the trace's clock."""

    device: str  # plane of the trace: `/device:TPU:0` or `/device:GPU:0`, or `/host:CPU`
    program: str  # `jit_step` for instance
    name: str  # of its instruction, or of its kernel
    kind: str  # opcode, `fusion` for instance; empty if the trace has no such program
    scope: str  # such as `jit(step)/layers/while/body/mlp/down/dot_general`; empty of what the compiler made
    begin_ns: float
    end_ns: float

    @property
    def ms(self) -> float:
        """How long it took."""
        return (self.end_ns - self.begin_ns) / 1e6


class Mark(NamedTuple):
    """A span that the host marked: `mis.plan`, `mis.step` and so on, by the trace's clock."""

    name: str
    begin_ns: float
    end_ns: float


class DeviceTrace(NamedTuple):
    """A trace, each part by time."""

    operations: Sequence[Operation]
    marks: Sequence[Mark]


def read_trace(path: Path) -> DeviceTrace:
    """Read an `*.xplane.pb` file.

    Raises:
        ProfileError: it cannot be read, or is no trace.
    """
    from jax.profiler import ProfileData

    try:
        content = path.read_bytes()
        return _trace(ProfileData.from_serialized_xspace(content), _programs(content))
    except (OSError, RuntimeError, ValueError, DecodeError) as error:
        raise ProfileError(f"{path} cannot be read as a trace: {error}") from None


def _trace(space: Any, programs: Programs) -> DeviceTrace:
    operations: list[Operation] = []
    marks: list[Mark] = []
    for plane in space.planes:
        if plane.name.startswith("/device:TPU"):
            operations += _of_tpu(plane.name, {line.name: list(line.events) for line in plane.lines}, programs)
            continue
        if plane.name.startswith("/device:GPU"):
            operations += _of_gpu(plane.name, [event for line in plane.lines for event in line.events], programs)
            continue
        events = [event for line in plane.lines for event in line.events if not event.name.startswith("$")]  # Python's
        operations += _of_cpu(plane.name, events, programs)
        marks += [Mark(each.name, each.start_ns, each.end_ns) for each in events if each.name.startswith(_MARKS)]
    leaves = [each for each in operations if each.kind not in _CONTAINERS]
    return DeviceTrace(sorted(leaves, key=lambda x: x.begin_ns), sorted(marks, key=lambda x: x.begin_ns))


def _of_cpu(device: str, events: Iterable[Any], programs: Programs) -> Iterator[Operation]:
    """Yield a CPU's operations: each may go on after the call that launched it, and a second event tells its end."""
    ends = {dict(event.stats).get("_c"): event.start_ns for event in events if event.name.startswith("end: ")}
    for event in events:
        stats = dict(event.stats)
        if "hlo_op" in stats:
            name, program = str(stats["hlo_op"]), str(stats.get("hlo_module", ""))
            kind, scope = programs.get(int(stats.get("program_id", 0)), {}).get(name, ("", ""))
            end = max(event.end_ns, ends.get(stats.get("_p"), 0.0))
            yield Operation(device, program, name, kind, scope, event.start_ns, end)


def _of_gpu(device: str, events: Iterable[Any], programs: Programs) -> Iterator[Operation]:
    """Yield a GPU's kernels. Those of a CUDA graph tell the graph as their operation, but have names of their own."""
    kernels = {number: _by_kernel(program) for number, program in programs.items()}
    for event in events:
        stats = dict(event.stats)
        if "hlo_op" in stats:
            number, name = int(stats.get("program_id", 0)), str(stats["hlo_op"])
            found = programs.get(number, {}).get(name)
            if found is None:
                name = event.name
                found = kernels.get(number, {}).get(name, ("", ""))
            program = str(stats.get("hlo_module", ""))
            yield Operation(device, program, name, *found, event.start_ns, event.end_ns)


def _by_kernel(program: Mapping[str, tuple[str, str]]) -> Mapping[str, tuple[str, str]]:
    """Return kind and scope by the names that kernels have: the instruction's, or the one that Pallas was given."""
    found: dict[str, tuple[str, str]] = {}
    for name, (kind, scope) in program.items():
        found.setdefault(re.sub(r"\W", "_", name), (kind, scope))
        parts = scope.split("/")
        if kind == "custom-call" and len(parts) > 1 and parts[-1] == "pallas_call":
            found.setdefault(parts[-2], (kind, scope))
    return found


def _of_tpu(device: str, lines: Mapping[str, Sequence[Any]], programs: Programs) -> Iterator[Operation]:
    """Yield a TPU's operations: each belongs to the run of a program whose span it lies in."""
    runs = sorted(lines.get("XLA Modules", ()), key=lambda run: run.start_ns)
    begins = [run.start_ns for run in runs]
    for event in lines.get("XLA Ops", ()):
        number = bisect_right(begins, event.start_ns) - 1
        named = _PROGRAM.fullmatch(runs[number].name) if number >= 0 else None
        program, program_id = (named[1], int(named[2])) if named else ("", 0)
        name = event.name.partition(" = ")[0].lstrip("%")
        kind, scope = programs.get(program_id, {}).get(name, ("", ""))
        yield Operation(device, program, name, kind, scope, event.start_ns, event.end_ns)


def _programs(space: bytes) -> Programs:
    """Read the instructions of all programs in a trace, which are in its plane `/host:metadata`."""
    found: dict[int, Mapping[str, tuple[str, str]]] = {}
    for plane in _message("XSpace").FromString(space).planes:
        for entry in plane.event_metadata if plane.name == "/host:metadata" else ():
            named = _PROGRAM.fullmatch(entry.value.name)
            for content in [stat.bytes_value for stat in entry.value.stats if stat.bytes_value]:
                computations = _message("HloProto").FromString(content).hlo_module.computations
                found[int(named[2]) if named else 0] = {
                    each.name: (each.opcode, each.metadata.op_name)
                    for computation in computations
                    for each in computation.instructions
                }
    return found


@cache
def _message(name: str) -> Any:
    """Return the class of a message of `_FIELDS`."""
    file = descriptor_pb2.FileDescriptorProto(name="mis_bench/trace.proto", package="mis_bench", syntax="proto3")
    for message, fields in _FIELDS.items():
        described = file.message_type.add(name=message)
        for number, field, kind, label in fields:
            is_message = isinstance(kind, str)
            what = {"type_name": f".mis_bench.{kind}"} if is_message else {"type": kind}
            described.field.add(name=field, number=number, label=label, **what)  # pyrefly: ignore
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"mis_bench.{name}"))
