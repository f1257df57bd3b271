"""`mis-bench matrix`: what is swept, who wins, what is confirmed, and how a mission is resumed."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from mis_bench.artifacts.base import read_artifact
from mis_bench.artifacts.matrix import MatrixSummary, ScoreMatrix, reference_of, winner
from mis_bench.artifacts.matrix_row import Configuration, MatrixRow, RunRecord
from mis_bench.checking.folders import check_path
from mis_bench.cli import main
from mis_bench.matrix.mission import to_confirm
from mis_bench.targets.base import CallFailed

SMALL = ("--workload", "probe-9-12-4", "--chunk-sizes", "1,4,12")


@pytest.fixture
def matrix(tmp_path: Path, fakes: Any) -> Callable[..., Result]:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["matrix", *arguments, "--output", str(tmp_path / "mission")])

    return invoke


@pytest.fixture
def found(tmp_path: Path) -> Callable[[], ScoreMatrix]:
    def read() -> ScoreMatrix:
        matrix = read_artifact(tmp_path / "mission" / "matrix_results.json")
        assert isinstance(matrix, ScoreMatrix)
        assert not [fault for each in check_path(tmp_path / "mission") for fault in each.faults]
        return matrix

    return read


def row(
    chunk: int,
    milliseconds: float,
    *,
    p95: float | None = None,
    shift: float = 0.0,
    failed: int = 0,
    compilations: int | None = None,
) -> MatrixRow:
    times = [milliseconds] * 4 + [p95 or milliseconds]
    records = [RunRecord(phase="timed", total_e2e_ms=each, chunk_calls_ms=[each]) for each in times]
    for record in records[:failed]:
        record.failure = "timeout"
    scores = np.full((4, 2), 0.5 + shift).tolist()
    configuration = Configuration(chunk_size=chunk)
    return MatrixRow.of(
        configuration,
        records,
        num_items=4,
        num_chunks=1,
        reference_scores=scores,
        timed_compilations=compilations,
    )


def size(rows: list[MatrixRow]) -> int | None:
    best = winner(rows, reference_of(rows))
    return best.configuration.chunk_size if best else None


def test_the_winner_is_the_fastest_within_the_guardrail() -> None:
    assert size([row(1, 10), row(2, 8), row(4, 9)]) == 2
    assert size([row(1, 10), row(2, 8, p95=60), row(4, 9)]) == 4  # fastest, but for its p95
    assert size([row(4, 10), row(2, 10)]) == 2  # a tie goes to the smaller chunk


def test_rows_with_failures_or_other_scores_may_not_win() -> None:
    assert size([row(1, 10), row(2, 5, failed=1)]) == 1
    assert size([row(1, 10), row(2, 5, shift=0.021)]) == 1
    assert size([row(1, 10), row(2, 5, shift=0.009)]) == 2
    assert size([row(1, 10, failed=5)]) is None
    assert size([row(1, 10), row(2, 5, compilations=1)]) == 1


def test_a_confirmation_is_held_against_the_sweep_not_against_itself() -> None:
    swept = [row(1, 10, shift=0.3, failed=5), row(2, 9), row(4, 5)]
    wrong = [row(2, 9, shift=0.3), row(4, 5, shift=0.3)]
    found = MatrixSummary.of(swept, wrong)
    assert found.recommendation is None
    assert found.ineligible_confirmed.keys() == {"chunk_2", "chunk_4"}
    assert MatrixSummary.of(swept, [row(2, 9), row(4, 5)]).recommendation == Configuration(chunk_size=4)


def test_a_winner_that_nothing_confirms_is_not_recommended() -> None:
    swept = [row(1, 10), row(2, 9)]
    assert MatrixSummary.of(swept, [row(1, 10, failed=5), row(2, 9, failed=5)]).recommendation is None
    assert MatrixSummary.of(swept, []).recommendation is None


def test_only_rows_that_may_win_are_confirmed() -> None:
    rows = [row(1, 10), row(2, 9, shift=0.3), row(4, 8), row(8, 5), row(16, 6, compilations=2), row(32, 7)]
    assert [each.chunk_size for each in to_confirm(rows)] == [1, 4, 8, 32]


def test_the_winner_its_neighbours_and_the_smallest_chunks_are_confirmed() -> None:
    rows = [row(chunk, 20 - chunk if chunk <= 8 else 13) for chunk in (1, 2, 4, 8, 16, 32)]
    assert [each.chunk_size for each in to_confirm(rows)] == [1, 4, 8, 16]
    assert to_confirm([row(1, 5, failed=5)]) == []


def test_a_mission_sweeps_confirms_and_writes_everything(matrix: Any, found: Any, fakes: Any, tmp_path: Path) -> None:
    done = matrix(*SMALL, "--hourly-cost", "2.5")
    assert done.exit_code == 0, done.output
    result = found()
    assert [(each.configuration.chunk_size, each.num_chunks) for each in result.results] == [(1, 12), (4, 3), (12, 1)]
    assert result.summary.recommendation == Configuration(chunk_size=12)
    assert [each.configuration.chunk_size for each in result.confirm_results] == [1, 4, 12]
    assert {each.timed_runs for each in result.results} == {5}
    assert {each.timed_runs for each in result.confirm_results} == {7}
    best = result.results[-1]
    assert best.items_per_usd == pytest.approx(best.throughput_items_sec * 3600 / 2.5)
    assert best.first_run_penalty_ratio == pytest.approx(1)
    assert best.steps_per_call == pytest.approx(1)
    names = {path.name for path in (tmp_path / "mission").iterdir()}
    assert names >= {"run_metadata.json", "chunk_1.json", "confirm_chunk_12.json", "mission.log"}
    assert "recommended" in done.stdout
    assert all(call.apply_softmax for target in fakes.opened for call in target.calls)
    assert fakes.opened[0].forgotten == 1 + 3 * 6  # cold: once to try, then before each run, not before each chunk


def test_default_chunk_sizes_end_with_the_whole_request(matrix: Any, found: Any) -> None:
    assert matrix("--workload", "probe-9-20-4", "--sweep-runs", "1", "--confirm-runs", "1").exit_code == 0
    assert [each.configuration.chunk_size for each in found().results] == [1, 2, 4, 8, 16, 20]


def test_layouts_are_swept_with_a_target_of_their_own(matrix: Any, found: Any, fakes: Any) -> None:
    fakes.refuse = lambda options: "Impossible." if options.get("mask_impl") == "dense" else None
    flags = ["--algorithm", "auto", "--algorithm", "packed", "--mask", "auto", "--mask", "dense"]
    assert matrix(*SMALL, *flags).exit_code == 0
    rows = {each.configuration.name: each for each in found().results}
    assert len(rows) == 12
    assert rows["chunk_4_packed_dense"].reason == "unavailable: Impossible."
    assert rows["chunk_4_packed_auto"].status == "ok"
    assert [target.about.options for target in fakes.opened[:2]] == [{}, {"scoring_algorithm": "packed"}]


def test_best_native_leaves_cutting_to_the_server(matrix: Any, found: Any, fakes: Any) -> None:
    assert matrix("--view", "best-native", "--workload", "probe-9-12-4", "--chunk-sizes", "0,4").exit_code == 0
    assert {each.num_chunks for each in found().results} == {1}
    assert [target.about.options for target in fakes.opened[:2]] == [{}, {"multi_item_scoring_chunk_size": "4"}]


def test_failed_configurations_are_recorded_and_the_sweep_goes_on(
    matrix: Any, found: Any, fakes: Any, failing: Any
) -> None:
    fakes.prepare = lambda target: setattr(target, "before", failing("out_of_memory", items=12))
    assert matrix(*SMALL).exit_code == 0
    result = found()
    assert [each.status for each in result.results] == ["ok", "ok", "failed"]
    assert result.results[2].failure_reason_counts == {"out_of_memory": 5}
    assert result.summary.recommendation == Configuration(chunk_size=4)
    assert (result.summary.successful_configs, result.summary.total_configs_tested) == (2, 3)


def test_a_target_that_cannot_forget_fails_cold_runs(matrix: Any, found: Any, fakes: Any) -> None:
    def forget() -> None:
        raise CallFailed("http_error", "403 from /flush_cache.")

    fakes.prepare = lambda target: setattr(target, "forget", forget)
    assert matrix(*SMALL).exit_code == 1
    assert {each.reason for each in found().results} == {"http_error: 403 from /flush_cache."}


def test_a_target_that_knows_no_way_to_forget_is_refused_unless_warm(matrix: Any, found: Any, fakes: Any) -> None:
    def forget() -> None:
        raise CallFailed("rejected", "It knows no way to forget.")

    fakes.prepare = lambda target: setattr(target, "forget", forget)
    done = matrix(*SMALL)
    assert done.exit_code == 1
    assert "It knows no way to forget. Take --cache warm." in " ".join(done.stderr.split())
    assert matrix(*SMALL, "--cache", "warm").exit_code == 0


def test_a_cold_run_that_finds_its_query_kept_is_marked(matrix: Any, found: Any, fakes: Any) -> None:
    def prepare(target: Any) -> None:
        score = target.score
        target.score = lambda workload: dataclasses.replace(score(workload), cached_tokens=9)

    fakes.prepare = prepare
    assert matrix(*SMALL).exit_code == 0
    assert {record.cached_tokens for each in found().results for record in each.run_records} == {9}
    assert any("The cache was not cold" in note and "sweep chunk_4 9" in note for note in found().notes)


def test_a_confirmation_that_fails_recommends_nothing(matrix: Any, found: Any, fakes: Any, failing: Any) -> None:
    opened: list[Any] = []

    def prepare(target: Any) -> None:
        opened.append(target)
        if len(opened) == 2:
            target.before = failing("timeout")

    fakes.prepare = prepare
    assert matrix(*SMALL).exit_code == 1
    assert found().summary.sweep is not None
    assert found().summary.recommendation is None


def test_what_was_unavailable_is_tried_again(matrix: Any, found: Any, fakes: Any) -> None:
    flags = ["--algorithm", "auto", "--algorithm", "packed"]
    fakes.refuse = lambda options: "The server is down." if "scoring_algorithm" in options else None
    assert matrix(*SMALL, *flags).exit_code == 0
    assert [each.status for each in found().results] == ["ok"] * 3 + ["failed"] * 3
    fakes.refuse = lambda _: None
    assert matrix(*SMALL, *flags).exit_code == 0
    assert [each.status for each in found().results] == ["ok"] * 6


def test_a_time_out_ends_its_configuration(matrix: Any, found: Any, fakes: Any, failing: Any) -> None:
    fakes.prepare = lambda target: setattr(target, "before", failing("timeout", items=12))
    assert matrix(*SMALL).exit_code == 0
    assert [len(each.run_records) for each in found().results] == [6, 6, 1]


def test_no_configuration_that_may_win_is_a_failure(matrix: Any, found: Any, fakes: Any, failing: Any) -> None:
    fakes.prepare = lambda target: setattr(target, "before", failing("http_error"))
    assert matrix(*SMALL).exit_code == 1
    assert found().summary.recommendation is None


def test_a_target_that_cannot_run_at_all_leaves_nothing_behind(matrix: Any, fakes: Any, tmp_path: Path) -> None:
    fakes.refuse = lambda _: "The moon is down."
    done = matrix(*SMALL)
    assert (done.exit_code, done.stderr.strip().splitlines()[-1]) == (1, "Error: unavailable: The moon is down.")
    assert not list((tmp_path / "mission").glob("chunk_*"))
    fakes.refuse = lambda _: None
    assert matrix(*SMALL).exit_code == 0


def test_an_interrupted_mission_goes_on_where_it_stopped(matrix: Any, found: Any, fakes: Any, tmp_path: Path) -> None:
    def interrupt(number: int, workload: Any) -> None:
        if workload.num_items == 12:
            raise KeyboardInterrupt

    fakes.prepare = lambda target: setattr(target, "before", interrupt)
    done = matrix(*SMALL)
    assert done.exit_code == 1
    assert "Repeat the command to go on" in " ".join(done.stderr.split())
    kept = (tmp_path / "mission" / "chunk_4.json").read_bytes()
    fakes.prepare = lambda _: None
    fakes.opened.clear()
    assert matrix(*SMALL).exit_code == 0
    assert (tmp_path / "mission" / "chunk_4.json").read_bytes() == kept
    assert {call.num_items for call in fakes.opened[0].calls} == {12}
    assert len(found().results) == 3


def test_a_finished_mission_is_not_measured_again(matrix: Any, fakes: Any) -> None:
    assert matrix(*SMALL).exit_code == 0
    fakes.opened.clear()
    assert matrix(*SMALL).exit_code == 0
    assert not fakes.opened


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sweep-runs", "3"], "sweep_runs was 5 and is 3"),
        (["--option", "dtype=float32"], "options was {} and is {'dtype': 'float32'}"),
        (["--chunk-sizes", "1,4"], "configurations was chunk_1 chunk_4 chunk_12 and is chunk_1 chunk_4"),
        (["--workload", "other-9-12-4"], "workload was probe-9-12-4"),
        (["--hardware", "TPU v6e-1"], "is TPU v6e-1"),
        (["--cache", "warm"], "cache was cold and is warm"),
    ],
)
def test_a_changed_mission_is_refused(matrix: Any, fakes: Any, flags: list[str], message: str) -> None:
    assert matrix(*SMALL).exit_code == 0
    done = matrix(*SMALL, *flags)
    assert done.exit_code == 1
    assert message in " ".join(done.stderr.split())
    assert "--output" in done.stderr


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({}, {"model_sha256": "1" * 64}, "model_sha256 was 000"),
        ({}, {"versions": {"fake": "2.0"}}, "versions was {'fake': '1.0'}"),
        ({"backend": "mis-server"}, {"options": {"step_tokens": 512}}, "step_tokens was None and is 512"),
    ],
)
def test_a_changed_target_is_refused(
    matrix: Any, fakes: Any, tmp_path: Path, before: dict[str, Any], after: dict[str, Any], message: str
) -> None:
    def about(changes: dict[str, Any]) -> Callable[[Any], None]:
        return lambda target: setattr(target, "about", dataclasses.replace(target.about, **changes))

    fakes.prepare = about(before)
    assert matrix(*SMALL).exit_code == 0
    (tmp_path / "mission" / "chunk_12.json").unlink()
    fakes.prepare = about(before | after)
    done = matrix(*SMALL)
    assert (done.exit_code, message in " ".join(done.stderr.split())) == (1, True)


def test_broken_files_of_a_mission_are_refused(matrix: Any, fakes: Any, tmp_path: Path) -> None:
    assert matrix(*SMALL).exit_code == 0
    chunk = tmp_path / "mission" / "chunk_12.json"
    fields = json.loads(chunk.read_text())
    chunk.write_text(json.dumps(fields | {"run_id": "another"}))
    done = matrix(*SMALL)
    assert (done.exit_code, "is not of the mission" in " ".join(done.stderr.split())) == (1, True)
    chunk.write_text("{")
    done = matrix(*SMALL)
    assert (done.exit_code, "Delete the file to measure it again" in " ".join(done.stderr.split())) == (1, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--chunk-sizes", "1,x"], "is not a list of numbers"),
        (["--chunk-sizes", "0"], "0 is for --view best-native"),
        (["--chunk-sizes", "13"], "13 is more than the workload's 12 items"),
        (["--option", "multi_item_scoring_chunk_size=4"], "is what a matrix sweeps"),
        (["--workload", "nonsense"], "Write KIND-Q-N-L"),
    ],
)
def test_mistakes_are_one_clear_message(matrix: Any, fakes: Any, flags: list[str], message: str) -> None:
    done = matrix(*SMALL, *flags)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_keys_are_not_written(matrix: Any, fakes: Any, tmp_path: Path) -> None:
    fakes.refuse = lambda options: None if options.get("api_key") == "hush" else "The key is missing."
    fakes.prepare = lambda target: setattr(target, "about", target.about.__class__("t", "fake", "none"))
    assert matrix(*SMALL, "--option", "api_key=hush").exit_code == 0
    assert not any("hush" in path.read_text() for path in (tmp_path / "mission").iterdir())
