"""A profile for people."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from mis_bench.artifacts.profile import ProfileResult


def tables(result: ProfileResult) -> Iterator[Table]:
    """Yield the tables of a profile: figures, targets, the split of requests, stages, layers, operations, memory."""
    if result.is_for_latency:
        yield _table(
            "Timed requests; busy: in a profiled one",
            ("items", "requests", "p50 ms", "p99 ms", "items/s", "busy"),
            [
                (
                    str(point.workload.num_items),
                    str(point.num_requests),
                    _ms(point.latency.p50_ms if point.latency else None),
                    _ms(point.latency.p99_ms if point.latency else None),
                    f"{point.throughput_ips:,.1f}" if point.latency else "-",
                    f"{point.device.busy_share:.0%}" if point.device else "-",
                )
                for point in result.points
            ],
        )
    if result.verdicts:
        yield _table(
            "Figures beside the targets for one TPU chip",
            ("metric", "value", "target", "alert", "verdict"),
            [
                (each.metric, f"{each.value:,.2f} {each.unit}", f"{each.target:g}", f"{each.alert:g}", each.verdict)
                for each in result.verdicts
            ],
        )
    if result.requests:
        fields = ("tokenization", "queue_wait", "model_forward", "device_to_host", "logprob_extraction", "softmax")
        yield _table(
            "Requests under the profiler, ms",
            ("items", "total", *(field.replace("_", " ") for field in fields)),
            [
                (
                    str(each.num_items),
                    _ms(each.total_latency_ms),
                    *(_ms(getattr(each, f"{field}_ms")) for field in fields),
                )
                for each in result.requests
            ],
        )
    if result.device is not None:
        time = result.device
        yield _table(
            "Profiled requests: device and host",
            ("wall ms", "devices busy ms", "only the host ms", "busy"),
            [(_ms(time.wall_ms), _ms(time.busy_ms), _ms(time.idle_ms), f"{time.busy_share:.1%}")],
        )
    yield from _times(result)
    yield from _memory(result)


def _times(result: ProfileResult) -> Iterator[Table]:
    if result.stages:
        rows = [(each.stage, _ms(each.ms), f"{each.share:.1%}", str(each.operations)) for each in result.stages]
        yield _table("Operations by stage", ("stage", "ms", "share", "operations"), rows)
    if result.layers:
        names = ["unknown" if each.layer is None else str(each.layer) for each in result.layers]
        rows = [(name, _ms(each.ms), f"{each.share:.1%}") for name, each in zip(names, result.layers, strict=True)]
        yield _table("Operations by layer", ("layer", "ms", "share"), rows)
    if result.operations and result.scenario == "kernels":
        rows = [
            (each.operation, each.kind, each.stage, str(each.runs), _ms(each.ms), f"{each.share:.1%}")
            for each in result.operations
        ]
        yield _table("Hot spots", ("operation", "kind", "stage", "runs", "ms", "share"), rows)
    if result.host:
        rows = [(each.mark, _ms(each.ms), str(each.marks)) for each in result.host]
        yield _table("Marks of the host", ("mark", "ms", "marks"), rows)


def _memory(result: ProfileResult) -> Iterator[Table]:
    if not result.memory:
        return
    heads = ("when", "tensors MiB", "largest", "MiB", "in use MiB", "peak MiB", "process MiB")
    rows = [
        (
            each.stage,
            _ms(each.total_memory_mb),
            each.largest_tensor,
            _ms(each.largest_memory_mb),
            _ms(each.device_memory_mb),
            _ms(each.peak_memory_mb),
            _ms(each.process_memory_mb),
        )
        for each in result.memory
    ]
    yield _table("Memory; latencies of this run do not count", heads, rows)
    largest = sorted(result.memory[-1].tensors.items(), key=lambda each: -each[1].memory_mb)
    rows = [(name, _ms(each.memory_mb), str(each.shape), each.dtype) for name, each in largest]
    yield _table("What stays on the devices", ("tensor", "MiB", "shape", "type"), rows)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for number, head in enumerate(heads):
        is_text = number == 0 or head in ("verdict", "largest", "kind", "stage", "shape", "type")
        table.add_column(head, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"
