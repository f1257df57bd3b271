"""Where the time of a trace went: by stage, by operation, and between host and devices.

Times are sums over operations, each from its beginning to its end. Operations that run at once, as on several
threads of a CPU, all count in full, so shares are of the sum and not of the clock.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from mis_bench.profile.programs import COPY
from mis_bench.profile.records import CallCount, DeviceTime, OperationTime, Slice
from mis_bench.profile.trace import REQUEST, DeviceTrace, Mark, Operation

UNATTRIBUTED = "unattributed"
"""Operations without a scope of the model: what the compiler made, and programs beside the model's."""

STAGES = (
    "embed", "rotary_tables", "norm", "qkv", "norm_rope", "write_pages", "attention", "out", "gate_up", "down",
    "rest_of_layers", "final_norm", "label_logits", "log_sum_exp", UNATTRIBUTED,
)  # fmt: skip
"""Stages in the order in which a step goes through them; `rest_of_layers` is their loop and what it copies."""


class TraceSums(NamedTuple):
    """Everything of a profile that is computed from its trace.

    Attributes:
        requests: Spans of the profiled requests; none in a server's trace.
        points: Of each workload's profiled requests.
        device: Of all of them.
        stages: By part of the model.
        operations: Those that took longest.
        host: By mark.
        calls: Of the native library, and copies by XLA.
    """

    requests: Sequence[Mark]
    points: list[DeviceTime | None]
    device: DeviceTime | None
    stages: list[Slice]
    operations: list[OperationTime]
    host: list[Slice]
    calls: list[CallCount]

    @property
    def unattributed_share(self) -> float | None:
        """Share of the time of all operations that belongs to no stage; None if nothing ran."""
        total = sum(each.ms for each in self.stages)
        return sum(each.ms for each in self.stages if each.name == UNATTRIBUTED) / total if total else None


def sums_of(trace: DeviceTrace, workloads: int, profiled: int) -> TraceSums:
    """Add up a trace of `profiled` requests of each of so many workloads, one after the other."""
    marks = [mark for mark in trace.marks if mark.name == REQUEST]
    of_points = [marks[index * profiled :][:profiled] for index in range(workloads)]
    return TraceSums(
        requests=marks,
        points=[device_time(trace.operations, mine) if mine else None for mine in of_points],
        device=device_time(trace.operations, marks),
        stages=by_stage(trace.operations),
        operations=by_operation(trace.operations),
        host=by_mark(trace.marks),
        calls=by_call(trace.operations),
    )


def stage_of(scope: str) -> str:
    """Return the stage of an operation from the named scopes it was traced under, the innermost first."""
    parts = scope.split("/")
    for part in reversed(parts):
        for kernel in ("attention", "norm_rope"):
            if part.startswith(f"{kernel}_"):
                return kernel
        if part in STAGES and part != "attention":
            return part
    return "rest_of_layers" if "layers" in parts or "last_layer" in parts else UNATTRIBUTED


def by_stage(operations: Iterable[Operation]) -> list[Slice]:
    """Add up operations by stage, in the order of `STAGES`; stages that did not run are left out."""
    found = _added((stage_of(each.scope), each.ms) for each in operations)
    return [found[stage] for stage in STAGES if stage in found]


def by_operation(operations: Iterable[Operation], most: int = 20) -> list[OperationTime]:
    """Return the operations that took longest in all, with how often they ran."""
    alike: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for each in operations:
        alike[each.program, each.name].append(each)
    found = [
        OperationTime(
            name=name,
            ms=sum(each.ms for each in operations),
            count=len(operations),
            program=program,
            kind=operations[0].kind,
            stage=stage_of(operations[0].scope),
            scope=operations[0].scope,
        )
        for (program, name), operations in alike.items()
    ]
    return sorted(found, key=lambda each: -each.ms)[:most]


def by_call(operations: Iterable[Operation]) -> list[CallCount]:
    """Count calls of the native library and XLA's copies and conversions, and their bytes; these need no clock."""
    alike: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for each in operations:
        if each.call:
            name = f"{COPY} {each.name}" if each.call == COPY else each.call
            alike[stage_of(each.scope), name].append(each)
    return [
        CallCount(
            name=name,
            stage=stage,
            count=len(those),
            bytes=sum(each.bytes for each in those),
            bytes_read=sum(each.bytes_read for each in those),
        )
        for (stage, name), those in sorted(alike.items())
    ]


def by_clock(operations: Iterable[Operation], spans: Iterable[tuple[float, float]]) -> dict[str | None, float]:
    """Divide the clock within spans over stages, in nanoseconds; None: no operation ran.

    Where several operations ran at once, the time is that of the one that began last.
    """
    found: dict[str | None, float] = defaultdict(float)
    ordered = sorted(operations, key=lambda each: each.begin_ns)
    for begin, end in spans:
        moments = {begin, end}
        inside = [each for each in ordered if each.end_ns > begin and each.begin_ns < end]
        moments.update(min(max(moment, begin), end) for each in inside for moment in (each.begin_ns, each.end_ns))
        running: list[Operation] = []
        following = iter(inside)
        upcoming = next(following, None)
        for now, later in pairwise(sorted(moments)):
            while upcoming is not None and upcoming.begin_ns <= now:
                running.append(upcoming)
                upcoming = next(following, None)
            running = [each for each in running if each.end_ns > now]
            found[stage_of(running[-1].scope) if running else None] += later - now
    return dict(found)


def by_mark(marks: Iterable[Mark]) -> list[Slice]:
    """Add up the spans that the host marked, by name; `mis.wait` is waiting for the device."""
    found = _added((mark.name, (mark.end_ns - mark.begin_ns) / 1e6) for mark in marks)
    return sorted(found.values(), key=lambda each: each.name)


def device_time(operations: Sequence[Operation], marks: Iterable[Mark]) -> DeviceTime | None:
    """Split the time of marked requests into what devices were busy in and were not, on average over devices.

    Between them nothing is asked. Without marks, it is the time from the first operation to the last; None of none.
    """
    if not operations:
        return None
    whole = operations[0].begin_ns, max(each.end_ns for each in operations)
    wall = busy = 0.0
    for begin, end in [(mark.begin_ns, mark.end_ns) for mark in marks] or [whole]:
        ran: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for each in operations:
            if each.end_ns > begin and each.begin_ns < end:
                ran[each.device].append((max(each.begin_ns, begin), min(each.end_ns, end)))
        wall += end - begin
        busy += sum(map(covered, ran.values())) / max(1, len(ran))
    return DeviceTime(wall_ms=wall / 1e6, busy_ms=busy / 1e6)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans."""
    length, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        length += max(0.0, end - max(begin, until))
        until = max(until, end)
    return length


def _added(times: Iterable[tuple[str, float]]) -> dict[str, Slice]:
    """Add up milliseconds by name."""
    alike: dict[str, list[float]] = defaultdict(list)
    for name, ms in times:
        alike[name].append(ms)
    return {name: Slice(name=name, ms=sum(ms), count=len(ms)) for name, ms in alike.items()}
