"""The calls of a scenario, each beside its part of the trace."""

from collections.abc import Sequence
from dataclasses import dataclass

from mis_bench.artifacts.parts import WorkloadPart
from mis_bench.artifacts.profile import DeviceTime, Point, ScoreProfileResult, TraceFiles
from mis_bench.measure import Call, Timed
from mis_bench.profile.breakdown import by_stage, device_time
from mis_bench.profile.trace import REQUEST, Mark, Trace
from mis_bench.statistics import Latency
from mis_bench.workload import Workload

_HEAD = ("label_logits", "log_sum_exp")
_MS = 1e-6  # of nanoseconds


@dataclass(frozen=True, slots=True)
class Size:
    """The calls of one workload: timed without a profiler, then profiled."""

    workload: Workload
    timed: Timed
    profiled: Sequence[Call]


def points_of(sizes: Sequence[Size], trace: Trace, *, is_for_latency: bool) -> list[Point]:
    """Sum up each size: figures of its timed calls, and the split of its first profiled one.

    Args:
        sizes: Sizes, in the order in which they were profiled.
        trace: Trace of the profiled calls; of a server, it does not tell them apart.
        is_for_latency: False: figures are left out.
    """
    marks = iter(_requests(trace))
    points = []
    for size in sizes:
        first = [mark for _, mark in zip(size.profiled, marks, strict=False)][:1]
        count = len(size.timed.calls) if is_for_latency else 0
        points.append(
            Point(
                workload=WorkloadPart.of(size.workload, vocab_size=size.workload.vocab_size),
                num_requests=count,
                throughput_ips=size.timed.items_per_second if count else 0.0,
                latency=Latency.of(size.timed.latencies_ms) if count else None,
                device=device_time(trace, first[0].begin_ns, first[0].end_ns) if first else None,
                stages=by_stage(trace.within(first[0].begin_ns, first[0].end_ns).operations) if first else [],
            )
        )
    return points


def requests_of(
    sizes: Sequence[Size],
    trace: Trace,
    model: str,
    hardware: str,
    files: TraceFiles | None,
    peak_hbm_mb: float | None,
) -> list[ScoreProfileResult]:
    """Describe every profiled request.

    Args:
        sizes: Sizes, in the order in which they were profiled.
        trace: Trace of the profiled calls.
        model: What was asked.
        hardware: What computed.
        files: The trace's files.
        peak_hbm_mb: Highest use of the devices' memory until now, if they tell.
    """
    marks = _requests(trace)
    calls = [call for size in sizes for call in size.profiled]
    parts: list[Trace | None] = [None] * len(calls)
    if len(marks) == len(calls):
        parts = [trace.within(mark.begin_ns, mark.end_ns) for mark in marks]
    path = next(iter(files.xplane), None) if files else None
    return [_request(call, part, model, hardware, path, peak_hbm_mb) for call, part in zip(calls, parts, strict=True)]


def device_time_of(trace: Trace) -> DeviceTime | None:
    """Split the time of all profiled requests; None of an empty trace.

    Between marked requests nothing is asked, so only they count. A server's trace has no such marks: there it is
    the time from the first operation to the last.
    """
    if not trace.operations:
        return None
    marks = _requests(trace)
    if not marks:
        return device_time(trace, trace.operations[0].begin_ns, max(each.end_ns for each in trace.operations))
    times = [device_time(trace, mark.begin_ns, mark.end_ns) for mark in marks]
    wall, busy = sum(time.wall_ms for time in times), sum(time.busy_ms for time in times)
    return DeviceTime(wall_ms=wall, busy_ms=busy, idle_ms=wall - busy, busy_share=min(1.0, busy / wall))


def _requests(trace: Trace) -> list[Mark]:
    return [mark for mark in trace.marks if mark.name == REQUEST]


def _request(
    call: Call, part: Trace | None, model: str, hardware: str, path: str | None, peak_hbm_mb: float | None
) -> ScoreProfileResult:
    stages = call.reply.stages_ms if call.reply else {}
    workload = call.workload
    lengths = {len(workload.query) + len(item) for item in workload.items}
    head = reading = None
    if part is not None:
        head = sum(time.ms for time in by_stage(part.operations) if time.stage in _HEAD)
        reading = sum(mark.end_ns - mark.begin_ns for mark in part.marks if mark.name == "mis.read") * _MS
    return ScoreProfileResult(
        total_latency_ms=call.latency_s * 1e3,
        tokenization_ms=stages.get("tokenize"),
        queue_wait_ms=stages.get("queue"),
        model_forward_ms=stages.get("device"),
        device_to_host_ms=reading,
        logprob_extraction_ms=head,
        softmax_ms=stages.get("finish"),
        batch_size=workload.num_items,
        num_items=workload.num_items,
        num_label_tokens=len(workload.label_token_ids),
        sequence_lengths=sorted(lengths),
        peak_hbm_mb=peak_hbm_mb,
        model_name=model,
        hardware=hardware,
        trace_path=path,
    )
