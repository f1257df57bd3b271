"""Measuring a real server on a tiny checkpoint, over HTTP, and our own engine in this process."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mis_bench.artifacts.base import read_artifact
from mis_bench.artifacts.matrix import ScoreMatrix
from mis_bench.artifacts.run import RunResult
from mis_bench.artifacts.stress import StressResult
from mis_bench.checking.folders import check_path
from mis_bench.cli import main


@pytest.fixture
def target(server: Any, checkpoint: Path) -> list[str]:
    """Options that name the server and the size of its vocabulary."""
    size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    return ["--target", f"mis={server.base_url}", "--vocab-size", str(size)]


def measured(folder: Path, *arguments: str) -> Any:
    name = {"run": "run.json", "stress": "stress.json", "matrix": "matrix_results.json"}[arguments[0]]
    done = CliRunner().invoke(main, [*arguments, "--output", str(folder)])
    assert done.exit_code == 0, done.output
    assert not [fault for each in check_path(folder) for fault in each.faults]
    return read_artifact(folder / name)


def test_the_smoke_profile_of_a_server(target: list[str], tmp_path: Path) -> None:
    found = measured(tmp_path / "run", "run", "--profile", "smoke", *target)
    assert isinstance(found, RunResult)
    assert [(row.batch_size, row.num_labels) for row in found.rows] == [(b, n) for n in (2, 4) for b in (1, 4, 16)]
    assert all(row.success_rate == 1 for row in found.rows)


def test_stress_of_a_server(target: list[str], tmp_path: Path) -> None:
    found = measured(tmp_path / "stress", "stress", "--scenario", "concurrent", "--seconds", "1", *target)
    assert isinstance(found, StressResult)
    assert all(each.total_requests >= 4 for each in found.results)


def test_a_matrix_of_a_server(target: list[str], tmp_path: Path) -> None:
    flags = ["--workload", "probe-40-12-10", "--chunk-sizes", "1,4,12", "--sweep-runs", "2", "--confirm-runs", "2"]
    found = measured(tmp_path / "matrix", "matrix", *flags, *target)
    assert isinstance(found, ScoreMatrix)
    assert found.summary.successful_configs == 3
    assert not found.summary.ineligible  # scores do not depend on how the client cuts the request


def test_our_own_engine_compiles_nothing_in_the_timed_window(checkpoint: Path, tmp_path: Path) -> None:
    options = ["--option", "dtype=float32", "--option", "chunked_prefill_size=256"]
    flags = ["--workload", "probe-100-8-10", "--runs", "4", "--warmup-runs", "2", "--model", str(checkpoint)]
    found = measured(tmp_path / "run", "run", *flags, *options)
    assert isinstance(found, RunResult)
    assert [row.timed_compilations for row in found.rows] == [0, 0]
    assert found.target.backend == "mis-engine"
    assert found.target.model_sha256
