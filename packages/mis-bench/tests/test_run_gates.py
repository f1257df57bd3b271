"""Gates of `mis-bench run`: limits of latency and throughput that rows must keep to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mis_bench.artifacts.base import read_artifact
from mis_bench.artifacts.run import RunResult
from mis_bench.checking.folders import check_path
from mis_bench.cli import main

SIZES = ["--workload", "probe-9-3-4", "--runs", "20", "--warmup-runs", "5"]


@pytest.fixture
def run(fakes: Any, tmp_path: Path) -> Callable[..., Result]:
    # A call takes 0.12 ms, the last of 20 takes 0.32 ms.
    fakes.prepare = lambda target: setattr(
        target, "before", lambda number, _: fakes.clock.wait(3e-4 if number % 25 == 24 else 1e-4)
    )
    return lambda *more: CliRunner().invoke(main, ["run", *SIZES, "--output", str(tmp_path / "run"), *more])


def result_of(folder: Path) -> RunResult:
    found = read_artifact(folder / "run.json")
    assert isinstance(found, RunResult)
    return found


def test_gates_that_are_kept_are_in_the_artifact(run: Any, tmp_path: Path) -> None:
    done = run("--max-p99-ms", "0.4", "--max-p99-over-p50", "3", "--min-items-per-second", "100")
    assert done.exit_code == 0, done.output
    result = result_of(tmp_path / "run")
    assert result.gates.model_dump() == {"max_p99_ms": 0.4, "max_p99_over_p50": 3, "min_items_per_second": 100}
    assert result.gates_missed == []
    assert [each.faults for each in check_path(tmp_path / "run")] == [()]


@pytest.mark.parametrize(
    ("flag", "limit", "sentence"),
    [
        ("--max-p99-ms", "0.2", "probe-9-3-4-cold: max_p99_ms is 0.2, measured 0.282, 41 % too much"),
        ("--max-p99-over-p50", "1.5", "probe-9-3-4-cold: max_p99_over_p50 is 1.5, measured 2.35, 57 % too much"),
        (
            "--min-items-per-second",
            "40000",
            "probe-9-3-4-cold: min_items_per_second is 40,000, measured 23,077, 42 % too little",
        ),
    ],
)
def test_a_gate_that_is_missed_fails_and_says_where_and_by_how_much(
    run: Any, tmp_path: Path, flag: str, limit: str, sentence: str
) -> None:
    done = run(flag, limit)
    assert done.exit_code == 1
    assert sentence in done.stderr
    missed = result_of(tmp_path / "run").gates_missed
    assert [each.row for each in missed] == ["probe-9-3-4-cold", "probe-9-3-4-warm"]
    assert {each.limit for each in missed} == {float(limit)}
    assert [each.faults for each in check_path(tmp_path / "run")] == [()]


def test_a_row_that_does_not_fit_misses_its_gates(fakes: Any, failing: Any, tmp_path: Path) -> None:
    fakes.prepare = lambda target: setattr(target, "before", failing("rejected", items=16))
    flags = ["--profile", "smoke", "--max-p99-ms", "1000", "--output", str(tmp_path / "run")]
    done = CliRunner().invoke(main, ["run", *flags])
    assert done.exit_code == 1
    assert "batch-16-labels-2: max_p99_ms is 1,000, but nothing was measured" in done.stderr


@pytest.mark.parametrize("planted", [{"gates_missed": []}, {"gates": {"max_p99_ms": 0.5}}])
def test_gates_are_checked_again(run: Any, tmp_path: Path, planted: dict[str, Any]) -> None:
    assert run("--max-p99-ms", "0.2").exit_code == 1
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | planted))
    assert [fault for each in check_path(path) for fault in each.faults if "gates_missed" in fault]
