"""`mis-bench run` on targets without a model: what is asked, in which order, and what is said of it."""

import dataclasses
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bench_fakes import Done, Fakes, FakeTarget, by_alias, options_of
from mis_bench.cli import main
from mis_bench.presets.run import PROFILES, rounds_of
from mis_bench.results import baselines
from mis_bench.results.records import Call
from mis_bench.results.statistics import Latency
from mis_bench.traces import arrival_times
from mis_bench.workload import Workload, build_workload

PROBE = ("run", "--workload", "probe-9-3-4", "--runs", "12", "--warmup-runs", "2")
Bench = Callable[..., Done]


def timed(done: Done, case: str) -> list[Call]:
    return [call for call in done.results.calls if call.case == case and call.phase == "timed"]


def test_profiles_are_the_tables_of_the_runbook() -> None:
    sizes = {
        name: (each.batch_sizes, each.label_counts, each.runs, each.warmup_runs) for name, each in PROFILES.items()
    }
    assert sizes == {
        "smoke": ((1, 4, 16), (2, 4), 5, 2),
        "standard": ((1, 2, 4, 8, 16, 32), (2, 4, 8), 20, 5),
        "full": ((1, 2, 4, 8, 16, 32, 64), (2, 4, 8, 16), 50, 10),
    }
    assert PROFILES["full"].dtypes == ("bfloat16", "float32")


@pytest.mark.parametrize(
    ("runs", "callers", "rate", "rounds"),
    [
        (5, 1, None, 5),
        (20, 1, None, 10),
        (12, None, None, 6),
        (80, 16, None, 1),  # many callers need long windows
        (80, 2, None, 8),
        (100, None, 10.0, 1),
    ],
)
def test_runs_are_cut_into_rounds_as_the_load_allows(
    runs: int, callers: int | None, rate: float | None, rounds: int
) -> None:
    assert rounds_of(runs, callers, rate) == rounds


def test_the_smoke_profile_is_measured_in_turns(bench: Bench, fakes: Fakes) -> None:
    done = bench("run", "--profile", "smoke")
    assert done.status == 0
    assert [(row.num_items, row.num_labels) for row in done.summary.rows] == [
        (b, n) for n in (2, 4) for b in (1, 4, 16)
    ]
    assert all(row.calls == 5 and row.rounds == 5 and row.status == "ok" for row in done.summary.rows)
    assert all(row.items_per_second and row.items_per_second.confidence is None for row in done.summary.rows)
    order = [(window.round, window.case) for window in done.results.windows if window.phase == "timed"]
    names = [row.name for row in done.summary.rows]
    assert order == [(turn, name) for turn in range(1, 6) for name in (names if turn % 2 else names[::-1])]
    (target,) = fakes.opened
    assert target.is_closed


def test_figures_are_those_of_the_calls(bench: Bench, fakes: Fakes) -> None:
    def prepare(target: FakeTarget) -> None:
        target.seconds = lambda workload: 0.02

    fakes.prepare = prepare
    cold, warm = bench(*PROBE).summary.rows
    for row in (cold, warm):
        assert row.items_per_second
        assert row.items_per_second.value == pytest.approx(3 / 0.02)
        assert row.items_per_second.confidence == 0.95
        assert row.latency
        assert row.latency.p99_ms == pytest.approx(20)


def test_cold_requests_all_differ_and_warm_ones_share_a_query(bench: Bench, fakes: Fakes) -> None:
    bench(*PROBE)
    (target,) = fakes.opened
    asked = [np.asarray(workload.query).tobytes() for workload in target.sent if workload.num_items == 3]
    (_, shared), *others = Counter(asked).most_common()
    assert shared >= 2 + 12
    assert [count for _, count in others] == [1] * (2 + 12)


def test_a_cold_case_clears_the_cache_and_a_warm_one_is_primed(bench: Bench, fakes: Fakes) -> None:
    done = bench(*PROBE)
    assert all(window.forgot == window.case.endswith("cold") for window in done.results.windows)
    first = build_workload("probe-9-3-4").sha256
    asked = sum(workload.sha256 == first for workload in fakes.opened[0].sent)
    assert asked == 2 + sum(window.case.endswith("warm") for window in done.results.windows)  # 2: scores checked


def test_kept_tokens_of_a_cold_case_are_told(bench: Bench, fakes: Fakes) -> None:
    def prepare(target: FakeTarget) -> None:
        target.cached_tokens = 7

    fakes.prepare = prepare
    done = bench(*PROBE)
    cold, warm = done.summary.rows
    assert cold.status == "warn"
    assert "up to 7 cached query tokens" in cold.reasons[0]
    assert warm.status == "ok"
    assert done.status == 0


def test_a_target_that_cannot_forget_is_in_doubt_when_cold(bench: Bench, fakes: Fakes) -> None:
    fakes.forgets = False
    cold, warm = bench(*PROBE).summary.rows
    assert "cannot clear its prefix cache" in cold.reasons[0]
    assert warm.status == "ok"


def test_a_warm_case_slower_than_a_cold_one_is_in_doubt(bench: Bench, fakes: Fakes) -> None:
    def prepare(target: FakeTarget) -> None:
        def seconds(workload: Workload) -> float:
            first = target.sent[0].query
            return 0.03 if not isinstance(first, str) and (workload.query == first).all() else 0.01  # type: ignore[union-attr]

        target.seconds = seconds

    fakes.prepare = prepare
    warm = bench(*PROBE).summary.rows[1]
    assert warm.status == "warn"
    assert "which computes the query" in warm.reasons[-1]
    alone = bench("run", "--workload", "probe-9-3-4", "--runs", "1", "--warmup-runs", "2").summary.rows[1]
    assert alone.status == "ok", "of one round each, one is always slower"


def test_compilations_repeat_the_warm_up_or_cause_a_warning(bench: Bench, fakes: Fakes) -> None:
    def prepare(target: FakeTarget) -> None:
        def before(number: int, _: Workload) -> None:
            target.compilations += number < 7 or number == 40

        target.before = before

    fakes.prepare = prepare
    done = bench("run", "--workload", "probe-9-3-4", "--runs", "24", "--warmup-runs", "2")
    warmups = [window for window in done.results.windows if window.phase == "warmup"]
    assert [window.compilations for window in warmups[:3]] == [2, 1, 0]
    assert sum(row.compilations or 0 for row in done.summary.rows) == 1
    assert any("1 compilations in the timed window" in reason for row in done.summary.rows for reason in row.reasons)


def test_a_failed_call_fails_the_row_and_the_command(
    bench: Bench, fakes: Fakes, failing: Callable[..., object]
) -> None:
    def prepare(target: FakeTarget) -> None:
        target.before = failing("http_error", since=20)  # type: ignore[assignment]

    fakes.prepare = prepare
    done = bench(*PROBE)
    assert done.status == 1
    assert any(row.status == "failed" and row.failures.get("http_error") for row in done.summary.rows)
    assert "http_error: 3 items are too many." in done.said
    answered = {(call.case, call.round) for call in done.results.calls if call.error is None}
    silent = [window.case for window in done.results.windows if (window.case, window.round) not in answered]
    assert 0 < len(silent) == len(set(silent))  # a case that is not answered has no further turns


def test_what_does_not_fit_is_skipped_unless_nothing_fits(
    bench: Bench, fakes: Fakes, failing: Callable[..., object]
) -> None:
    def prepare(target: FakeTarget) -> None:
        target.before = failing("out_of_memory", items=16)  # type: ignore[assignment]

    fakes.prepare = prepare
    done = bench("run", "--profile", "smoke")
    assert done.status == 0
    assert [row.status for row in done.summary.rows] == ["ok", "ok", "skipped"] * 2
    fakes.prepare = lambda target: setattr(target, "before", failing("out_of_memory"))
    done = bench("run", "--profile", "smoke")
    assert done.status == 1
    assert {row.status for row in done.summary.rows} == {"failed"}


def test_an_item_that_others_change_fails_the_isolation_gate(bench: Bench, fakes: Fakes) -> None:
    def prepare(target: FakeTarget) -> None:
        honest = target.scores
        target.scores = lambda workload: honest(workload) + (0.3 if workload.num_items > 1 else 0.0)

    fakes.prepare = prepare
    done = bench(*PROBE)
    assert done.status == 1
    assert "isolation: scores differ by up to 0.3" in done.said


@pytest.mark.parametrize(
    ("gate", "is_missed"),
    [
        (("--max-p99-ms", "9"), True),
        (("--max-p99-ms", "11"), False),
        (("--max-p99-over-p50", "1.5"), False),
        (("--min-items-per-second", "301"), True),
        (("--min-items-per-second", "299"), False),
    ],
)
def test_limits_make_a_run_a_gate(bench: Bench, gate: tuple[str, str], is_missed: bool) -> None:
    done = bench(*PROBE, *gate)
    assert done.status == int(is_missed)
    assert ("Gate missed" in done.said) == is_missed


def test_rate_and_concurrency_go_together(bench: Bench, fakes: Fakes) -> None:
    fakes.prepare = lambda target: setattr(target, "seconds", lambda _: 0.1)
    done = bench(*PROBE, "--rate", "100", "--max-concurrency", "2")
    (target,) = fakes.opened
    due = [call.due_s for call in timed(done, "probe-9-3-4-cold")]
    assert due == list(islice(arrival_times("0 1", 100.0), 12))
    assert target.most_at_once == 2
    assert done.summary.rows[0].load == "100/s, at most 2 at once"
    late = timed(done, "probe-9-3-4-cold")[-1]
    assert late.latency_s > 0.3  # it waited for a free caller


def test_targets_take_turns_and_are_told_apart_by_alias(bench: Bench, fakes: Fakes) -> None:
    targets = options_of(["base=engine", "new=engine,scoring_algorithm=packed", "mis=http://h:1,api_key=secret"])
    done = bench(*PROBE, *targets, "--option", "dtype=float32")
    assert [target.name for target in done.results.plan.targets] == ["base", "new", "mis=http://h:1"]
    assert by_alias(fakes)["new"].spec.options == {"dtype": "float32", "scoring_algorithm": "packed"}
    assert "secret" not in (done.folder / "plan.json").read_text() + done.result.output
    assert len(done.summary.rows) == 6


def test_a_missing_target_is_found_before_anything_loads(bench: Bench, fakes: Fakes) -> None:
    fakes.refuse = lambda spec: "It needs torch." if spec.alias == "torch" else None
    targets = options_of(["engine", "torch=transformers-serial"])
    done = bench(*PROBE, *targets)
    assert (done.status, fakes.opened, done.folder.exists()) == (1, [], False)
    assert "torch could not run: It needs torch." in done.said
    allowed = bench(*PROBE, *targets, "--allow-missing")
    assert allowed.status == 0
    assert allowed.results.plan.notes == ["torch could not run: It needs torch."]
    fakes.refuse = lambda _: "No."
    assert bench(*PROBE, *targets, "--allow-missing").status == 1


def test_a_target_that_does_not_open_fails_unless_optional(bench: Bench, fakes: Fakes) -> None:
    fakes.refuse_late = lambda spec: "No memory." if spec.alias == "b" else None
    targets = options_of(["a=engine", "b=engine"])
    assert bench(*PROBE, *targets).status == 1
    allowed = bench(*PROBE, *targets, "--allow-missing")
    assert allowed.status == 0
    assert [row.status for row in allowed.summary.rows] == ["ok", "ok", "skipped", "skipped"]
    checked = CliRunner().invoke(main, ["validate-artifacts", str(allowed.folder)])
    assert checked.exit_code == 0, checked.output


def test_repeating_opens_targets_anew_and_counts_rounds_on(bench: Bench, fakes: Fakes) -> None:
    done = bench(*PROBE, "--repeat", "3")
    assert len(fakes.opened) == 3
    assert [row.rounds for row in done.summary.rows] == [18, 18]
    assert all(target.is_closed for target in fakes.opened)


def test_results_are_never_overwritten(bench: Bench, fakes: Fakes, tmp_path: Path) -> None:
    assert bench(*PROBE, folder=tmp_path / "run").status == 0
    again = bench(*PROBE, folder=tmp_path / "run")
    assert again.status == 2
    assert "already holds plan.json" in again.said
    assert len(fakes.opened) == 1


def test_a_baseline_tells_a_slower_run(bench: Bench, fakes: Fakes) -> None:
    before = bench(*PROBE)
    assert bench(*PROBE, "--baseline", str(before.folder)).status == 0
    fakes.prepare = lambda target: setattr(target, "seconds", lambda _: 0.012)
    slower = bench(*PROBE, "--baseline", str(before.folder))
    assert slower.status == 1
    assert "REGRESSION" in slower.said


def test_other_hardware_is_not_comparable(bench: Bench, fakes: Fakes) -> None:
    before = bench(*PROBE)
    fakes.prepare = lambda target: setattr(target, "seconds", lambda _: 0.012)
    elsewhere = bench(*PROBE, "--baseline", str(before.folder), "--hardware", "TPU v6e-1")
    assert elsewhere.status == 2
    assert "not comparable: measured on TPU v6e-1, and then on" in elsewhere.said
    assert "can be compared with this run." in elsewhere.said
    assert "REGRESSION" not in elsewhere.said


def test_rows_without_a_partner_are_listed_and_no_regression(bench: Bench, fakes: Fakes) -> None:
    before = bench(*PROBE, "--workload", "probe-9-2-4")
    after = bench(*PROBE, "--workload", "probe-9-1-4", "--baseline", str(before.folder))
    assert after.status == 0
    table = after.said
    assert re.search(r"probe-9-3-4-cold [\d.]+ [\d.]+ ok", table)
    assert re.search(r"probe-9-1-4-cold [\d.]+ - not compared: only now", table)
    assert re.search(r"probe-9-2-4-cold - [\d.]+ not compared: only then", table)


def test_where_nothing_compares_is_no_regression_and_no_success(bench: Bench, fakes: Fakes) -> None:
    before = bench("run", "--workload", "probe-9-3-4", "--runs", "12", "--rate", "20")
    after = bench(*PROBE, "--baseline", str(before.folder))
    assert after.status == 2
    assert "not compared: load is 1 caller and was 20/s" in after.said


def answers_as(**about: Any) -> Callable[[FakeTarget], None]:
    """Have targets say of themselves what is given."""

    def prepare(target: FakeTarget) -> None:
        told = dataclasses.replace(target.about, **about)
        target.__class__ = type("Said", (FakeTarget,), {"about": told})

    return prepare


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"model": "another"}, "model is another and was none"),
        ({"dtype": "float32"}, "dtype is float32 and was bfloat16"),
        ({"options": {"quantization": "int8"}}, "quantization is int8 and was none"),
    ],
)
def test_another_model_or_type_is_not_compared(bench: Bench, fakes: Fakes, about: dict[str, Any], reason: str) -> None:
    before = bench(*PROBE)
    fakes.prepare = answers_as(**about)
    after = bench(*PROBE, "--baseline", str(before.folder))
    assert after.status == 2
    assert f"not compared: {reason}" in after.said


def test_checkpoints_are_identified_by_shape_and_not_by_path(
    bench: Bench, fakes: Fakes, checkpoint: Path, checkpoint_factory: Callable[..., Path], tmp_path: Path
) -> None:
    before = bench(*PROBE, "--model", str(checkpoint))
    shutil.copytree(checkpoint, tmp_path / "elsewhere")
    assert bench(*PROBE, "--model", str(tmp_path / "elsewhere"), "--baseline", str(before.folder)).status == 0
    other = checkpoint_factory(num_hidden_layers=3)
    after = bench(*PROBE, "--model", str(other), "--baseline", str(before.folder))
    assert after.status == 2
    assert "model differs in its configuration and weights' index" in after.said


def test_a_comparison_shows_commits_and_versions_that_are_others(bench: Bench, fakes: Fakes) -> None:
    before = bench(*PROBE)
    plan = json.loads((before.folder / "plan.json").read_text())
    plan["environment"] |= {"commit": "1" * 40, "is_dirty": True}
    plan["environment"]["versions"]["jax"] = "0.1"
    (before.folder / "plan.json").write_text(json.dumps(plan))
    said = bench(*PROBE, "--baseline", str(before.folder)).said
    assert "and then 111111111111 with changes" in said
    assert re.search(r", jax [\d.]+ and then 0\.1", said)


def test_targets_that_are_alike_are_compared_by_name(bench: Bench, fakes: Fakes) -> None:
    fakes.prepare = lambda target: setattr(target, "seconds", lambda _: 0.01 if target.spec.alias == "a" else 0.02)
    two = options_of(["a=engine", "b=engine"])
    before = bench(*PROBE, *two)
    assert bench(*PROBE, *two, "--baseline", str(before.folder)).status == 0


def slow_every(nth: int, times: float) -> Callable[[FakeTarget], None]:
    """Have every so many-th timed call take so many times as long; warm-ups and checks of scores come first."""

    def prepare(target: FakeTarget) -> None:
        target.seconds = lambda _: 0.01 * (times if len(target.sent) > 24 and len(target.sent) % nth == 0 else 1)

    return prepare


def test_a_smoke_run_has_a_p95_over_all_its_rows(bench: Bench, fakes: Fakes) -> None:
    before = bench("run", "--profile", "smoke")
    same = bench("run", "--profile", "smoke", "--baseline", str(before.folder))
    assert same.status == 0
    assert "ok, p95 +0% of 30 calls; p99 needs 100" in same.said
    fakes.prepare = slow_every(7, times=1.5)
    slower = bench("run", "--profile", "smoke", "--baseline", str(before.folder))
    assert slower.status == 1
    assert "failed: REGRESSION, p95 +50% of 30 calls" in slower.said


def test_a_repeated_smoke_run_has_a_p99_over_all_its_rows(bench: Bench, fakes: Fakes) -> None:
    smoke = ("run", "--profile", "smoke", "--repeat", "4")
    before = bench(*smoke)

    def prepare(target: FakeTarget) -> None:  # one call of each repetition, of different rows: 3 % in all
        slow = 25 + 7 * (len(fakes.opened) % 4)
        target.seconds = lambda _: 0.015 if len(target.sent) == slow else 0.01

    fakes.prepare = prepare
    slower = bench(*smoke, "--baseline", str(before.folder))
    assert slower.status == 0
    assert "warning: p99 +50% of 120 calls" in slower.said


def test_a_baseline_says_how_it_was_made(bench: Bench, fakes: Fakes) -> None:
    before = bench(*PROBE)
    said = bench(*PROBE, "--baseline", str(before.folder)).said
    assert f"made by `{before.results.plan.command}` on {before.results.plan.environment.hardware}" in said


def test_a_lower_instruction_level_is_other_hardware(
    bench: Bench, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mis_kernels.backends.native.library.level", lambda: "AVX512_BF16")
    before = bench(*PROBE)
    assert before.results.plan.environment.hardware.endswith(" cores, AVX512_BF16")
    monkeypatch.setattr("mis_kernels.backends.native.library.level", lambda: "AVX2")
    lower = bench(*PROBE, "--baseline", str(before.folder))
    assert lower.status == 2
    assert re.search(r"not comparable: measured on [^:]+ cores, AVX2, and then on [^:]+ cores, AVX512_BF16", lower.said)


def test_latencies_of_rows_are_pooled_as_shares_of_their_medians(bench: Bench, fakes: Fakes) -> None:
    def prepare(target: FakeTarget) -> None:  # the rows' own levels are forty times apart
        target.seconds = lambda workload: 0.001 * workload.num_items * (1.3 if len(target.sent) > 200 else 1)

    fakes.prepare = prepare
    before = bench("run", "--profile", "smoke")
    after = bench("run", "--profile", "smoke", "--baseline", str(before.folder))
    assert "ok, p95 +0% of 30 calls" in after.said


@pytest.mark.parametrize(
    ("calls", "p95", "p99", "verdict"),
    [
        (19, 9.0, 9.0, "not judged: p95 needs 20 calls, not 19; p99 needs 100"),
        (20, 1.16, 9.0, "failed: REGRESSION, p95 +16% of 20 calls; p99 needs 100"),
        (99, 1.14, 9.0, "ok, p95 +14% of 99 calls; p99 needs 100"),
        (100, 1.14, 1.21, "warning: p99 +21% of 100 calls"),
        (100, 1.16, 1.21, "failed: REGRESSION, p95 +16%, p99 +21% of 100 calls"),
        (100, 1.14, 1.19, "ok, p95 +14%, p99 +19% of 100 calls"),
    ],
)
def test_rules_of_pooled_tails(calls: int, p95: float, p99: float, verdict: str) -> None:
    for before, after in ((500, calls), (calls, 500)):
        then, now = baselines.Tail(before, p95=1.0, p99=1.0), baselines.Tail(after, p95=p95, p99=p99)
        assert baselines.tail_verdict(then, now) == verdict


@pytest.mark.parametrize(
    ("speed", "calls", "tail_ms", "verdict"),
    [
        (100.0, 20, {"p95_ms": 11.6}, "failed: REGRESSION, p95 +16% of 20 calls"),
        (100.0, 19, {"p95_ms": 11.6}, "warning: p95 +16% of 19 calls"),
        (100.0, 100, {"p99_ms": 12.1}, "warning: p99 +21% of 100 calls"),
        (100.0, 99, {"p99_ms": 12.1}, "ok, items/s +0.0%"),
        (100.0, 100, {"p95_ms": 11.4, "p99_ms": 11.9}, "ok, items/s +0.0%"),
        (89.0, 1, {}, "failed: REGRESSION, items/s -11.0%"),
        (94.0, 1, {}, "warning: items/s -6.0%"),
        (96.0, 1, {}, "ok, items/s -4.0%"),
        (0.0, 1, {}, "failed: REGRESSION, not measured"),
    ],
)
def test_regression_rules(speed: float, calls: int, tail_ms: dict[str, float], verdict: str) -> None:
    latency = Latency(p50_ms=10, p95_ms=10, p99_ms=10, mean_ms=10, std_ms=0)
    then: Any = SimpleNamespace(speed=100.0, calls=calls, latency=latency)
    now: Any = SimpleNamespace(speed=speed, calls=calls, latency=latency.model_copy(update=tail_ms))
    assert baselines.verdict(then, now, 0.1) == verdict


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "16", "--runs", "4"], "needs at least as many --runs"),
        (["--trace", "mixed:1:2", "--runs", "3"], "excludes"),
        (["--trace", "nonsense"], "Write LOAD:RATE:COUNT"),
        (["--workload", "nonsense"], "Write KIND-Q-N-L"),
        (["--target", "engine,packed"], "has no value"),
        (["--target", "engine", "--target", "engine"], "named twice"),
        (["--model", "random:none"], "There is no shape"),
        (["--option", "x"], "is not NAME=VALUE"),
        (["--hourly-cost", "engine=-1"], "not in the range x>0"),
    ],
)
def test_mistakes_are_one_sentence(bench: Bench, arguments: list[str], message: str) -> None:
    done = bench("run", *arguments)
    assert done.status == 2
    assert message in done.said


def test_a_trace_is_played_when_its_requests_are_due(bench: Bench, fakes: Fakes) -> None:
    done = bench("run", "--trace", "mixed:50:12", "--vocab-size", "500", "--max-p99-ms", "11")
    assert done.status == 0
    calls = timed(done, "engine")
    assert len(calls) == 12
    assert [call.sent_s for call in calls] == pytest.approx([call.due_s for call in calls])
    rows = {row.name: row for row in done.summary.rows}
    assert set(rows) == {"engine", *(f"engine of {items}" for items in {call.items for call in calls})}
    assert sum(row.calls for name, row in rows.items() if name != "engine") == 12
    assert max(max(map(int, workload.query)) for workload in fakes.opened[0].sent) < 500
