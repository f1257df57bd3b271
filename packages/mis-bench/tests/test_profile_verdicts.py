"""Figures beside their targets, and what happens when a request fails."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from mis_bench.artifacts.parts import WorkloadPart
from mis_bench.artifacts.profile import MemoryReport, Point, Tensor
from mis_bench.measure import Call, Timed, closed_loop
from mis_bench.profile.recording import ProfileError
from mis_bench.profile.run import Subject, profile
from mis_bench.profile.scenarios import Plan, plan_of
from mis_bench.profile.verdicts import verdicts
from mis_bench.statistics import Latency
from mis_bench.targets.base import About, CallFailed, Reply, Target
from mis_bench.workload import Workload, build_workload


def point(items: int, *, milliseconds: float = 10.0, items_per_second: float = 0.0) -> Point:
    return Point(
        workload=WorkloadPart.of(build_workload(f"probe-5-{items}-3")),
        num_requests=2,
        throughput_ips=items_per_second,
        latency=Latency.of([milliseconds] * 2),
    )


def judged(*points: Point, is_tpu: bool = True) -> dict[str, str]:
    return {each.metric: each.verdict for each in verdicts(points, [], [], is_tpu=is_tpu)}


@pytest.mark.parametrize(
    ("milliseconds", "p50", "p99"), [(19, "met", "met"), (49, "missed", "met"), (160, "alert", "alert")]
)
def test_latencies_should_be_low(milliseconds: float, p50: str, p99: str) -> None:
    assert judged(point(1, milliseconds=milliseconds)) == {"single item, p50": p50, "single item, p99": p99}


@pytest.mark.parametrize(("items", "rates"), [(8, (201, 150, 99)), (32, (501, 300, 249))])
def test_throughput_should_be_high(items: int, rates: tuple[float, float, float]) -> None:
    found = [judged(point(items, items_per_second=rate))[f"batch of {items}"] for rate in rates]
    assert found == ["met", "missed", "alert"]


def test_other_sizes_have_no_target() -> None:
    assert judged(point(2), point(500)) == {}


def test_other_hardware_is_not_judged() -> None:
    assert set(judged(point(1, milliseconds=1000), is_tpu=False).values()) == {"not judged"}


def test_shares_of_stages_are_of_the_whole_latency() -> None:
    reply = Reply(np.zeros((1, 2)), {"tokenize": 2.0, "finish": 0.05})
    calls = [Call(build_workload("probe-5-1-3"), 0.0, 0.010, reply), Call(build_workload("probe-5-1-3"), 0.0, 0.010)]
    found = {each.metric: (each.value, each.verdict) for each in verdicts([], calls, [], is_tpu=True)}
    assert found["share of tokenization"] == (pytest.approx(20), "alert")
    assert found["share of softmax"] == (pytest.approx(0.5), "met")


def memory_report(gibibytes: int) -> MemoryReport:
    return MemoryReport(
        stage="served",
        total_memory_mb=1,
        largest_tensor="embedding",
        largest_memory_mb=1,
        tensors={"embedding": Tensor(memory_mb=1, shape=[1], dtype="bfloat16")},
        peak_memory_mb=gibibytes * 1024,
        process_memory_mb=1,
        pprof="memory/served.pprof",
    )


@pytest.mark.parametrize(("gibibytes", "verdict"), [(7, "met"), (9, "missed"), (13, "alert")])
def test_peak_memory_should_be_low(gibibytes: int, verdict: str) -> None:
    (found,) = verdicts([], [], [memory_report(gibibytes)], is_tpu=True)
    assert found.verdict == verdict


class _Refusing:
    about = About("fake", "fake", "nothing")

    def score(self, workload: Workload) -> Reply:
        raise CallFailed("rejected", "The item is too long.")


def test_a_request_that_fails_is_named(tmp_path: Path) -> None:
    plan = plan_of("kernels", "probe-5-1-3", timed=None, profiled=None)
    with pytest.raises(ProfileError, match=r"probe-5-1-3 failed \(rejected\): The item is too long"):
        profile(plan, Subject(_Refusing()), tmp_path)


def test_memory_needs_an_engine(tmp_path: Path) -> None:
    plan = plan_of("memory", "probe-5-1-3", timed=None, profiled=None)
    with pytest.raises(ProfileError, match="needs the target engine"):
        profile(plan, Subject(_Refusing()), tmp_path)


def test_memory_is_that_of_one_device() -> None:
    (found,) = verdicts([], [], [memory_report(28)], is_tpu=True, devices=4)
    assert (found.value, found.verdict) == (7, "met")


class _Answering:
    about = About("fake", "fake", "nothing")

    def score(self, workload: Workload) -> Reply:
        return Reply(np.full((workload.num_items, 2), 0.5))


def test_requests_are_made_before_the_clock_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []

    def loop(target: Target, workloads: Iterable[Workload], **options: Any) -> Timed:
        made.append(isinstance(workloads, list))
        return closed_loop(target, workloads, **options)

    monkeypatch.setattr("mis_bench.profile.run.closed_loop", loop)
    profile(Plan("single", ("probe-5-1-3",), timed=3, profiled=0), Subject(_Answering()), tmp_path)
    assert made == [True, True]


def test_requests_have_the_peak_of_memory_where_devices_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jax.clear_caches()  # a profile describes all that is loaded, and other tests have loaded much
    tells = {"bytes_in_use": 2**20, "peak_bytes_in_use": 3 * 2**20}
    plan = Plan("single", ("probe-5-1-3",), timed=0, profiled=1)
    for number, (stats, engine, peak) in enumerate(((tells, object(), 6), (tells, None, None), (None, object(), None))):
        devices = [SimpleNamespace(memory_stats=lambda stats=stats: stats)] * 2
        with monkeypatch.context() as patch:
            patch.setattr("jax.local_devices", lambda *_, devices=devices, **__: devices)
            found = profile(plan, Subject(_Answering(), engine=engine), tmp_path / str(number))  # pyrefly: ignore[bad-argument-type]
        assert [request.peak_hbm_mb for request in found.requests] == [peak]
