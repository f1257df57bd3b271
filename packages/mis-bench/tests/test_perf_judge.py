"""Verdicts of comparisons, on noise that is known."""

import numpy as np
import pytest
from scipy import stats

from mis_bench.perf.judge import (
    FALSE_ALARMS,
    SINGLE_ITEM_DROP,
    THROUGHPUT_DROP,
    Change,
    Times,
    change,
    decide,
    judge_tail,
    log_ratios,
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

    def sessions(self, sessions: int, pairs: int, calls: int = 2) -> tuple[Times, Times]:
        """Return what the clock and the CPU say, each `[2, sessions * pairs, calls]`."""
        found = []
        for _ in range(sessions):
            base, head = self.rng.normal(0, 0.01, 2)
            sides = [(base, 0.0), (head + np.log1p(self.slowdown), np.log1p(self.wait))]
            for number in range(pairs):
                turns = [self.turn(*side, calls) for side in (sides if number % 2 else reversed(sides))]
                found.append(turns if number % 2 else turns[::-1])
        wall, cpu = np.moveaxis(np.array(found), (2, 1), (0, 1))
        return wall, cpu

    def turn(self, bias: float, wait: float, calls: int) -> tuple[list[float], list[float]]:
        wall, cpu = [], []
        for _ in range(calls):
            self.clock += 0.1
            if self.rng.random() < 0.05:
                self.neighbour = self.rng.choice([0.0, 1.0, 3.0]) * self.noise
            drift = 0.5 * self.noise * np.sin(self.clock / 40)
            slow = bias + wait + self.neighbour + drift
            wall.append(0.05 * np.exp(slow + self.noise * abs(self.rng.standard_t(3))))
            cpu.append(0.05 * np.exp(bias + 0.05 * self.neighbour + 0.02 * self.rng.standard_t(3)))
        return wall, cpu


def judged(wall: Times, cpu: Times, *, on_cpu: bool = True) -> tuple[str, str]:
    changes = (change(log_ratios(times), CONFIDENCE) for times in (wall, cpu))
    return decide(*changes, THROUGHPUT_DROP, on_cpu=on_cpu)


def verdicts(seed: int, **machine: float) -> list[str]:
    """Do what a comparison does."""
    machines = [Machine(1000 * seed + number, **machine) for number in range(WORKLOADS)]
    times = [each.sessions(SESSIONS, PAIRS, calls=3) for each in machines]
    throughputs = [judged(*each) for each in times]
    tails = [
        judge_tail(wall, may_fail=by == "clock" and status != "unsure")
        for (wall, _), (status, by) in zip(times[:2], throughputs[:2], strict=True)
    ]
    return [*(status for status, _ in throughputs), *(status for _, status in tails)]


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2], ids=["quiet", "shared", "loud"])
def test_unchanged_code_raises_no_alarm(noise: float) -> None:
    assert sum("fail" in verdicts(seed, noise=noise) for seed in range(6)) == 0


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2], ids=["quiet", "shared", "loud"])
def test_a_slowdown_of_12_percent_is_caught(noise: float) -> None:
    assert sum("fail" in verdicts(seed, noise=noise, slowdown=0.12) for seed in range(6)) == 6


def test_single_timings_of_the_same_machine_would_raise_alarms() -> None:
    def naive(seed: int) -> float:
        wall, _ = Machine(seed, noise=0.2).sessions(1, 1)
        return float(np.exp(log_ratios(wall)[0]))

    assert sum(naive(seed) > 1 / 0.9 for seed in range(50)) > 5


def test_with_a_noisy_clock_only_the_cpu_can_clear_a_workload() -> None:
    times = Machine(3, noise=0.4).sessions(1, 40)
    assert judged(*times, on_cpu=False) == ("unsure", "clock")
    assert judged(*times) == ("ok", "cpu")


def test_time_that_the_cpu_does_not_see_is_caught_by_the_clock() -> None:
    cpu = np.full((2, 40, 1), 50.0)
    assert judged(np.stack([cpu[0], 57 + 0.01 * np.arange(40)[:, None]]), cpu) == ("fail", "clock")


@pytest.mark.parametrize("wait", [0.12, 0.15])
@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2], ids=["quiet", "shared", "loud"])
def test_a_wait_in_noise_is_never_cleared_by_cpu_time(noise: float, wait: float) -> None:
    for seed in range(12):
        status, _ = judged(*Machine(seed, noise=noise, wait=wait).sessions(SESSIONS, PAIRS))
        assert status != "ok"


def test_what_cpu_time_may_decide() -> None:
    def decided(low: float, value: float, high: float, cpu: float) -> tuple[str, str]:
        return decide(Change(value, low, high), Change(cpu, cpu - 0.01, cpu + 0.01), 0.1, on_cpu=True)

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


def test_intervals_cover_at_their_level_and_agree_with_wilcoxon() -> None:
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(400):
        sample = rng.standard_t(2, 12)
        found = change(sample, 0.9)
        missed += not found.low <= 0 <= found.high
        excludes_zero = stats.wilcoxon(sample).pvalue < 0.1
        assert (not found.low <= 0 <= found.high) == excludes_zero
    assert missed < 0.15 * 400


def test_few_pairs_get_the_confidence_that_they_allow() -> None:
    ratios = np.array([0.1, 0.2, 0.3, 0.4])
    few, wide = change(ratios, 0.999), change(ratios, 1 - 2 / 16)
    assert few == wide == (pytest.approx(np.expm1(-0.25)), pytest.approx(np.expm1(-0.4)), pytest.approx(np.expm1(-0.1)))


def test_a_percentile_of_few_calls_fails_nobody() -> None:
    def rising(pairs: int) -> Times:
        return np.array([[[50.0, 50.0]] * pairs, [[50.0, 100.0]] * pairs])

    def status(pairs: int, *, may_fail: bool = True) -> str:
        return judge_tail(rising(pairs), may_fail=may_fail)[1]

    assert [status(49), status(50), status(50, may_fail=False)] == ["ok", "fail", "warn"]


def test_one_outlier_is_not_a_slower_tail() -> None:
    wall = np.full((2, 50, 2), 50.0)
    wall[1, -1] = 900.0
    assert judge_tail(wall, may_fail=True)[1] == "ok"


def test_the_interval_of_a_tail_is_the_bootstrap_of_scipy() -> None:
    wall, _ = Machine(7, noise=0.05).sessions(1, 60)

    def rise(index: np.ndarray, axis: int) -> np.ndarray:
        base, head = np.percentile(wall[:, np.moveaxis(index, axis, -1).astype(int)], 95, axis=(-2, -1))
        return head / base - 1

    wanted = stats.bootstrap(
        (np.arange(60),), rise, n_resamples=4000, confidence_level=0.999, method="percentile", vectorized=True,
        rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    found, _ = judge_tail(wall, may_fail=True)
    assert found.low == pytest.approx(wanted.low, abs=0.03)
    assert found.high == pytest.approx(wanted.high, abs=0.03)
