"""The calls beside an artifact, and whether the figures of a trace are theirs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from mis_bench.artifacts.parts import CallRecord, differs
from mis_bench.artifacts.trace import TraceResult
from mis_bench.statistics import Latency


def read_calls(folder: Path, rows: Sequence[str]) -> tuple[dict[str, list[CallRecord]] | None, list[str]]:
    """Read `calls.jsonl`.

    Args:
        folder: Where it lies.
        rows: Names that its calls may have.

    Returns:
        The calls of every row, or None if the file is not whole; and its faults.
    """
    try:
        text = (folder / "calls.jsonl").read_bytes().decode()
    except FileNotFoundError:
        return None, ["is missing"]
    except ValueError as error:
        return None, [f"cannot be read: {error}"]
    calls: dict[str, list[CallRecord]] = {name: [] for name in rows}
    faults, is_whole = [], True
    for number, line in enumerate(text.splitlines(), 1):
        try:
            call = CallRecord.model_validate_json(line)
        except ValidationError as error:
            faults.append(f"line {number}: {error.errors()[0]['msg']}")
            is_whole = False
            continue
        if call.row not in calls:
            faults.append(f"line {number}: the artifact has no row {call.row}")
        else:
            calls[call.row].append(call)
    return calls if is_whole else None, faults


def trace_faults(folder: Path, trace: TraceResult) -> Iterator[str]:
    """Yield where the rows of a trace differ from its calls."""
    *sizes, everything = trace.rows
    calls, faults = read_calls(folder, [row.name for row in sizes])
    yield from faults
    if calls is None:
        return
    warmups = sum(call.phase == "warmup" for some in calls.values() for call in some)
    if warmups != trace.warmup_runs:
        yield f"there are {warmups} warmup calls, but warmup_runs is {trace.warmup_runs}"
    timed = {name: [call for call in some if call.phase == "timed"] for name, some in calls.items()}
    timed[everything.name] = [call for some in timed.values() for call in some]
    for row in trace.rows:
        mine = timed[row.name]
        if len(mine) != row.num_requests:
            yield f"{row.name}: num_requests is {row.num_requests}, but there are {len(mine)} calls"
        if Counter(call.failure for call in mine if call.failure) != row.failure_reason_counts:
            yield f"{row.name}: failures are not those of failure_reason_counts"
        latency = Latency.of([call.latency_ms for call in mine if call.failure is None])
        for field, value in (latency.model_dump() if latency and row.latency else {}).items():
            if differs(said := getattr(row.latency, field), value):
                yield f"{row.name}: latency.{field} is {said}, but the calls make it {value}"
