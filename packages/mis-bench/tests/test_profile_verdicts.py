"""Figures beside their targets, and what happens when a request fails."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import jax
import pytest

from mis_bench.environment import environment
from mis_bench.profile.recording import ProfileError
from mis_bench.profile.records import MemoryReport, Point, Profile, Scenario, Tensor, Timed, verdicts
from mis_bench.profile.run import Subject, profile
from mis_bench.profile.scenarios import plan_of
from mis_bench.records import WorkloadPart
from mis_bench.targets.base import About, CallFailed, Layout, Reply
from mis_bench.targets.blocking import Blocking
from mis_bench.workload import Workload, build_workload


def point(items: int, milliseconds: float = 10.0, **stages_ms: float) -> Point:
    part = WorkloadPart.of(build_workload(f"probe-5-{items}-3"))
    return Point(workload=part, timed=[Timed(ms=milliseconds, stages_ms=stages_ms)] * 2, profiled=[])


def judged(
    *points: Point,
    hardware: str = "2 x TPU v6 lite",
    scenario: Scenario = "single",
    memory: Sequence[MemoryReport] = (),
) -> dict[str, tuple[float, str]]:
    found = Profile(
        environment=environment(hardware), scenario=scenario, target=About("engine", "mis-engine", "m"), trace=None,
        points=list(points), device=None, stages=[], layers=[], operations=[], host=[], memory=list(memory),
    )  # fmt: skip
    return {each.metric: (each.value, each.verdict) for each in verdicts(found)}


@pytest.mark.parametrize(
    ("milliseconds", "p50", "p99"), [(19, "met", "met"), (49, "missed", "met"), (160, "alert", "alert")]
)
def test_latencies_should_be_low(milliseconds: float, p50: str, p99: str) -> None:
    found = judged(point(1, milliseconds))
    assert found == {"single item, p50": (milliseconds, p50), "single item, p99": (milliseconds, p99)}


@pytest.mark.parametrize(("items", "rates"), [(8, (201, 150, 99)), (32, (501, 300, 249))])
def test_throughput_should_be_high(items: int, rates: tuple[float, float, float]) -> None:
    found = [judged(point(items, items / rate * 1e3))[f"batch of {items}"] for rate in rates]
    assert found == [(pytest.approx(rate), word) for rate, word in zip(rates, ("met", "missed", "alert"), strict=True)]


def test_other_sizes_and_memory_runs_have_no_target() -> None:
    assert judged(point(2), point(500)) == judged(point(1), scenario="memory") == {}


def test_other_hardware_is_not_judged() -> None:
    assert {word for _, word in judged(point(1, 1000), hardware="a CPU, 2 cores").values()} == {"not judged"}


def test_shares_of_stages_are_of_the_whole_latency() -> None:
    found = judged(point(2, 10.0, tokenize=2.0, finish=0.05))
    assert found["share of tokenization"] == (pytest.approx(20), "alert")
    assert found["share of softmax"] == (pytest.approx(0.5), "met")


@pytest.mark.parametrize(("gibibytes", "verdict"), [(7, "met"), (9, "missed"), (13, "alert")])
def test_peak_memory_of_a_device_should_be_low(gibibytes: int, verdict: str) -> None:
    tensors = {"embedding": Tensor(mib=1, shape=[1], dtype="bfloat16")}
    peak = 2 * gibibytes * 1024
    report = MemoryReport(
        when="served", tensors=tensors, in_use_mib=1, peak_mib=peak, process_mib=1, pprof="memory/served.pprof"
    )
    assert judged(scenario="memory", memory=[report]) == {"peak memory, models of 1B": (gibibytes, verdict)}


class Refusing:
    about = About("fake", "fake", "nothing")

    def score(self, workload: Workload, layout: Layout) -> Reply:
        raise CallFailed("rejected", "The item is too long.")

    def close(self) -> None: ...


@pytest.mark.parametrize("scenario", ["single", "kernels"])
def test_a_request_that_fails_ends_the_profile_with_its_reason(scenario: Scenario, tmp_path: Path) -> None:
    plan = plan_of(scenario, "probe-5-1-3", timed=None, profiled=None)
    with pytest.raises(ProfileError, match=r"probe-5-1-3 failed \(rejected\): The item is too long"):
        asyncio.run(profile(plan, Subject(Blocking(Refusing()), 9.0), tmp_path, environment()))
    jax.profiler.start_trace(tmp_path / "another")  # none is left under way
    jax.profiler.stop_trace()
