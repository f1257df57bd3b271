"""`mis-bench compare` of matrices: what it makes of files that `mis-bench matrix` wrote on different machines."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from matrices import SCORES, matrix
from mis_bench.artifacts.base import read_artifact
from mis_bench.artifacts.comparison import Comparison
from mis_bench.artifacts.matrix import ScoreMatrix
from mis_bench.cli import main


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
