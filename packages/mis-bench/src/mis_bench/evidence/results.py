"""Whether a folder of results is what its plan promises."""

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from mis_bench.evidence.asked import trace_of, workload_faults
from mis_bench.evidence.summaries import MOST, summary_faults
from mis_bench.evidence.walk import plan_faults, record_faults
from mis_bench.manifest import Kind
from mis_bench.results.folder import PLAN, read_plan, read_records
from mis_bench.results.records import Results


def results_faults(folder: Path, kind: Kind) -> Iterator[str]:
    """Yield what is wrong with results, whatever their digests are; raises `ArtifactError`."""
    plan = read_plan(folder)
    if plan.preset != kind:
        yield f"{PLAN}: preset is {plan.preset}, but its evidence is of kind {kind}"
    faults = list(islice(plan_faults(plan), MOST))
    yield from faults
    records = read_records(folder, plan)
    if faults:
        return
    traces = {case.name: trace for case in plan.cases if (trace := trace_of(case.workload)) is not None}
    asked = (
        workload_faults(f"{PLAN}: cases.{number}.workload", case.workload, traces.get(case.name))
        for number, case in enumerate(plan.cases)
    )
    yield from islice(chain.from_iterable(asked), MOST)
    yield from islice(record_faults(plan, records, traces), MOST)
    yield from summary_faults(folder, Results.of_records(plan, records))
