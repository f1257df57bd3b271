"""The scenarios: what each asks, how often, and what it records."""

from dataclasses import dataclass, replace

from mis_bench.profile.records import Scenario
from mis_bench.workload import CANONICAL, WorkloadNameError, build_workload

_BATCH_SIZES = (1, 8, 32, 128, 512)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a scenario does.

    Attributes:
        scenario: Its name.
        workloads: Names of the workloads, asked one after the other.
        timed: Requests of each that are timed, without a profiler.
        profiled: Requests of each under the profiler, after those.
        python_calls: Whether the trace has every Python call.
    """

    scenario: Scenario
    workloads: tuple[str, ...]
    timed: int
    profiled: int
    python_calls: bool = False

    @property
    def requests(self) -> int:
        """All requests, with one of each workload to warm up."""
        return len(self.workloads) * (1 + self.timed + self.profiled)


def plan_of(scenario: Scenario, workload: str | None, *, timed: int | None, profiled: int | None) -> Plan:
    """Return what a scenario does.

    Args:
        scenario: Its name.
        workload: Name of the workload; default: the scenario's own. `batch-scaling` needs KIND-Q-N-L and asks
            fewer items first.
        timed: Timed requests of each size; default: the scenario's own.
        profiled: Profiled requests of each size; default: the scenario's own.

    Raises:
        WorkloadNameError: there is no such workload, or it cannot be scaled.
    """
    names = _scaled(workload or "batch-100-512-20") if scenario == "batch-scaling" else (workload or CANONICAL,)
    plans = {
        "end-to-end": Plan(scenario, names, timed=3, profiled=2, python_calls=True),
        "single": Plan(scenario, (workload or "single-100-1-20",), timed=20, profiled=2),
        "batch-scaling": Plan(scenario, names, timed=5, profiled=1),
        "memory": Plan(scenario, names, timed=2, profiled=0),
        "kernels": Plan(scenario, names, timed=0, profiled=2),
    }
    plan = plans[scenario]
    for name in plan.workloads:
        build_workload(name)
    return replace(
        plan,
        timed=plan.timed if timed is None else timed,
        profiled=plan.profiled if profiled is None else profiled,
    )


def _scaled(name: str) -> tuple[str, ...]:
    sizes, at, labels = name.partition("@")
    parts = sizes.split("-")
    if len(parts) != 4 or not parts[2].isdecimal():
        raise WorkloadNameError(f"{name[:80]!r} cannot be scaled: write KIND-Q-N-L, such as batch-100-512-20.")
    kind, query, items, item = parts
    fewer = [size for size in _BATCH_SIZES if size < int(items)]
    return tuple(f"{kind}-{query}-{size}-{item}{at}{labels}" for size in (*fewer, int(items)))
