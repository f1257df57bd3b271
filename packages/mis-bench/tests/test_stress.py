"""`mis-bench stress`: what each scenario sends, and when it fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mis_bench.artifacts.base import read_artifact
from mis_bench.artifacts.stress import StressResult
from mis_bench.checking.folders import check_path
from mis_bench.cli import main
from mis_bench.stress import stress_configurations
from mis_bench.workload import build_workload

SECONDS = "0.004"  # of the fake clock


@pytest.fixture
def stress(tmp_path: Path, fakes: Any) -> Callable[..., tuple[Result, StressResult]]:
    def invoke(*arguments: str) -> tuple[Result, StressResult]:
        folder = tmp_path / "stress"
        done = CliRunner().invoke(main, ["stress", *arguments, "--output", str(folder)])
        found = read_artifact(folder / "stress.json")
        assert isinstance(found, StressResult)
        assert [each.faults for each in check_path(folder)] == [()]
        return done, found

    return invoke


def test_scenarios_are_those_of_the_plan() -> None:
    large, concurrent, sustained = (
        list(stress_configurations(name, None, 10.0)) for name in ("large-batch", "concurrent", "sustained")
    )
    assert [(each.batch, each.tolerated) for each in large] == [(50, ()), (100, ()), (200, ("out_of_memory",))]
    assert [(each.workers, each.batch, each.seconds) for each in concurrent] == [(4, 8, 30), (8, 8, 30), (16, 4, 30)]
    assert [(each.batch, each.seconds, each.rate) for each in sustained] == [(16, 300, 10)]
    for each in (*large, *concurrent, *sustained):
        workload = build_workload(each.workload)
        assert len(workload.label_token_ids) == 4
        assert len(workload.query) + max(map(len, workload.items)) <= 128


def test_all_scenarios_pass_on_a_target_that_answers(stress: Any) -> None:
    done, found = stress("--seconds", SECONDS, "--rate", "5000")
    assert done.exit_code == 0, done.output
    assert found.success
    assert [each.name for each in found.results] == [
        "large-batch-50", "large-batch-100", "large-batch-200",
        "concurrent-4x8", "concurrent-8x8", "concurrent-16x4", "sustained-16",
    ]  # fmt: skip
    assert [each.total_requests for each in found.results[:3]] == [5, 5, 5]
    assert found.results[-1].total_requests == 20
    assert all(each.latency_p99_ms is not None for each in found.results)
    assert "concurrent-16x4" in done.stdout


@pytest.mark.parametrize(
    ("reason", "items", "status", "failed"),
    [
        ("out_of_memory", 200, 0, []),
        ("http_error", 200, 1, ["large-batch-200"]),
        ("out_of_memory", 100, 1, ["large-batch-100"]),
    ],
)
def test_only_200_items_may_run_out_of_memory(
    stress: Any, fakes: Any, failing: Any, reason: str, items: int, status: int, failed: list[str]
) -> None:
    fakes.prepare = lambda target: setattr(target, "before", failing(reason, items=items))
    done, found = stress("--scenario", "large-batch")
    assert done.exit_code == status
    assert [each.name for each in found.results if not each.success] == failed
    assert found.results[-1].errors == [f"{reason}: 200 items are too many."] * 5


def test_a_target_that_answers_no_more_afterwards_fails(stress: Any, fakes: Any, failing: Any) -> None:
    # 200 items run out of memory, and so does everything after them.
    fakes.prepare = lambda target: setattr(target, "before", failing("out_of_memory", since=14))
    done, found = stress("--scenario", "large-batch")
    assert done.exit_code == 1
    last = found.results[-1]
    assert (last.failed_requests, last.answers_afterwards, last.success) == (5, False, False)


def test_one_failed_request_of_many_fails_the_scenario_and_errors_are_capped(
    stress: Any, fakes: Any, failing: Any
) -> None:
    fakes.prepare = lambda target: setattr(target, "before", failing("timeout", since=8))
    done, found = stress("--scenario", "sustained", "--seconds", SECONDS, "--rate", "10000")
    (only,) = found.results
    assert done.exit_code == 1
    assert (only.successful_requests, only.failed_requests, len(only.errors)) == (7, 33, 10)
    assert only.failure_reason_counts == {"timeout": 33}


def test_the_99th_percentile_is_not_the_last_latency(stress: Any, fakes: Any) -> None:
    def prepare(target: Any) -> None:
        target.before = lambda number, _: fakes.clock.wait(1.0 if number == 3 else 0)

    fakes.prepare = prepare
    _, found = stress("--scenario", "large-batch")
    first = found.results[0]
    assert first.latency_p99_ms == pytest.approx(0.02 + 1000 * 0.96)  # the third of five took a second
    assert first.latency_p50_ms == pytest.approx(0.02)
