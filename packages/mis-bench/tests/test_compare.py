"""Comparisons: planted slowdowns and planted wrong scores are found, and nothing else is."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bench_fakes import Done, Fakes, FakeTarget, by_alias, options_of
from mis_bench.workload import Workload

Bench = Callable[..., Done]
BOTH = (*options_of(["base=engine", "new=engine"]), "--workload", "probe-20-6-4")


def slow_by(factor: float) -> Callable[[FakeTarget], None]:
    """Make the target `new` slower, and the machine drift for both."""

    def prepare(target: FakeTarget) -> None:
        mine = factor if target.spec.alias == "new" else 1.0
        target.seconds = lambda _: 0.01 * mine * (1 + len(target.sent) / 10)

    return prepare


@pytest.mark.parametrize(("factor", "word"), [(1.2, "worse in items/s, -16.7 %"), (0.5, "better in items/s, +100 %")])
def test_a_planted_slowdown_is_found_though_the_machine_drifts(
    bench: Bench, fakes: Fakes, factor: float, word: str
) -> None:
    fakes.prepare = slow_by(factor)
    done = bench("compare", *BOTH)
    assert done.status == 0
    new = done.summary.rows[1]
    assert new.ratio is not None
    assert new.ratio.value == pytest.approx(1 / factor)
    assert (new.ratio.low, new.ratio.high) == pytest.approx((1 / factor, 1 / factor))
    assert done.summary.winner is not None
    assert done.summary.winner.target == ("base" if factor > 1 else "new")
    assert word in done.said


def test_equal_targets_are_level(bench: Bench, fakes: Fakes) -> None:
    rng = np.random.default_rng(1)
    fakes.prepare = lambda target: setattr(target, "seconds", lambda _: 0.01 * rng.uniform(0.9, 1.1))
    done = bench("compare", *BOTH, "--rounds", "12")
    assert "neither better nor worse in items/s" in done.said


def test_rounds_alternate_and_every_target_is_asked_the_same(bench: Bench, fakes: Fakes) -> None:
    done = bench("compare", *BOTH, "--rounds", "3")
    order = [window.case for window in done.results.windows if window.phase == "timed"]
    assert order == ["base", "new", "new", "base", "base", "new"]
    base, new = by_alias(fakes)["base"], by_alias(fakes)["new"]
    assert [workload.sha256 for workload in base.sent] == [workload.sha256 for workload in new.sent]
    assert all(workload.apply_softmax for workload in base.sent)
    assert done.summary.rows[0].items_per_second
    assert done.summary.rows[0].items_per_second.spread.count(",") == 2  # too few rounds for an interval


def spoiled(when: Callable[[Workload], bool], by: float) -> Callable[[FakeTarget], None]:
    def prepare(target: FakeTarget) -> None:
        if target.spec.alias == "new":
            honest = target.scores
            target.scores = lambda workload: honest(workload) + (by if when(workload) else 0.0)

    return prepare


def test_wrong_scores_fail_the_gate_however_fast(bench: Bench, fakes: Fakes) -> None:
    fakes.prepare = spoiled(lambda _: True, 0.05)
    done = bench("compare", *BOTH)
    base, new = done.summary.rows
    assert done.status == 1
    assert new.status == "failed"
    assert "correctness: scores differ by up to 0.0500" in new.reasons[0]
    assert new.objections
    assert base.wins


def test_scores_that_are_wrong_only_while_timed_fail_as_well(bench: Bench, fakes: Fakes) -> None:
    first = {"sha256": ""}

    def is_timed(workload: Workload) -> bool:
        if workload.num_items == 6 and not first["sha256"]:
            first["sha256"] = workload.sha256
        return workload.num_items == 6 and workload.sha256 != first["sha256"]

    fakes.prepare = spoiled(is_timed, 0.05)
    done = bench("compare", *BOTH)
    assert done.status == 1
    assert "scores of 6 timed requests differ" in done.summary.rows[1].reasons[0]


def test_differences_within_the_limits_pass(bench: Bench, fakes: Fakes) -> None:
    fakes.prepare = spoiled(lambda _: True, 0.009)
    assert bench("compare", *BOTH).status == 0
    assert bench("compare", *BOTH, "--correctness-threshold-mean-abs", "0.005").status == 1


def test_nobody_wins_beside_a_reference_without_scores(
    bench: Bench, fakes: Fakes, failing: Callable[..., Callable[[int, Workload], None]]
) -> None:
    def prepare(target: FakeTarget) -> None:
        if target.spec.alias == "base":
            target.before = failing("timeout")

    fakes.prepare = prepare
    done = bench("compare", *BOTH)
    assert done.status == 1
    assert [row.reasons[0].partition(": ")[0] for row in done.summary.rows] == ["timeout", "correctness"]
    assert "missing_reference" in done.summary.rows[1].reasons[0]


def dies(target: FakeTarget, failing: Callable[..., Any]) -> None:
    if target.spec.alias == "new":
        target.before = failing("connection", since=6)


def test_nobody_wins_because_the_other_died(
    bench: Bench, fakes: Fakes, failing: Callable[..., Callable[[int, Workload], None]]
) -> None:
    fakes.prepare = lambda target: dies(target, failing)
    both = options_of(["base=engine", "new=engine"])
    done = bench("compare", *both, "--workload", "probe-20-6-4")
    assert done.status == 1
    assert done.summary.winner is None
    assert "base does not win: no other target was measured to the end" in done.said
    base, new = done.summary.rows
    assert base.objections == ["no other target was measured to the end"]
    assert new.status == "failed"
    three = bench("compare", *both, *options_of(["third=engine"]), "--workload", "probe-20-6-4")
    assert three.summary.winner is not None, "two are left"


def test_nobody_wins_because_the_other_could_not_run(bench: Bench, fakes: Fakes) -> None:
    fakes.refuse_late = lambda spec: "It is gone." if spec.alias == "new" else None
    done = bench("compare", *options_of(["base=engine", "new=engine"]), "--workload", "probe-20-6-4", "--allow-missing")
    assert done.summary.winner is None
    assert "base does not win" in done.said


def test_a_faster_target_above_the_guardrail_does_not_win(bench: Bench, fakes: Fakes) -> None:
    def prepare(target: FakeTarget) -> None:
        if target.spec.alias == "new":
            target.seconds = lambda _: 0.05 if len(target.sent) % 4 == 3 else 0.005

    fakes.prepare = prepare
    done = bench("compare", *BOTH, "--rounds", "8")
    assert done.summary.rows[1].speed > done.summary.rows[0].speed
    assert done.summary.winner is not None
    assert done.summary.winner.target == "base"
    done = bench("compare", *BOTH, "--rounds", "8", "--guardrail-ratio", "9")
    assert done.summary.winner is not None
    assert done.summary.winner.target == "new"


def test_a_faster_target_that_refuses_to_forget_does_not_win(bench: Bench, fakes: Fakes) -> None:
    def prepare(target: FakeTarget) -> None:
        if target.spec.alias == "new":
            target.seconds = lambda _: 0.005
            target.forgets = False

    fakes.prepare = prepare
    done = bench("compare", *BOTH)
    assert done.summary.rows[1].status == "warn"
    assert done.summary.winner is not None
    assert done.summary.winner.target == "base"


def test_slow_targets_score_only_the_first_items_and_cannot_win(bench: Bench, fakes: Fakes) -> None:
    fakes.prepare = slow_by(0.1)
    done = bench("compare", *BOTH, "--slow-items", "new=2")
    assert done.status == 0
    assert {workload.num_items for workload in by_alias(fakes)["new"].sent} == {1, 2}
    base, new = done.summary.rows
    assert new.max_abs == 0
    assert base.wins
    assert new.ratio is not None
    assert "2 items only" in new.objections[0]


def test_calls_of_equal_size_are_compared(bench: Bench, fakes: Fakes) -> None:
    done = bench("compare", *BOTH, "--chunk-sizes", "2,6")
    rows = {row.name: row for row in done.summary.rows}
    assert rows["new, calls of 2"].ratio is not None
    assert rows["new, calls of 2"].ratio.value == pytest.approx(1)
    assert rows["base, calls of 2"].speed == pytest.approx(rows["base"].speed / 3)


def test_money_is_counted_and_machines_are_named(bench: Bench, fakes: Fakes) -> None:
    done = bench("compare", *BOTH, "--hourly-cost", "new=2", "--hardware", "8 x A", "--hardware", "new=1 x B")
    base, new = done.summary.rows
    assert (base.items_per_usd, new.items_per_usd) == (None, pytest.approx(new.speed * 3600 / 2))
    assert (base.hardware, new.hardware) == ("8 x A", "1 x B")


def test_targets_that_cannot_forget_are_not_compared(bench: Bench, fakes: Fakes) -> None:
    fakes.forgets = False
    done = bench("compare", *BOTH)
    assert done.status == 1
    assert "cannot clear its prefix cache" in done.said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "engine"], "at least two targets"),
        ([*BOTH, "--reference", "nobody"], "is not a target"),
        ([*BOTH, "--slow-items", "nobody=2"], "is not a target"),
        ([*BOTH, "--slow-items", "base=1", "--reference", "base"], "base scores few items"),
        ([*BOTH, "--slow-items", "base"], "is not a valid integer range"),
    ],
)
def test_mistakes_are_one_sentence(bench: Bench, arguments: list[str], message: str) -> None:
    done = bench("compare", *arguments)
    assert done.status == 2
    assert message in done.said


MATRIX = ("matrix", "--workload", "probe-20-12-4", "--chunk-sizes", "1,2,4,12")


def test_a_matrix_finds_and_confirms_the_best_chunk_size(bench: Bench, fakes: Fakes) -> None:
    fakes.prepare = lambda target: setattr(
        target, "seconds", lambda workload: 0.01 if workload.num_items <= 4 else 0.05
    )
    done = bench(*MATRIX)
    assert done.status == 0
    assert done.summary.winner is not None
    assert (done.summary.winner.case, done.summary.winner.phase) == ("engine, calls of 4", "confirm")
    confirmed = [row.case for row in done.summary.rows if row.phase == "confirm"]
    assert confirmed == ["engine, calls of 1", "engine, calls of 2", "engine, calls of 4", "engine"]
    assert {row.rounds for row in done.summary.rows} == {5, 7}


def test_the_native_view_sends_whole_requests_to_each_setting(bench: Bench, fakes: Fakes) -> None:
    fakes.prepare = lambda target: setattr(
        target, "seconds", lambda _: 0.01 if "scoring_algorithm" in target.spec.options else 0.02
    )
    targets = options_of(["auto=engine", "packed=engine,scoring_algorithm=packed"])
    done = bench("matrix", "--workload", "probe-20-12-4", "--view", "best-native", *targets)
    assert done.status == 0
    assert {row.chunk_items for row in done.summary.rows} == {0}
    assert done.summary.winner is not None
    assert done.summary.winner.name == "packed confirmed"
    assert {workload.num_items for target in fakes.opened for workload in target.sent} == {1, 12}


def test_chunks_with_scores_unlike_the_smallest_cannot_win(bench: Bench, fakes: Fakes) -> None:
    def prepare(target: FakeTarget) -> None:
        honest = target.scores
        target.scores = lambda workload: honest(workload) + (0.1 if workload.num_items == 12 else 0.0)

    fakes.prepare = prepare
    done = bench(*MATRIX)
    assert done.status == 1
    assert done.summary.winner is not None
    assert done.summary.winner.case == "engine, calls of 4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--chunk-sizes", "0,4"], "0 is not in the range x>=1"),
        (["--chunk-sizes", "x"], "is not a valid integer"),
        (["--model", "a", "--model", "b"], "one --model"),
    ],
)
def test_a_wrong_matrix_is_refused(bench: Bench, arguments: list[str], message: str) -> None:
    done = bench("matrix", "--workload", "probe-20-12-4", *arguments)
    assert done.status == 2
    assert message in done.said
