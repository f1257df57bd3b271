"""The scenarios: what each asks, how often, and what it records."""

from typing import NamedTuple

from mis_bench.profile.records import Scenario
from mis_bench.workload import CANONICAL, Workload, WorkloadNameError, build_workload

_BATCH_SIZES = (1, 8, 32, 128, 512)


class ScenarioPlan(NamedTuple):
    """What a scenario asks, one workload after the other."""

    scenario: Scenario
    workloads: tuple[str, ...]
    timed: int  # requests of each workload without a profiler
    profiled: int  # requests of each under the profiler, after those

    @property
    def requests(self) -> int:
        """All requests, with one of each workload to warm up."""
        return len(self.workloads) * (1 + self.timed + self.profiled)


_PLANS = (
    ScenarioPlan("end-to-end", (CANONICAL,), timed=3, profiled=2),
    ScenarioPlan("single", ("single-100-1-20",), timed=20, profiled=2),
    ScenarioPlan("batch-scaling", ("batch-100-512-20",), timed=5, profiled=1),
    ScenarioPlan("memory", (CANONICAL,), timed=2, profiled=0),
    ScenarioPlan("kernels", (CANONICAL,), timed=0, profiled=2),
)


def plan_of(scenario: Scenario, workload: str | None, timed: int | None) -> ScenarioPlan:
    """Return what a scenario asks, with another workload or another number of timed requests if these are given.

    Raises:
        WorkloadNameError: there is no such workload, or `batch-scaling` cannot ask fewer of its items.
    """
    plan = next(plan for plan in _PLANS if plan.scenario == scenario)
    names = plan.workloads if workload is None else (workload,)
    workloads = [build_workload(name) for name in names]
    return plan._replace(
        workloads=_scaled(workloads[0]) if scenario == "batch-scaling" else names,
        timed=plan.timed if timed is None else timed,
    )


def _scaled(workload: Workload) -> tuple[str, ...]:
    """Return names of workloads like one, of fewer items and then of as many."""
    parts = workload.name.split("-")
    if len(parts) != 4:
        raise WorkloadNameError(f"{workload.name} cannot be scaled: write KIND-Q-N-L, such as batch-100-512-20.")
    kind, query, _, item = parts
    fewer = [size for size in _BATCH_SIZES if size < workload.num_items]
    return tuple(f"{kind}-{query}-{size}-{item}" for size in (*fewer, workload.num_items))
