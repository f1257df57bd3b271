"""What ran when, and for which part of the model: operations of the devices and marks of the host, from a trace.

JAX's reader of traces (`*.xplane.pb`) shows events. Which part of the model an operation belongs to is in the compiled
programs, which the trace carries as well (`programs`).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from mis_bench.profile.programs import (
    NO_PROGRAM,
    PROGRAM,
    UNKNOWN,
    Programs,
    Run,
    by_kernel,
    instructions_of,
    read_programs,
)
from mis_bench.profile.records import ProfileError

REQUEST = "mis_bench.request"
"""Mark around each profiled request of `mis-bench profile`."""

_MARKS = ("mis.", "mis_bench.")
_CONTAINERS = ("while", "conditional", "call", "async-start", "async-done")  # their time is that of what is inside


class Operation(NamedTuple):
    """One run of an operation of a compiled program, by the trace's clock."""

    device: str  # plane of the trace: `/device:TPU:0` or `/device:GPU:0`, or `/host:CPU`
    program: str  # `jit_step` for instance
    name: str  # of its instruction, or of its kernel
    kind: str  # opcode, `fusion` for instance; empty if the trace has no such program
    scope: str  # such as `jit(step)/layers/while/body/mlp/down/dot_general`; empty of what the compiler made
    begin_ns: float
    end_ns: float
    call: str = ""  # as `TracedInstruction` has it
    bytes: int = 0  # of its result
    bytes_read: int = 0  # of its operands

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
        return _trace(ProfileData.from_serialized_xspace(content), read_programs(content))
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
    """Yield a CPU's operations: each may go on after the call that launched it, and a second event tells its end.

    That event may be late by as long as a thread that shared the work finds nothing else to do. An operation is over
    when one that reads its result begins, or when it runs again.
    """
    ends = {dict(event.stats).get("_c"): event.start_ns for event in events if event.name.startswith("end: ")}
    ran: list[tuple[Run, str, float, float]] = []
    named: dict[Run, set[str]] = defaultdict(set)
    for event in events:
        stats = dict(event.stats)
        if "hlo_op" in stats:
            run, name = (str(stats.get("hlo_module", "")), int(stats.get("program_id", 0))), str(stats["hlo_op"])
            named[run].add(name)
            ran.append((run, name, event.start_ns, max(event.end_ns, ends.get(stats.get("_p"), 0.0))))
    instructions = instructions_of(named, programs)
    begins: dict[tuple[Run, str], list[float]] = defaultdict(list)
    for run, name, begin, _ in sorted(ran, key=lambda each: each[2]):
        begins[run, name].append(begin)
    for run, name, begin, end in ran:
        found = instructions[run].get(name, UNKNOWN)
        after = (begins[run, each] for each in (name, *found.readers) if (run, each) in begins)
        following = [those[index] for those in after if (index := bisect_right(those, begin)) < len(those)]
        what, over = (device, run[0], name, found.kind, found.scope), min([end, *following])
        yield Operation(*what, begin, over, found.call, found.bytes, found.bytes_read)


def _of_gpu(device: str, events: Iterable[Any], programs: Programs) -> Iterator[Operation]:
    """Yield a GPU's kernels. Those of a CUDA graph tell the graph as their operation, but have names of their own."""
    kernels = {number: by_kernel(program.instructions) for number, program in programs.items()}
    for event in events:
        stats = dict(event.stats)
        if "hlo_op" in stats:
            number, name = int(stats.get("program_id", 0)), str(stats["hlo_op"])
            found = programs.get(number, NO_PROGRAM).instructions.get(name)
            if found is None:
                name = event.name
                found = kernels.get(number, {}).get(name, UNKNOWN)
            program = str(stats.get("hlo_module", ""))
            yield Operation(device, program, name, found.kind, found.scope, event.start_ns, event.end_ns)


def _of_tpu(device: str, lines: Mapping[str, Sequence[Any]], programs: Programs) -> Iterator[Operation]:
    """Yield a TPU's operations: each belongs to the run of a program whose span it lies in."""
    runs = sorted(lines.get("XLA Modules", ()), key=lambda run: run.start_ns)
    begins = [run.start_ns for run in runs]
    for event in lines.get("XLA Ops", ()):
        number = bisect_right(begins, event.start_ns) - 1
        named = PROGRAM.fullmatch(runs[number].name) if number >= 0 else None
        program, program_id = (named[1], int(named[2])) if named else ("", 0)
        name = event.name.partition(" = ")[0].lstrip("%")
        kind, scope, *_ = programs.get(program_id, NO_PROGRAM).instructions.get(name, UNKNOWN)
        yield Operation(device, program, name, kind, scope, event.start_ns, event.end_ns)
