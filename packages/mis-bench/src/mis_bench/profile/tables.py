"""A profile for people."""

import statistics
from collections.abc import Iterator, Sequence

from rich.table import Table

from mis_bench.profile.records import Point, Profile, Slice, verdicts


def tables(result: Profile) -> Iterator[Table]:
    """Yield the tables of a profile: figures, targets, the split of requests, stages, layers, operations, memory."""
    if result.is_for_latency:
        heads = ("items", "requests", "p50 ms", "p99 ms", "items/s", "busy")
        yield _table("Timed requests; busy: in a profiled one", heads, map(_figures, result.points))
        yield from _split(result.points)
    rows = [
        (each.metric, f"{each.value:,.2f} {each.unit}", f"{each.target:g}", f"{each.alert:g}", each.verdict)
        for each in verdicts(result)
    ]
    if rows:
        heads = ("metric", "value", "target", "alert", "verdict")
        yield _table("Figures beside the targets for one TPU chip", heads, rows)
    if result.device is not None:
        time = result.device
        heads = ("wall ms", "devices busy ms", "only the host ms", "busy")
        row = (_ms(time.wall_ms), _ms(time.busy_ms), _ms(time.idle_ms), f"{time.busy_share:.1%}")
        yield _table("Profiled requests: device and host", heads, [row])
    for title, kind, slices in (
        ("Operations by stage", "stage", result.stages),
        ("Operations by layer", "layer", result.layers),
        ("Marks of the host", "mark", result.host),
    ):
        if slices:
            yield _table(title, (kind, "ms", "share", "count"), map(_slice, slices))
    if result.operations and result.scenario == "kernels":
        rows = [
            (each.operation, each.kind, each.stage, str(each.runs), _ms(each.ms), f"{each.share:.1%}")
            for each in result.operations
        ]
        yield _table("Hot spots", ("operation", "kind", "stage", "runs", "ms", "share"), rows)
    yield from _memory(result)


def _figures(point: Point) -> tuple[str, ...]:
    latency, speed = point.latency, point.items_per_second
    return (
        str(point.workload.num_items),
        str(len(point.timed)),
        _ms(latency.p50_ms if latency else None),
        _ms(latency.p99_ms if latency else None),
        "-" if speed is None else f"{speed:,.1f}",
        f"{point.device.busy_share:.0%}" if point.device else "-",
    )


def _split(points: Sequence[Point]) -> Iterator[Table]:
    """Yield where the target says that requests' time went, medians."""
    stages = list(dict.fromkeys(stage for point in points for call in point.timed for stage in call.stages_ms))
    if stages:
        rows = [
            (
                str(point.workload.num_items),
                *(_ms(statistics.median(call.stages_ms.get(stage, 0.0) for call in point.timed)) for stage in stages),
            )
            for point in points
            if point.timed
        ]
        yield _table("Timed requests by stage, ms", ("items", *stages), rows)


def _slice(each: Slice) -> tuple[str, ...]:
    return each.name, _ms(each.ms), "-" if each.share is None else f"{each.share:.1%}", str(each.count)


def _memory(result: Profile) -> Iterator[Table]:
    if not result.memory:
        return
    heads = ("when", "tensors MiB", "in use MiB", "peak MiB", "process MiB")
    rows = [
        (
            each.when,
            _ms(sum(tensor.mib for tensor in each.tensors.values())),
            _ms(each.in_use_mib),
            _ms(each.peak_mib),
            _ms(each.process_mib),
        )
        for each in result.memory
    ]
    yield _table("Memory; latencies of this run do not count", heads, rows)
    largest = sorted(result.memory[-1].tensors.items(), key=lambda each: -each[1].mib)
    rows = [(name, _ms(each.mib), str(each.shape), each.dtype) for name, each in largest]
    yield _table("What stays on the devices", ("tensor", "MiB", "shape", "type"), rows)


def _table(title: str, heads: Sequence[str], rows: "Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]]") -> Table:
    table = Table(title=title, title_justify="left")
    for number, head in enumerate(heads):
        is_text = number == 0 or head in ("verdict", "kind", "stage", "shape", "type")
        table.add_column(head, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"
