"""Verdicts of comparisons, on noise that is known."""

import numpy as np
import pytest
from scipy import stats

from mis_bench.perf.judge import (
    FALSE_ALARMS,
    SINGLE_ITEM_DROP,
    Change,
    Pair,
    Turn,
    change,
    decide,
    judge_tail,
    judge_throughput,
    status_of,
)

WORKLOADS, PAIRS, SESSIONS = 7, 20, 5
CONFIDENCE = 1 - FALSE_ALARMS / (2 * WORKLOADS)


class Machine:
    """A machine with neighbours: two sides run on it by turns.

    Its speed drifts, neighbours come and go, every call has heavy-tailed noise, and every process has a bias of its
    own, which pairs cannot cancel. The head is slower by `slowdown`, and by a `wait` that its CPU time does not hold.
    """

    def __init__(self, seed: int, *, noise: float, slowdown: float = 0.0, wait: float = 0.0) -> None:
        self.rng = np.random.default_rng(seed)
        self.noise, self.slowdown, self.wait = noise, slowdown, wait
        self.neighbour, self.clock = 0.0, 0.0

    def session(self, pairs: int, calls: int = 2) -> list[Pair]:
        bias = dict(zip(("base", "head"), self.rng.normal(0, 0.01, 2), strict=True))
        bias["head"] += np.log1p(self.slowdown)
        found = []
        for number in range(pairs):
            order = ("base", "head") if number % 2 else ("head", "base")
            waits = {"base": 0.0, "head": np.log1p(self.wait)}
            turns = {side: self.turn(bias[side], calls, waits[side]) for side in order}
            found.append(Pair(**turns))
        return found

    def turn(self, bias: float, calls: int, wait: float) -> Turn:
        wall, cpu = [], []
        for _ in range(calls):
            self.clock += 0.1
            if self.rng.random() < 0.05:
                self.neighbour = self.rng.choice([0.0, 1.0, 3.0]) * self.noise
            drift = 0.5 * self.noise * np.sin(self.clock / 40)
            slow = bias + wait + self.neighbour + drift
            wall.append(0.05 * np.exp(slow + self.noise * abs(self.rng.standard_t(3))))
            cpu.append(0.05 * np.exp(bias + 0.05 * self.neighbour + 0.02 * self.rng.standard_t(3)))
        return Turn(wall, cpu)


def verdicts(seed: int, **machine: float) -> list[str]:
    """Do what a comparison does."""
    machines = [Machine(1000 * seed + number, **machine) for number in range(WORKLOADS)]
    pairs = [[pair for _ in range(SESSIONS) for pair in each.session(PAIRS, calls=3)] for each in machines]
    judged = [judge_throughput(found, CONFIDENCE, on_cpu=True) for found in pairs]
    tails = [judge_tail(found, may_fail=each.is_quiet) for found, each in zip(pairs[:2], judged[:2], strict=True)]
    return [each.status for each in (*judged, *tails)]


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2], ids=["quiet", "shared", "loud"])
def test_unchanged_code_raises_no_alarm(noise: float) -> None:
    assert sum("fail" in verdicts(seed, noise=noise) for seed in range(6)) == 0


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2], ids=["quiet", "shared", "loud"])
def test_a_slowdown_of_12_percent_is_caught(noise: float) -> None:
    assert sum("fail" in verdicts(seed, noise=noise, slowdown=0.12) for seed in range(6)) == 6


def test_single_timings_of_the_same_machine_would_raise_alarms() -> None:
    def naive(seed: int) -> float:
        pairs = Machine(seed, noise=0.2).session(1)
        return np.median(pairs[0].head.wall_ms) / np.median(pairs[0].base.wall_ms)

    assert sum(naive(seed) > 1 / 0.9 for seed in range(50)) > 5


def test_where_the_clock_is_too_noisy_only_the_cpu_can_clear_a_workload() -> None:
    pairs = Machine(3, noise=0.4).session(40)
    assert judge_throughput(pairs, CONFIDENCE, on_cpu=False).status == "unsure"
    cleared = judge_throughput(pairs, CONFIDENCE, on_cpu=True)
    assert (cleared.status, cleared.by) == ("ok", "cpu")


def test_time_that_the_cpu_does_not_see_is_caught_by_the_clock() -> None:
    pairs = [Pair(Turn([0.050], [0.050]), Turn([0.057 + 1e-5 * number], [0.050])) for number in range(40)]
    judged = judge_throughput(pairs, CONFIDENCE, on_cpu=True)
    assert (judged.status, judged.by) == ("fail", "clock")


@pytest.mark.parametrize("wait", [0.12, 0.15])
@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2], ids=["quiet", "shared", "loud"])
def test_a_wait_in_noise_is_never_cleared_by_cpu_time(noise: float, wait: float) -> None:
    for seed in range(12):
        machine = Machine(seed, noise=noise, wait=wait)
        pairs = [pair for _ in range(SESSIONS) for pair in machine.session(PAIRS)]
        assert judge_throughput(pairs, CONFIDENCE, on_cpu=True).status != "ok"


def test_what_cpu_time_may_decide() -> None:
    def decided(low: float, value: float, high: float, cpu: float) -> tuple[str, str]:
        found = decide(Change(value, low, high), Change(cpu, cpu - 0.01, cpu + 0.01), 0.1, on_cpu=True)
        return found.status, found.by

    assert decided(-0.15, -0.04, 0.07, 0.0) == ("ok", "cpu")
    assert decided(-0.15, -0.04, 0.07, -0.12) == ("fail", "cpu")
    assert decided(-0.15, -0.06, 0.03, 0.0) == ("unsure", "clock")  # the estimate is half of the limit
    assert decided(-0.15, -0.04, -0.01, 0.0) == ("unsure", "clock")  # some drop is certain
    assert decided(-0.15, -0.09, -0.04, -0.12) == ("fail", "cpu")
    assert decided(-0.15, -0.12, -0.08, 0.0) == ("fail", "clock")


def test_what_an_interval_means() -> None:
    def status(low: float, value: float, high: float, limit: float = 0.1) -> str:
        return status_of(Change(value, low, high), limit)

    assert status(-0.02, 0.0, 0.02) == "ok"
    assert status(-0.09, -0.07, -0.05) == "warn"  # surely slower, surely by less than 10 %
    assert status(-0.12, -0.107, -0.09) == "fail"
    assert status(-0.11, -0.08, -0.06) == "fail"  # more than 5 % for sure, and 10 % cannot be excluded
    assert status(-0.15, -0.01, 0.14) == "unsure"
    assert status(-0.06, -0.045, -0.03) == "ok"
    assert status(-0.06, -0.045, -0.03, SINGLE_ITEM_DROP) == "fail"


def test_intervals_cover_as_often_as_they_say_and_agree_with_wilcoxon() -> None:
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(400):
        sample = rng.standard_t(2, 12)
        found = change(sample.tolist(), 0.9)
        missed += not found.low <= 0 <= found.high
        excludes_zero = stats.wilcoxon(sample).pvalue < 0.1
        assert (not found.low <= 0 <= found.high) == excludes_zero
    assert missed < 0.15 * 400


def test_few_pairs_get_the_confidence_that_they_allow() -> None:
    few, wide = change([0.1, 0.2, 0.3, 0.4], 0.999), change([0.1, 0.2, 0.3, 0.4], 1 - 2 / 16)
    assert few == wide == (pytest.approx(np.expm1(-0.25)), pytest.approx(np.expm1(-0.4)), pytest.approx(np.expm1(-0.1)))
    with pytest.raises(ValueError, match="two pairs"):
        change([0.1], 0.9)


def test_a_percentile_of_few_calls_fails_nobody() -> None:
    def rising(pairs: int) -> list[Pair]:
        return [Pair(Turn([0.05, 0.05], [0.05]), Turn([0.05, 0.10], [0.05])) for _ in range(pairs)]

    few = judge_tail(rising(49), may_fail=True)
    assert (few.status, few.is_enough) == ("ok", False)
    assert judge_tail(rising(50), may_fail=True).status == "fail"
    assert judge_tail(rising(50), may_fail=False).status == "warn"


def test_one_outlier_is_not_a_slower_judge_tail() -> None:
    pairs = [Pair(Turn([0.05, 0.05], [0.05]), Turn([0.05, 0.05], [0.05])) for _ in range(49)]
    pairs.append(Pair(Turn([0.05, 0.05], [0.05]), Turn([0.9, 0.9], [0.05])))
    assert judge_tail(pairs, may_fail=True).status == "ok"
