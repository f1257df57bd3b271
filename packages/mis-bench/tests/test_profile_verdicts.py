"""Figures beside their targets, and what happens when a request fails."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest

from mis_bench.environment import environment
from mis_bench.profile.recording import recording_here
from mis_bench.profile.records import Point, Profile, ProfileError, Scenario, Timed, verdicts
from mis_bench.profile.run import ProfiledTarget, profile
from mis_bench.profile.scenarios import plan_of
from mis_bench.results.plan import WorkloadPart
from mis_bench.targets.blocking import Blocking
from mis_bench.targets.target import About, CallFailed, Layout, Reply
from mis_bench.workload import Workload, build_workload
from xplanes import tpu_trace


def point(items: int, milliseconds: float = 10.0, peak_mib: float | None = None, **stages_ms: float) -> Point:
    part = WorkloadPart.of(build_workload(f"probe-5-{items}-3"))
    timed = [Timed(ms=milliseconds, stages_ms=stages_ms)] * 2
    return Point(workload=part, timed=timed, profiled=[], peak_mib=peak_mib)


def judged(
    *points: Point, hardware: str = "2 x TPU v6 lite", scenario: Scenario = "single"
) -> dict[str, tuple[float, str]]:
    found = Profile(
        environment=environment(hardware), scenario=scenario, target=About("engine", "mis-engine", "m"), traces=[],
        points=list(points), device=None, stages=[], operations=[], host=[], memory=[],
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
    peaks = point(500, peak_mib=gibibytes * 1024), point(1, peak_mib=1.0)
    assert judged(*peaks, scenario="memory") == {"peak memory, models of 1B": (gibibytes, verdict)}


class Refusing:
    about = About("fake", "fake", "nothing")
    tasks = ("score",)

    def score(self, workload: Workload, layout: Layout) -> Reply:
        raise CallFailed("rejected", "The item is too long.")

    def close(self) -> None: ...


@pytest.mark.parametrize("scenario", ["single", "kernels"])
def test_a_request_that_fails_ends_the_profile_with_its_reason(scenario: Scenario, tmp_path: Path) -> None:
    plan, recording = plan_of(scenario, "probe-5-1-3", None), recording_here(tmp_path / "traces", python_calls=False)
    with pytest.raises(ProfileError, match=r"probe-5-1-3 failed \(rejected\): The item is too long"):
        asyncio.run(profile(plan, ProfiledTarget(Blocking(Refusing()), 9.0), recording, tmp_path, environment()))
    jax.profiler.start_trace(tmp_path / "another")  # none is left under way
    jax.profiler.stop_trace()


class Answering(Refusing):
    def score(self, workload: Workload, layout: Layout) -> Reply:
        return Reply(np.full((workload.num_items, 2), 0.5))


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (tpu_trace(module=b""), r"100% of the time belongs to no stage of the model.*--compilation-cache-dir.*traces"),
        (b"", "No operation ran while the trace was recorded"),
    ],
)
def test_a_trace_that_explains_nothing_is_no_profile(trace: bytes, message: str, tmp_path: Path) -> None:
    @contextmanager
    def recording() -> Iterator[None]:
        yield
        (tmp_path / "traces").mkdir()
        (tmp_path / "traces" / "x.xplane.pb").write_bytes(trace)

    plan = plan_of("kernels", "probe-5-1-3", None)
    with pytest.raises(ProfileError, match=message):
        asyncio.run(profile(plan, ProfiledTarget(Blocking(Answering()), 9.0), recording(), tmp_path, environment()))
