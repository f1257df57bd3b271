"""What ran when: the operations of the devices and the marks of the host, read from a trace."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mis_bench.profile.scopes import CONTAINERS, Instruction, read_scopes

REQUEST = "mis_bench.request"
"""Mark around each profiled request of `mis-bench profile`."""

_MARKS = ("mis.", "mis_bench.")
_OPERATIONS = "XLA Ops"  # names of lines on a TPU's plane
_PROGRAMS = "XLA Modules"
_TPU_NAME = re.compile(r"%?([\w.-]+)(?: = .*)?", re.DOTALL)
_NOTHING = Instruction("", "")


class TraceError(ValueError):
    """There is no trace where one should be, or it cannot be read."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One run of an operation of a compiled program.

    Attributes:
        device: Plane of the trace: `/device:TPU:0`, or `/host:CPU`.
        program: Name of the compiled program, `jit_step` for instance.
        run: Number that all operations of one run of the program share.
        name: Name of its instruction.
        kind: Opcode; empty if the trace has no such program.
        scope: Named scopes that it was traced under; may be empty.
        begin_ns: When it began, by the trace's clock.
        end_ns: When it was complete.
    """

    device: str
    program: str
    run: int
    name: str
    kind: str
    scope: str
    begin_ns: float
    end_ns: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A span that the host marked: `mis.plan`, `mis.step` and so on, with its details."""

    name: str
    begin_ns: float
    end_ns: float
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace, each part by time."""

    operations: list[Operation]
    marks: list[Mark]

    def within(self, begin_ns: float, end_ns: float) -> "Trace":
        """Return what began in a span of time."""
        return Trace(
            [each for each in self.operations if begin_ns <= each.begin_ns < end_ns],
            [each for each in self.marks if begin_ns <= each.begin_ns < end_ns],
        )


def trace_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of a trace folder for XProf (`*.xplane.pb`) and for Perfetto (`*.trace.json.gz`).

    Raises:
        TraceError: there is no file for XProf.
    """
    xplanes, perfetto = sorted(folder.rglob("*.xplane.pb")), sorted(folder.rglob("*.trace.json.gz"))
    if not xplanes:
        raise TraceError(f"{folder} has no trace (*.xplane.pb).")
    return xplanes, perfetto


def read_trace(path: Path) -> Trace:
    """Read an `*.xplane.pb` file.

    Raises:
        TraceError: it cannot be read, or is no trace.
    """
    from jax.profiler import ProfileData

    try:
        content = path.read_bytes()
        return read_space(ProfileData.from_serialized_xspace(content), content)
    except (OSError, RuntimeError, ValueError) as error:
        raise TraceError(f"{path} cannot be read as a trace: {error}") from None


def read_space(space: Any, content: bytes) -> Trace:
    """Read a parsed trace; `content` has the same as bytes, for the compiled programs in it."""
    programs = read_scopes(content)
    operations: list[Operation] = []
    marks: list[Mark] = []
    for plane in space.planes:
        lines = {line.name: list(line.events) for line in plane.lines} if plane.name.startswith("/device:TPU") else {}
        if _OPERATIONS in lines:
            operations += _of_tpu(plane.name, lines[_OPERATIONS], lines.get(_PROGRAMS, []), programs)
            continue
        ends: dict[Any, float] = {}
        begun: list[tuple[Operation, Any]] = []
        for line in plane.lines:
            for event in line.events:
                name = event.name
                if name.startswith("$"):  # a Python call
                    continue
                if name.startswith("end: "):
                    ends[dict(event.stats).get("_c")] = event.start_ns
                elif name.startswith(_MARKS):
                    marks.append(Mark(name, event.start_ns, event.end_ns, dict(event.stats)))
                elif "hlo_op" in (stats := dict(event.stats)):
                    begun.append((_operation(plane.name, event, stats, programs), stats.get("_p")))
        # CPUs: an operation may go on after the call that launched it; a second event tells its end.
        for each, link in begun:
            operations.append(replace(each, end_ns=max(each.end_ns, ends.get(link, 0.0))))
    leaves = [each for each in operations if each.kind not in CONTAINERS]
    return Trace(sorted(leaves, key=lambda x: x.begin_ns), sorted(marks, key=lambda x: x.begin_ns))


def _operation(
    device: str, event: Any, stats: dict[str, Any], programs: dict[int, dict[str, Instruction]]
) -> Operation:
    name = str(stats["hlo_op"])
    what = programs.get(int(stats.get("program_id", 0)), {}).get(name, _NOTHING)
    program, run = str(stats.get("hlo_module", "")), int(stats.get("run_id", 0))
    return Operation(device, program, run, name, what.kind, what.scope, event.start_ns, event.end_ns)


def _of_tpu(
    device: str, events: list[Any], modules: list[Any], programs: dict[int, dict[str, Instruction]]
) -> Iterator[Operation]:
    """Yield a TPU's operations: each belongs to the run of a program whose span it lies in."""
    runs = sorted(modules, key=lambda run: run.start_ns)
    begins = [run.start_ns for run in runs]
    for event in events:
        number = bisect_right(begins, event.start_ns) - 1
        program, _, program_id = (runs[number].name if number >= 0 else "").rstrip(")").partition("(")
        matched = _TPU_NAME.match(event.name)
        name = matched.group(1) if matched else event.name
        what = programs.get(int(program_id) if program_id.isdigit() else 0, {}).get(name, _NOTHING)
        yield Operation(device, program, number, name, what.kind, what.scope, event.start_ns, event.end_ns)
