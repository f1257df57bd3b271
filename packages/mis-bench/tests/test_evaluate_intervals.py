"""Intervals by cluster."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from evaluated import drawn_answers
from mis_bench.evaluate import sums
from mis_bench.evaluate.figures import figures_of
from mis_bench.evaluate.resampling import Interval, interval, replicas

SIMULATION = Path(__file__).parents[1] / "benchmarks" / "interval_coverage.py"


def test_an_interval_is_scipys() -> None:
    """SciPy's BCa bootstrap of a mean, each with resamples of its own."""
    each = np.random.default_rng(0).gamma(1.0, size=120)
    resampled = sums.mean_of(each)
    found = interval(each.mean(), replicas({"mean": resampled}, np.ones(120), np.arange(120), resamples=9999)["mean"])
    other = stats.bootstrap((each,), np.mean, n_resamples=9999, method="BCa", rng=np.random.default_rng(1))
    assert (found.low, found.high) == pytest.approx(tuple(other.confidence_interval), abs=0.01)
    assert found.low < each.mean() < found.high


def test_rows_of_a_cluster_are_resampled_together() -> None:
    """Every row ten times tells no more than once."""
    answers = drawn_answers(0, 100)
    often = answers.where(np.repeat(np.arange(100), 10))
    once = {name: each.resampled for name, each in figures_of(answers).items()}
    ten = {name: each.resampled for name, each in figures_of(often).items()}
    found = replicas(once, answers.weight, answers.cluster)
    together, apart = replicas(ten, often.weight, often.cluster), replicas(ten, often.weight, np.arange(1000))
    for name in ("accuracy", "auc", "log_loss", "spearman"):
        np.testing.assert_allclose(found[name].resampled, together[name].resampled)
        np.testing.assert_allclose(found[name].without, together[name].without)
        assert apart[name].resampled.std() < 0.5 * together[name].resampled.std()


def test_numbers_of_clusters_are_names() -> None:
    answers = drawn_answers(0, 50)
    resampled = {"accuracy": figures_of(answers)["accuracy"].resampled}
    one, other = (replicas(resampled, answers.weight, cluster) for cluster in (np.arange(50), 10 * np.arange(50) + 7))
    np.testing.assert_array_equal(one["accuracy"].resampled, other["accuracy"].resampled)


def test_resamples_beyond_memory_are_made_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = drawn_answers(0, 16)
    resampled = {name: each.resampled for name, each in figures_of(answers).items()}
    whole = replicas(resampled, answers.weight, answers.cluster)
    monkeypatch.setattr("mis_bench.evaluate.resampling._ELEMENTS", 1)
    for name, each in replicas(resampled, answers.weight, answers.cluster).items():
        np.testing.assert_allclose(each.resampled, whole[name].resampled)


def test_few_clusters_are_no_ground_for_an_interval() -> None:
    answers = drawn_answers(0, 90)
    resampled = {"accuracy": figures_of(answers)["accuracy"].resampled}
    assert replicas(resampled, answers.weight, np.arange(90) % 9) == {}
    assert "accuracy" in replicas(resampled, answers.weight, np.arange(90) % 10)
    assert interval(0.5, None) == Interval(0.5, None, None)


def test_a_figure_that_resamples_do_not_have_has_no_interval() -> None:
    values = np.r_[1.0, np.full(29, np.nan)]
    found = replicas({"rare": sums.mean_of(values)}, np.ones(30), np.arange(30))["rare"]
    assert interval(1.0, found) == Interval(1.0, None, None)


def test_differences_under_the_same_resamples_are_paired() -> None:
    answers = drawn_answers(0, 400)
    each = sums.mean_of(answers.correct)
    worse = sums.mean_of(answers.correct - (np.arange(400) < 20))
    found = replicas({"a": each, "b": worse, "same": each}, answers.weight, answers.cluster)
    paired = interval(0.05, found["a"].minus(found["b"]))
    assert 0.02 < paired.low < 0.05 < paired.high < 0.08
    alone = interval(answers.correct.mean(), found["a"])
    assert paired.high - paired.low < 0.6 * (alone.high - alone.low)
    assert interval(0.0, found["a"].minus(found["same"])) == Interval(0.0, 0.0, 0.0)


def simulated(runs: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SIMULATION), "--runs", str(runs)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_intervals_hold_the_true_figure_as_often_as_they_say() -> None:
    done = simulated(2000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MISSED" not in done.stdout
