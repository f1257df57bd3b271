"""Measuring a real server on a tiny checkpoint, over HTTP, and our own engine in this process."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mis_bench.cli import main
from mis_bench.results.folder import read_results
from mis_bench.results.summary import Summary, summarize
from mis_testing.options import SMALL_ENGINE


@pytest.fixture
def target(server: Any, checkpoint: Path) -> list[str]:
    """Options that name the server and the size of its vocabulary."""
    size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    return ["--target", f"mis={server.base_url}", "--vocab-size", str(size)]


def measured(folder: Path, *arguments: str) -> Summary:
    done = CliRunner().invoke(main, [*arguments, "--output", str(folder)])
    assert done.exit_code == 0, done.output
    checked = CliRunner().invoke(main, ["validate-artifacts", str(folder)])
    assert checked.exit_code == 0, checked.output
    return summarize(read_results(folder))


def test_the_smoke_profile_of_a_server(target: list[str], tmp_path: Path) -> None:
    found = measured(tmp_path / "run", "run", "--profile", "smoke", *target)
    assert [(row.num_items, row.num_labels) for row in found.rows] == [(b, n) for n in (2, 4) for b in (1, 4, 16)]
    assert all(not row.failures and row.cached_tokens == 0 for row in found.rows)


def test_tasks_of_a_server_are_measured_as_scores_are(target: list[str], tmp_path: Path) -> None:
    tasks = ("rerank-10-5-8", "decisions-30-4-5", "systemone-30-5-5", "loglikelihoods-10-5-4")
    flags = [part for name in tasks for part in ("--workload", name)]
    found = measured(tmp_path / "tasks", "run", *flags, "--runs", "2", "--rounds", "1", "--warmup-runs", "1", *target)
    assert [(row.workload, row.cache, row.calls, row.num_labels) for row in found.rows] == [
        (name, cache, 2, 1) for name in tasks for cache in ("cold", "warm")
    ]
    gates = read_results(tmp_path / "tasks").gates
    assert len(gates) == 8
    assert all(gate.max_abs is not None and gate.max_abs < 1e-5 for gate in gates)  # an item alone is as among others
    assert not any("cold" in reason for row in found.rows for reason in row.reasons)  # templates may be kept
    assert all(row.speed > 0 and row.latency is not None and row.latency.p99_ms > 0 for row in found.rows)


def test_stress_of_a_server(target: list[str], tmp_path: Path) -> None:
    found = measured(tmp_path / "stress", "stress", "--scenario", "concurrent", "--seconds", "1", *target)
    assert all(row.calls >= 4 for row in found.rows)


def test_a_matrix_of_a_server(target: list[str], tmp_path: Path) -> None:
    flags = ["--workload", "probe-40-12-10", "--chunk-sizes", "1,4,12", "--sweep-runs", "2", "--confirm-runs", "2"]
    found = measured(tmp_path / "matrix", "matrix", *flags, *target)
    assert not any(row.objections for row in found.rows)  # scores do not depend on how the client cuts the request


def test_an_open_load_of_a_server(target: list[str], tmp_path: Path) -> None:
    found = measured(tmp_path / "trace", "run", "--trace", "probe-20-3-4:30:20", *target)
    assert {row.calls for row in found.rows} == {20}


def test_our_own_engine_compiles_nothing_in_the_timed_window(checkpoint: Path, tmp_path: Path) -> None:
    small = SMALL_ENGINE | {"skip_warmup": False}
    options = [part for name, value in small.items() for part in ("--option", f"{name}={value}")]
    flags = ["--workload", "probe-100-8-10", "--runs", "4", "--warmup-runs", "2", "--model", str(checkpoint)]
    found = measured(tmp_path / "run", "run", *flags, *options)
    assert [row.compilations for row in found.rows] == [0, 0]
    cold, warm = found.rows
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 100)
    (opened,) = read_results(tmp_path / "run").opened
    assert opened.about is not None
    assert opened.about.backend == "mis-engine"
    assert opened.about.model_sha256
