"""`mis-bench compare` of matrices: what it makes of files that `mis-bench matrix` wrote on different machines."""

import dataclasses
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from click.testing import CliRunner

from mis_bench.artifacts.base import read_artifact
from mis_bench.artifacts.comparison import Comparison
from mis_bench.artifacts.matrix import MatrixSummary, ScoreMatrix
from mis_bench.artifacts.matrix_row import Configuration, MatrixRow, RunRecord
from mis_bench.artifacts.parts import WorkloadPart
from mis_bench.cli import main
from mis_bench.environment import environment
from mis_bench.targets.base import About
from mis_bench.workload import build_workload

HERE = environment()
SCORES = np.array([[0.2, 0.6], [0.1, 0.3], [0.5, 0.5], [0.01, 0.03]])


def matrix(
    target: str,
    milliseconds: Mapping[int, float],
    *,
    view: Literal["portable", "best_native"] = "portable",
    workload: str = "probe-5-4-3",
    softmax: bool = False,
    scores: np.ndarray = SCORES,
    hourly_cost: float | None = None,
    confirmed: Mapping[int, float] | None = None,
    hardware: str = "one chip",
) -> ScoreMatrix:
    """A matrix whose runs of each chunk size all take the same time; a time below 0 is a failure."""
    part = WorkloadPart.of(dataclasses.replace(build_workload(workload), apply_softmax=softmax))

    def row(size: int, run_ms: float) -> MatrixRow:
        chunks = -(-4 // size) if view == "portable" else 1
        failure = "timeout" if run_ms < 0 else None
        timed = RunRecord(
            phase="timed",
            total_e2e_ms=abs(run_ms),
            chunk_calls_ms=[] if failure else [run_ms / chunks] * chunks,
            failure=failure,
        )
        return MatrixRow.of(
            Configuration(chunk_size=size),
            [timed.model_copy(update={"phase": "warmup"}), timed, timed],
            num_items=4,
            num_chunks=chunks,
            hourly_cost=hourly_cost,
            reference_scores=None if failure else scores.tolist(),
        )

    rows = [row(*each) for each in milliseconds.items()]
    confirm_rows = [row(*each) for each in (confirmed or {}).items()]
    made = ScoreMatrix(
        environment=HERE.model_copy(update={"hardware": hardware}),
        run_id="r",
        finished=datetime.datetime.now(datetime.UTC),
        target=About(name=target, backend=target, model="m", dtype="bfloat16"),
        evaluation_view=view,
        workload=part,
        total_runtime_seconds=100,
        results=rows,
        confirm_results=confirm_rows,
        summary=MatrixSummary.of(rows, confirm_rows),
    )
    assert not [fault for fault in made.inconsistencies() if "workload" not in fault]
    return made


def compare(tmp_path: Path, *matrices: ScoreMatrix, options: tuple[str, ...] = ()) -> tuple[int, Comparison, str]:
    """Write matrices into folders, compare them; return exit status, artifact and Markdown."""
    paths = []
    for number, each in enumerate(matrices):
        each.write(tmp_path / str(number) / "matrix_results.json")
        paths.append(str(tmp_path / str(number)))
    output = tmp_path / "comparison.json"
    result = CliRunner().invoke(main, ["compare", *paths, "--output", str(output), *options])
    assert "Traceback" not in result.output
    assert result.exit_code in (0, 1), result.output
    found = read_artifact(output)
    assert isinstance(found, Comparison)
    return result.exit_code, found, result.stdout


def test_equal_chunk_sizes_stand_side_by_side(tmp_path: Path) -> None:
    code, found, text = compare(
        tmp_path, matrix("jax", {1: 40, 4: 10}), matrix("torch", {1: 20, 4: 20}), options=("--reference", "torch")
    )
    assert code == 0
    assert {row.label: row.ratio.value for row in found.portable_view.rows if row.ratio} == {
        "jax, chunks of 1": 0.5,
        "jax": 2,
        "torch, chunks of 1": 1,
        "torch": 1,
    }
    assert "jax against torch is faster in chunks of 4 (2 times); slower in chunks of 1 (0.5 times)" in text
    assert "+100.0%" in text
    assert "-50.0%" in text
    assert not found.measured_together


def test_best_native_prefers_confirmed_rows_and_native_matrices(tmp_path: Path) -> None:
    native = matrix("jax", {0: 8, 2: 6}, view="best_native", confirmed={2: 5})
    _, found, text = compare(tmp_path, matrix("jax", {1: 40, 4: 10}), native, matrix("torch", {4: 20}))
    best = found.best_native_view.best
    assert best is not None
    assert best.label == "jax, own chunks of 2"
    assert best.items_per_second is not None
    assert best.items_per_second.value == pytest.approx(800)
    assert len(found.targets) == 2
    assert "torch has no best-native matrix" in text


def test_probabilities_are_compared_as_softmaxes_of_labels(tmp_path: Path) -> None:
    """Rows with the same ratio of labels have the same softmax, however small the probabilities are."""
    code, found, _ = compare(tmp_path, matrix("a", {4: 10}), matrix("b", {4: 10}, scores=SCORES * 1e-3))
    assert code == 0
    assert found.correctness[1].max_abs == pytest.approx(0)


def test_tiny_probabilities_hide_no_difference(tmp_path: Path) -> None:
    code, found, text = compare(
        tmp_path, matrix("a", {4: 10}, scores=SCORES * 1e-3), matrix("b", {4: 1}, scores=SCORES[:, ::-1] * 1e-3)
    )
    assert code == 1
    assert found.correctness[1].max_abs == pytest.approx(0.5)
    assert "Gates: **failed**" in text
    best = found.best_native_view.best
    assert best is not None
    assert best.target == "a"


def test_failed_runs_are_not_eligible_and_fail_the_gate_if_nothing_was_answered(tmp_path: Path) -> None:
    code, found, _ = compare(tmp_path, matrix("a", {4: 10}), matrix("b", {1: 30, 4: -5}))
    assert code == 0
    assert found.portable_view.rows[2].reasons == ["success rate 0%", "no timings"]
    code, found, _ = compare(tmp_path, matrix("a", {4: 10}), matrix("b", {4: -5}))
    assert code == 1
    assert found.correctness[1].status == "missing_scores"


def test_cost_comes_from_the_matrix_or_the_command_line(tmp_path: Path) -> None:
    priced = matrix("a", {4: 10}, hourly_cost=1.44)
    _, found, _ = compare(tmp_path, priced, matrix("b", {4: 10}), options=("--hourly-cost", "b=0.72"))
    assert [row.items_per_usd for row in found.best_native_view.rows] == pytest.approx([1e6, 2e6])


def test_what_differs_between_the_targets_is_said(tmp_path: Path) -> None:
    _, found, _ = compare(tmp_path, matrix("a", {4: 10}), matrix("b", {4: 10}, hardware="another chip"))
    assert any("hardware differs: a: one chip; b: another chip" in note for note in found.notes)


def test_two_matrices_of_one_target_need_names(tmp_path: Path) -> None:
    for name, speed in (("old", 20), ("new", 10)):
        matrix("jax", {4: speed}).write(tmp_path / f"{name}.json")
    paths = [str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    refused = CliRunner().invoke(main, ["compare", *paths])
    assert refused.exit_code == 2
    assert "tell them apart by NAME=PATH" in " ".join(refused.stderr.split())
    done = CliRunner().invoke(main, ["compare", f"before={paths[0]}", f"after={paths[1]}"])
    assert done.exit_code == 0
    assert "after scores 2 times the items per second of before" in done.stdout


@pytest.mark.parametrize("other", [{"workload": "probe-5-4-2"}, {"softmax": True}])
def test_other_workloads_are_refused(tmp_path: Path, other: dict) -> None:
    matrix("a", {4: 10}).write(tmp_path / "a.json")
    matrix("b", {4: 10}, **other).write(tmp_path / "b.json")
    result = CliRunner().invoke(main, ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert result.exit_code == 2
    assert "measure the same workload" in " ".join(result.stderr.split())


def test_another_artifact_is_refused(tmp_path: Path) -> None:
    compare(tmp_path, matrix("a", {4: 10}), matrix("b", {4: 10}))
    path = str(tmp_path / "comparison.json")
    result = CliRunner().invoke(main, ["compare", path, str(tmp_path / "0")])
    assert result.exit_code == 2
    assert "not a matrix" in " ".join(result.stderr.split())
