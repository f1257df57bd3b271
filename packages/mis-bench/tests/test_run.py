"""`mis-bench run`: profiles, warm-ups, what is skipped, what is marked, and what is written."""

import csv
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from mis_bench.artifacts.base import read_artifact
from mis_bench.artifacts.parts import unordered
from mis_bench.artifacts.run import RunResult
from mis_bench.checking.folders import check_path
from mis_bench.cli import main
from mis_bench.commands.measuring import opened
from mis_bench.loads import Load
from mis_bench.measure import closed_loop, counted
from mis_bench.profiles import PROFILES, configurations, parameter_count
from mis_bench.rows import Counts, measure_row
from mis_bench.statistics import Interval
from mis_bench.targets.base import CallFailed
from mis_bench.targets.limited import TimeLimited
from mis_bench.workload import Workload, build_workload


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    def invoke(*arguments: str) -> Result:
        output = [] if "--output" in arguments else ["--output", str(tmp_path / "run")]
        return CliRunner().invoke(main, ["run", *arguments, *output])

    return invoke


def result_of(folder: Path) -> RunResult:
    found = read_artifact(folder / "run.json")
    assert isinstance(found, RunResult)
    return found


def test_profiles_are_those_of_the_rfc() -> None:
    sizes = {
        name: (each.batch_sizes, each.label_counts, each.runs, each.warmup_runs) for name, each in PROFILES.items()
    }
    assert sizes == {
        "smoke": ((1, 4, 16), (2, 4), 5, 2),
        "standard": ((1, 2, 4, 8, 16, 32), (2, 4, 8), 20, 5),
        "full": ((1, 2, 4, 8, 16, 32, 64), (2, 4, 8, 16), 50, 10),
    }


def test_full_leaves_out_large_batches_of_float32_and_of_large_models_and_says_so() -> None:
    full = PROFILES["full"]
    assert not any(each.skip for each in configurations(full, dtype="bfloat16", parameters=10**9))
    for dtype, parameters in (("float32", 10**9), ("bfloat16", 3 * 10**9)):
        rows = list(configurations(full, dtype=dtype, parameters=parameters))
        assert len(rows) == 28
        assert {each.name.split("-")[1] for each in rows if each.skip} == {"32", "64"}
    assert not any(each.skip for each in configurations(PROFILES["standard"], dtype="float32", parameters=None))


def test_a_profile_writes_an_artifact_its_table_and_every_call(run: Any, fakes: Any, tmp_path: Path) -> None:
    done = run("--profile", "smoke")
    assert done.exit_code == 0, done.output
    result = result_of(tmp_path / "run")
    assert [(row.batch_size, row.num_labels) for row in result.rows] == [(b, n) for n in (2, 4) for b in (1, 4, 16)]
    assert {(row.num_runs, row.warmup_runs, row.timed_compilations) for row in result.rows} == {(5, 2, 0)}
    assert all(row.status == "ok" and row.throughput_interval is not None for row in result.rows)
    with (tmp_path / "run" / "run.csv").open(newline="") as file:
        assert [line["name"] for line in csv.DictReader(file)] == [row.name for row in result.rows]
    assert len((tmp_path / "run" / "calls.jsonl").read_text().splitlines()) == 6 * 7
    assert "batch-16-labels-4" in done.stdout
    assert "items/s" in done.stdout
    assert fakes.opened[0].is_closed
    assert [each.faults for each in check_path(tmp_path / "run")] == [()]


def test_full_measures_both_types_of_weights(run: Any, fakes: Any, tmp_path: Path) -> None:
    assert run("--profile", "full", "--runs", "1", "--warmup-runs", "1").exit_code == 0
    rows = result_of(tmp_path / "run").rows
    assert [target.about.dtype for target in fakes.opened] == ["bfloat16", "float32"]
    assert len(rows) == len({row.name for row in rows}) == 56
    assert sum(row.status == "skipped" for row in rows) == 8
    assert all(row.reason for row in rows if row.status == "skipped")


def test_workloads_are_rows_with_a_cold_and_a_warm_cache(run: Any, fakes: Any, tmp_path: Path) -> None:
    assert run("--workload", "probe-9-3-4@3", "--runs", "4", "--warmup-runs", "2").exit_code == 0
    result = result_of(tmp_path / "run")
    assert (result.profile, [row.cache for row in result.rows]) == ("workloads", ["cold", "warm"])
    assert {row.num_labels for row in result.rows} == {3}
    queries = [call.query.tobytes() for call in fakes.opened[0].calls]
    items = {call.items[0].tobytes() for call in fakes.opened[0].calls}
    assert len(set(queries[:6])) == 6
    assert len(set(queries[6:])) == 1
    assert len(items) == 6  # the same in both rows, and no two of a row


@pytest.mark.parametrize(("slower", "status"), [(0.005, "warn"), (0.0, "ok")])
def test_kept_queries_that_are_slower_are_doubted(
    run: Any, fakes: Any, tmp_path: Path, slower: float, status: str
) -> None:
    """The first row's calls compute their query: three to warm up, eight that are timed."""

    def prepare(target: Any) -> None:
        target.before = lambda number, _: fakes.clock.wait(1e-4 * (number % 3) + slower * (number >= 11))

    fakes.prepare = prepare
    assert run("--workload", "probe-9-3-4@3", "--runs", "8", "--warmup-runs", "3").exit_code == 0
    cold, warm = result_of(tmp_path / "run").rows
    assert (cold.status, warm.status) == ("ok", status)
    assert warm.reason == (f"slower than {cold.name}, which computes the query" if slower else None)
    assert [each.faults for each in check_path(tmp_path / "run")] == [()]


def test_what_does_not_fit_is_skipped_with_the_reason_and_the_rest_is_measured(
    run: Any, fakes: Any, failing: Any, tmp_path: Path
) -> None:
    fakes.prepare = lambda target: setattr(target, "before", failing("out_of_memory", items=16))
    assert run("--profile", "smoke").exit_code == 0
    rows = result_of(tmp_path / "run").rows
    assert [row.status for row in rows] == ["ok", "ok", "skipped"] * 2
    assert rows[2].reason == "out_of_memory: 16 items are too many."
    assert [each.faults for each in check_path(tmp_path / "run")] == [()]


@pytest.mark.parametrize("since", [0, 4])
def test_failures_fail_the_row_and_the_command(run: Any, fakes: Any, failing: Any, tmp_path: Path, since: int) -> None:
    fakes.prepare = lambda target: setattr(target, "before", failing("http_error", since=since))
    assert run("--workload", "probe-9-3-4", "--runs", "4", "--warmup-runs", "2").exit_code == 1
    row = result_of(tmp_path / "run").rows[0]
    assert row.status == "failed"
    assert row.reason is not None
    assert row.reason.startswith("http_error")
    assert row.success_rate == (0.5 if since else 0)
    assert [each.faults for each in check_path(tmp_path / "run")] == [()]


@pytest.mark.parametrize(("numbers", "expected"), [((3,), ("ok", 0, 6)), (range(99), ("warn", 4, 10))])
def test_a_loop_that_compiles_is_repeated_and_the_last_one_marks_the_row(
    fakes: Any, numbers: Any, expected: tuple[str, int, int]
) -> None:
    target = fakes.make("engine")

    def before(number: int, _: Workload) -> None:
        target.compilations += number in numbers

    target.before = before
    row, _ = measure_row(target, "row", Load(build_workload("probe-9-3-4")), Counts(runs=4, warmup_runs=2))
    assert (row.status, row.timed_compilations, row.warmup_runs) == expected
    assert (row.reason is None) == (row.status == "ok")
    assert row.reason is None or "compilations in the timed window" in row.reason


def test_calls_that_fail_in_a_loop_that_is_not_steady_fail_the_row(fakes: Any) -> None:
    target = fakes.make("engine")

    def before(number: int, _: Workload) -> None:
        fakes.clock.wait(0.1 if number < 2 else 0)
        if number in (3, 4):
            raise CallFailed("http_error", "502 from /v1/score.")

    target.before = before
    row, calls = measure_row(target, "row", Load(build_workload("probe-9-3-4")), Counts(runs=5, warmup_runs=2))
    assert (row.status, row.failure_reason_counts, row.success_rate) == ("failed", {"http_error": 2}, 0.6)
    assert len(calls) == 7  # no second loop hides them


def test_a_run_in_which_no_row_fits_fails(run: Any, fakes: Any, failing: Any, tmp_path: Path) -> None:
    fakes.prepare = lambda target: setattr(target, "before", failing("rejected"))
    done = run("--workload", "probe-9-3-4", "--runs", "4", "--warmup-runs", "2")
    assert done.exit_code == 1
    rows = result_of(tmp_path / "run").rows
    assert [row.status for row in rows] == ["failed", "failed"]
    assert [each.faults for each in check_path(tmp_path / "run")] == [()]


def test_a_target_that_cannot_forget_fails_its_rows(run: Any, fakes: Any, tmp_path: Path) -> None:
    def forget() -> None:
        raise CallFailed("http_error", "403 from /flush_cache.")

    fakes.prepare = lambda target: setattr(target, "forget", forget)
    assert run("--workload", "probe-9-3-4").exit_code == 1
    assert {row.reason for row in result_of(tmp_path / "run").rows} == {"http_error: 403 from /flush_cache."}
    assert [each.faults for each in check_path(tmp_path / "run")] == [()]


def test_a_cold_row_of_a_target_that_knows_no_way_to_forget_is_marked(run: Any, fakes: Any, tmp_path: Path) -> None:
    def forget() -> None:
        raise CallFailed("rejected", "It knows no way to forget.")

    fakes.prepare = lambda target: setattr(target, "forget", forget)
    assert run("--workload", "probe-9-3-4").exit_code == 0
    cold, warm = result_of(tmp_path / "run").rows
    assert (cold.status, warm.status) == ("warn", "ok")
    assert cold.reason == "earlier rows or runs may have left their queries: It knows no way to forget."
    assert [each.faults for each in check_path(tmp_path / "run")] == [()]


def test_a_cold_row_whose_queries_were_kept_is_marked(run: Any, fakes: Any, tmp_path: Path) -> None:
    def prepare(target: Any) -> None:
        score = target.score
        target.score = lambda workload: replace(score(workload), cached_tokens=9)

    fakes.prepare = prepare
    assert run("--workload", "probe-9-3-4").exit_code == 0
    cold, warm = result_of(tmp_path / "run").rows
    assert (cold.status, warm.status) == ("warn", "ok")
    assert cold.reason == "the cache was not cold: replies told of up to 9 kept query tokens"
    assert [each.faults for each in check_path(tmp_path / "run")] == [()]


def test_counts_that_are_not_told_or_begin_anew_are_unknown() -> None:
    assert counted({"compilations": 3}, {"compilations": 5}, "compilations") == 2
    assert counted({}, {"compilations": 5}, "compilations") is None
    assert counted({"compilations": 3}, {}, "compilations") is None
    assert counted({"compilations": 3}, {"compilations": 1}, "compilations") is None


def test_warm_ups_go_on_until_they_are_steady(fakes: Any) -> None:
    target = fakes.make("engine")
    target.before = lambda number, _: fakes.clock.wait(0.1 if number < 4 else 0)
    row, calls = measure_row(target, "row", Load(build_workload("probe-9-3-4")), Counts(runs=5, warmup_runs=2))
    assert (row.warmup_runs, row.num_runs, row.status) == (7, 5, "ok")
    assert [call.phase for call in calls] == ["warmup"] * 7 + ["timed"] * 5
    assert row.latency_p99_ms is not None
    assert row.latency_p99_ms == pytest.approx(0.02)


def test_no_steady_state_is_marked_after_a_bounded_number_of_attempts(fakes: Any) -> None:
    target = fakes.make("engine")
    target.before = lambda number, _: fakes.clock.wait(0.1 if number % 5 == 4 else 0)
    row, _ = measure_row(target, "row", Load(build_workload("probe-9-3-4")), Counts(runs=5, warmup_runs=5))
    assert (row.status, row.warmup_runs) == ("warn", 15)
    assert row.reason is not None
    assert "times the timed median" in row.reason


def test_answers_of_another_shape_are_failures(fakes: Any) -> None:
    target = fakes.make("engine")
    target.scores = lambda workload: np.zeros((workload.num_items, 1))
    timed = closed_loop(target, [build_workload("probe-9-3-4")])
    assert timed.failures == {"shape_mismatch": 1}


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_scores_that_are_no_numbers_are_failures(fakes: Any, wrong: float) -> None:
    target = fakes.make("engine")
    target.scores = lambda workload: np.array([[0.5, 0.5], [0.5, wrong], [0.5, 0.5]])
    timed = closed_loop(target, [build_workload("probe-9-3-4")])
    assert timed.failures == {"missing_scores": 1}
    assert "finite" in timed.calls[0].message


def test_a_server_waits_as_long_as_the_command_does_unless_told_otherwise(fakes: Any) -> None:
    for options, seconds in ({}, "400.0"), ({"timeout_s": "7"}, "7"):
        with opened("mis=http://127.0.0.1:1", None, options, 400.0) as target:
            assert target.about.options == {"timeout_s": seconds}
    with opened("engine", None, {}, 400.0) as target:
        assert target.about.options == {}


@pytest.mark.parametrize(("low", "high", "is_fault"), [(-0.5, -0.5, False), (-0.5, -0.6, True), (0.6, 0.5, True)])
def test_figures_below_zero_are_in_order_as_others_are(low: float, high: float, is_fault: bool) -> None:
    found = list(unordered(Interval(value=low, low=low, high=high, confidence=0.95), "low", "high"))
    assert bool(found) == is_fault


def test_callers_and_arrivals(run: Any, fakes: Any, tmp_path: Path) -> None:
    flags = ["--workload", "probe-9-3-4", "--runs", "12", "--warmup-runs", "4"]
    assert run(*flags, "--concurrency", "4", "--output", str(tmp_path / "closed")).exit_code == 0
    assert run(*flags, "--rate", "20000", "--output", str(tmp_path / "open")).exit_code == 0
    closed, opened = (result_of(tmp_path / name) for name in ("closed", "open"))
    assert (closed.concurrency, closed.rate, opened.rate) == (4, None, 20000)
    assert closed.rows[0].throughput_interval is not None
    assert opened.rows[0].throughput_interval is None
    assert not [fault for each in check_path(tmp_path, below=True) for fault in each.faults]


def test_ids_are_folded_into_the_vocabulary_of_the_checkpoint(
    run: Any, fakes: Any, checkpoint: Path, tmp_path: Path
) -> None:
    size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    assert run("--workload", "probe-9-3-4", "--runs", "1", "--model", str(checkpoint)).exit_code == 0
    assert max(int(item.max()) for call in fakes.opened[0].calls for item in call.items) < size
    assert result_of(tmp_path / "run").rows[0].workload.vocab_size == size
    assert [each.faults for each in check_path(tmp_path / "run")] == [()]


def test_parameters_are_counted_from_the_weight_files(checkpoint: Path, tmp_path: Path) -> None:
    found = parameter_count(checkpoint)
    assert found is not None
    weights = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    assert weights / 4.2 < found < weights / 1.9
    assert parameter_count(tmp_path) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "nonsense"], "Write KIND-Q-N-L"),
        (["--option", "dtype"], "is not NAME=VALUE"),
        (["--rate", "5", "--concurrency", "2"], "give one of the two"),
        (["--concurrency", "9"], "at least as many --runs"),
        (["--model", "/no/such"], "does not exist"),
        (["--profile", "huge"], "'smoke', 'standard', 'full'"),
    ],
)
def test_mistakes_are_one_clear_message(run: Any, fakes: Any, arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert not fakes.opened


def test_a_target_that_cannot_run_is_one_sentence(run: Any, fakes: Any) -> None:
    fakes.refuse = lambda _: "The moon is down."
    done = run("--profile", "smoke")
    assert (done.exit_code, done.stderr.strip().splitlines()[-1]) == (1, "Error: The moon is down.")


def test_earlier_results_are_not_overwritten(run: Any, fakes: Any) -> None:
    assert run("--workload", "probe-9-3-4", "--runs", "1").exit_code == 0
    done = run("--workload", "probe-9-3-4", "--runs", "1")
    assert done.exit_code == 2
    assert "already holds run.json" in " ".join(done.stderr.split())


def test_a_call_that_is_late_fails_and_the_next_is_answered(fakes: Any) -> None:
    target = fakes.make("engine")
    target.before = lambda number, _: time.sleep(1 if number == 0 else 0)
    limited = TimeLimited(target, 0.2)
    with pytest.raises(CallFailed, match="No answer within") as caught:
        limited.score(build_workload("probe-9-3-4"))
    assert caught.value.reason == "timeout"
    assert limited.score(build_workload("probe-9-3-4")).scores.shape == (3, 2)
