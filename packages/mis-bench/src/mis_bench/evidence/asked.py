"""Whether what was asked is what its name says: workloads and traces are built anew."""

from collections.abc import Iterator

from mis_bench.measuring.demand import build
from mis_bench.results.plan import WorkloadPart
from mis_bench.traces import Trace, build_trace
from mis_bench.workload import WorkloadNameError


def trace_of(part: WorkloadPart) -> Trace | None:
    """Return the trace that a plan describes; None of a workload, and of a trace whose file is not here."""
    if ":" not in part.name:
        return None
    try:
        return build_trace(part.name).within(part.vocab_size)
    except (OSError, WorkloadNameError):
        return None


def workload_faults(where: str, part: WorkloadPart, trace: Trace | None) -> Iterator[str]:
    """Yield every field of a description that is not that of the workload of its name.

    Args:
        where: The description stands, file and field.
        part: What was written.
        trace: `trace_of` it.
    """
    try:
        if trace is not None:
            expected = WorkloadPart.of_trace(trace)
        elif ":" in part.name:  # recorded requests, whose file is not here
            return
        else:
            expected = WorkloadPart.of(build(part))
    except (WorkloadNameError, ValueError) as error:
        yield f"{where}.name: {error}"
        return
    for field in WorkloadPart.model_fields:
        found, wanted = getattr(part, field), getattr(expected, field)
        if found != wanted:
            yield f"{where}.{field} is {str(found)[:80]}, but {part.name[:80]} has {str(wanted)[:80]}"
