"""A profile for people."""

import statistics
from collections.abc import Iterator, Sequence

from mis_bench.profile.parts import PARTS, REST, part_of
from mis_bench.profile.records import CallCount, ClockPart, Profile, verdicts
from mis_bench.table import Cell, Table


def tables(result: Profile) -> Iterator[Table]:
    """Yield the tables of a profile that have something in them."""
    yield from (table for table in _tables(result) if table.rows)


def _tables(result: Profile) -> Iterator[Table]:
    yield _requests(result)
    header = ["metric", "value", "unit", "target", "alert", "verdict"]
    yield Table.of_cells("Figures beside the targets for one TPU chip", header, verdicts(result))
    times = [result.device] if result.device else []
    rows = [(each.wall_ms, each.busy_ms, each.wall_ms - each.busy_ms, f"{each.busy_share:.1%}") for each in times]
    yield Table.of_cells("Profiled requests", ["wall ms", "devices busy ms", "only the host ms", "busy"], rows)
    rows = [(each.name, each.ms, f"{result.share(each):.1%}", each.count) for each in result.stages]
    yield Table.of_cells("Operations by stage", ["stage", "ms", "share", "count"], rows)
    yield from _limits(result)
    yield from _calls(result)
    rows = [(each.name, each.ms, each.count) for each in result.host]
    yield Table.of_cells("Marks of the host", ["mark", "ms", "count"], rows)
    if result.scenario == "kernels":
        rows = [
            (each.name, each.kind, each.stage, each.count, each.ms, f"{result.share(each):.1%}")
            for each in result.operations
        ]
        yield Table.of_cells("Hot spots", ["operation", "kind", "stage", "runs", "ms", "share"], rows)
    rows = [
        (each.when, sum(tensor.mib for tensor in each.tensors.values()), each.peak_mib, each.process_mib)
        for each in result.memory
    ]
    header = ["when", "tensors MiB", "peak of a device MiB", "process MiB"]
    yield Table.of_cells("Memory; latencies of this run do not count", header, rows)
    tensors = sorted(result.memory[-1].tensors.items(), key=lambda each: -each[1].mib) if result.memory else []
    rows = [(name, each.mib, str(each.shape), each.dtype) for name, each in tensors]
    yield Table.of_cells("What stays on the devices", ["tensor", "MiB", "shape", "type"], rows)


def _calls(result: Profile) -> Iterator[Table]:
    """Yield calls and their bytes, one by one and by part of a step."""
    caption = "Calls of the native library, and copies and conversions by XLA"
    sizes = ["times", "MiB read", "MiB written"]
    rows = [(each.name, each.stage, *_sizes([each])) for each in result.calls]
    yield Table.of_cells(caption, ["call", "stage", *sizes], rows)
    parts: dict[str, list[CallCount]] = {part: [] for part in (*PARTS, REST)}
    for each in result.calls:
        parts[part_of(each.stage)].append(each)
    rows = [(part, *_sizes(calls)) for part, calls in parts.items() if calls]
    yield Table.of_cells(f"{caption}, by part", ["part", *sizes], rows)


def _sizes(calls: Sequence[CallCount]) -> tuple[int, float | None, float]:
    """Return how many calls there are, and the MiB that they read and write."""
    read = [each.bytes_read for each in calls if each.bytes_read is not None]
    written = sum(each.bytes for each in calls)
    return sum(each.count for each in calls), sum(read) / 2**20 if read else None, written / 2**20


def _limits(result: Profile) -> Iterator[Table]:
    """Yield the clock beside the limits of its parts."""
    limits = result.limits
    if limits is None:
        return
    whole = sum(each.seconds for each in limits.parts)
    least = sum(min(each.limit_s, each.seconds) for each in limits.parts)
    parts = [*limits.parts, ClockPart(name="all", seconds=whole, work=0, limit_s=least)]
    rows: list[tuple[Cell, ...]] = []
    for each in parts:
        reached = f"{each.limit_s / each.seconds:.2f}" if each.limit_s and each.seconds else None
        share = f"{each.seconds / whole:.1%}"
        rows.append((each.name, each.seconds, share, each.work or None, each.limit_s or None, reached))
    header = ["part", "s", "share", "FLOP or bytes", "s at its limit", "of limit"]
    rates = ", ".join(f"{who} multiplies up to {rate / 1e9:,.0f} GFLOP/s" for who, rate in limits.product_rates.items())
    memory = f"memory is read and written at {limits.bytes_per_s / 1e9:,.1f} GB/s"
    yield Table.of_cells(f"The clock of profiled requests; {rates}; {memory}", header, rows)
    faults = limits.minor_faults, limits.major_faults, limits.system_s
    header = ["minor faults", "major faults", "s of threads in the kernel"]
    yield Table.of_cells("Page faults during profiled requests", header, [faults])


def _requests(result: Profile) -> Table:
    points = result.points if result.scenario != "memory" else []
    stages = list(dict.fromkeys(stage for point in points for call in point.timed for stage in call.stages_ms))
    named = [f"{stage} ms" for stage in stages]
    header = ["items", "requests", "p50 ms", "p99 ms", "items/s", *named, "busy", "peak MiB"]
    rows = []
    for point in points:
        if point.latency is not None:
            medians = [statistics.median(call.stages_ms.get(stage, 0.0) for call in point.timed) for stage in stages]
            figures = len(point.timed), point.latency.p50_ms, point.latency.p99_ms, point.items_per_second
            busy = f"{point.device.busy_share:.0%}" if point.device else None
            rows.append((point.workload.num_items, *figures, *medians, busy, point.peak_mib))
    return Table.of_cells("Timed requests, with medians by stage; busy: in profiled ones", header, rows)
