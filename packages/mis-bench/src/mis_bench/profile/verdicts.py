"""Figures beside their targets. The targets are for one TPU chip; elsewhere figures are shown and not judged."""

from collections.abc import Iterator, Sequence

from mis_bench.artifacts.profile import MemoryReport, Point, Verdict
from mis_bench.measure import Call


def verdicts(
    points: Sequence[Point], calls: Sequence[Call], memory: Sequence[MemoryReport], *, is_tpu: bool, devices: int = 1
) -> Iterator[Verdict]:
    """Yield every figure that has a target and was measured.

    Args:
        points: Sizes that were timed.
        calls: Timed calls, for the shares of their stages.
        memory: Reports.
        is_tpu: Whether the figures may be judged.
        devices: How many the memory of a report lies on.
    """
    for point in points:
        items = point.workload.num_items
        if point.latency and items == 1:
            yield _judged("single item, p50", point.latency.p50_ms, "ms", 20, 50, is_tpu)
            yield _judged("single item, p99", point.latency.p99_ms, "ms", 50, 150, is_tpu)
        if point.latency and items == 8:
            yield _judged("batch of 8", point.throughput_ips, "items/s", 200, 100, is_tpu)
        if point.latency and items == 32:
            yield _judged("batch of 32", point.throughput_ips, "items/s", 500, 250, is_tpu)
    for metric, stage, target, alert in (("tokenization", "tokenize", 5, 15), ("softmax", "finish", 1, 5)):
        told = [(call, call.reply.stages_ms[stage]) for call in calls if call.reply and stage in call.reply.stages_ms]
        if told:
            share = sum(ms for _, ms in told) / sum(call.latency_s * 1e3 for call, _ in told)
            yield _judged(f"share of {metric}", 100 * share, "%", target, alert, is_tpu)
    peaks = [report.peak_memory_mb for report in memory if report.peak_memory_mb is not None]
    if peaks:
        yield _judged("peak memory, models of 1B", max(peaks) / devices / 1024, "GiB", 8, 12, is_tpu)


def _judged(metric: str, value: float, unit: str, target: float, alert: float, is_tpu: bool) -> Verdict:
    """Judge a figure that should be below its target, or above it where the alert is below the target."""
    sign = 1 if target < alert else -1
    verdict = "met" if sign * value < sign * target else "alert" if sign * value > sign * alert else "missed"
    fields = {"metric": metric, "value": value, "unit": unit, "target": target, "alert": alert}
    return Verdict.model_validate(fields | {"verdict": verdict if is_tpu else "not judged"})
