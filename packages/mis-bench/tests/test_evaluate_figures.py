"""Figures of answers, against plain formulas, scikit-learn and published examples."""

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from evaluated import drawn_answers, made_answers
from mis_bench.evaluate import sums
from mis_bench.evaluate.answers import Answers, RowAnswer
from mis_bench.evaluate.figures import figures_of, is_figure
from mis_bench.evaluate.reliability import Predicted, diagram, ece, ece_width, predicted

SEEDS = st.integers(0, 10_000)


def values(answers: Answers) -> dict[str, float]:
    return {name: figure.value for name, figure in figures_of(answers).items()}


def once(resampled, weights) -> float:
    return float(resampled(np.asarray(weights, np.float64)[None])[0])


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("digits", [None, 1])
def test_figures_are_those_of_plain_formulas(classes: int, digits: int | None) -> None:
    answers = drawn_answers(1, 120, classes=classes, weighted=True, digits=digits)
    found = values(answers)
    rows = list(zip(answers.probabilities.tolist(), answers.truth.tolist(), answers.weight.tolist(), strict=True))
    total = sum(weight for *_, weight in rows)

    def mean(each) -> float:
        return sum(weight * each(probs, truth) for probs, truth, weight in rows) / total

    def share(probs, index) -> float:
        return (probs[index] == max(probs)) / probs.count(max(probs))

    assert found["accuracy"] == pytest.approx(mean(share))
    assert found["log_loss"] == pytest.approx(mean(lambda probs, truth: -math.log(probs[truth])))
    half = 0.5 if classes == 2 else 1.0
    squares = mean(lambda probs, truth: sum((p - (k == truth)) ** 2 for k, p in enumerate(probs)))
    assert found["brier"] == pytest.approx(half * squares)
    f1, areas = [], []
    for k in range(classes):
        both = sum(weight * share(probs, k) for probs, truth, weight in rows if truth == k)
        either = sum(weight * (share(probs, k) + (truth == k)) for probs, truth, weight in rows)
        f1.append(2 * both / either)
        won = lost = 0.0
        for probs, truth, weight in rows:
            for other, other_truth, other_weight in rows:
                if truth == k != other_truth:
                    won += weight * other_weight * ((probs[k] > other[k]) + (probs[k] == other[k]) / 2)
                    lost += weight * other_weight
        areas.append(won / lost)
    assert found["macro_f1"] == pytest.approx(sum(f1) / classes)
    assert found["auc"] == pytest.approx(sum(areas) / classes)


@settings(max_examples=12)
@given(SEEDS, st.sampled_from([2, 3, 5]), st.sampled_from([None, 1, 2]), st.booleans())
def test_resamples_are_scikit_learns_figures_of_repeated_rows(
    seed: int, classes: int, digits: int | None, weighted: bool
) -> None:
    """The value of a figure is scikit-learn's; the vectorised one under counts must be that of rows as often there."""
    answers = drawn_answers(seed, 60, classes, weighted=weighted, digits=digits)
    counts = np.random.default_rng(seed).integers(0, 3, len(answers))
    often = answers.where(np.repeat(np.arange(len(answers)), counts))
    repeated = values(often)
    for name, figure in figures_of(answers).items():
        if name in repeated:
            assert once(figure.resampled, counts * answers.weight) == pytest.approx(repeated[name], abs=1e-9), name
            assert once(figure.resampled, answers.weight) == pytest.approx(figure.value, abs=1e-9), name


def test_spearman_is_scipys() -> None:
    from scipy.stats import spearmanr

    answers = drawn_answers(3, classes=5, digits=1)
    assert values(answers)["spearman"] == pytest.approx(spearmanr(answers.level, answers.truth).statistic)
    ranks = [np.mean(np.flatnonzero(np.sort(each) == one)) for each in (answers.level, answers.truth) for one in each]
    assert values(answers)["spearman"] == pytest.approx(np.corrcoef(np.reshape(ranks, (2, -1)))[0, 1])


@settings(max_examples=12)
@given(SEEDS, st.sampled_from([2, 3]), st.sampled_from([None, 1]))
def test_neither_the_order_of_rows_nor_that_of_classes_matters(seed: int, classes: int, digits: int | None) -> None:
    answers = drawn_answers(seed, 80, classes, weighted=True, digits=digits)
    found = values(answers)
    rows = np.random.default_rng(seed).permutation(len(answers))
    assert values(answers.where(rows)) == pytest.approx(found, abs=1e-9)
    backwards = made_answers(answers.probabilities[:, ::-1], classes - 1 - answers.truth, answers.weight)
    assert values(backwards) == pytest.approx(found, abs=1e-9)


def test_questions_with_different_numbers_of_options_are_pooled() -> None:
    found = [
        RowAnswer(0, ("yes", ("no", "yes")), ["no", "yes"], [0.2, 0.8], 1, True, 0.9),
        RowAnswer(0, ("which", ("a", "b", "c")), ["a", "b", "c"], [0.5, 0.3, 0.2], 1, False, None),
        RowAnswer(1, ("yes", ("no", "yes")), ["no", "yes"], [0.6, 0.4], 1, True, 0.7),
        RowAnswer(1, ("which", ("a", "b", "c")), ["a", "b", "c"], [0.1, 0.8, 0.1], 1, False, None),
    ]
    told = values(Answers.of(found, np.ones(2), np.arange(2)))
    assert told["accuracy"] == 0.5
    assert told["log_loss"] == pytest.approx(-np.mean(np.log([0.8, 0.3, 0.4, 0.8])))
    three = 0.5**2 + 0.7**2 + 0.2**2, 0.1**2 + 0.2**2 + 0.1**2
    assert told["brier"] == pytest.approx(np.mean([0.2**2, three[0], 0.6**2, three[1]]))
    assert told["label_mass"] == pytest.approx(0.8)
    assert "auc" not in told  # each question has one right answer only
    assert told["macro_f1"] == pytest.approx(np.mean([0, 2 / 3, 0, 2 / 3]))  # no, yes, a, b; nobody means c


def test_a_probability_of_nothing_costs_what_scikit_learn_says() -> None:
    answers = made_answers([[1.0, 0.0], [0.5, 0.5]], [1, 1])
    assert values(answers)["log_loss"] == pytest.approx((-math.log(np.finfo(float).eps) + math.log(2)) / 2)
    figure = figures_of(answers)["log_loss"]
    assert once(figure.resampled, [1, 1]) == pytest.approx(figure.value)


# Calibration errors.


def test_equal_width_is_the_published_example() -> None:
    """That of TorchMetrics' BinaryCalibrationError: two bins, 0.29."""
    found = Predicted(np.array([0.25, 0.25, 0.55, 0.75, 0.75]), np.array([0.0, 0, 1, 1, 1]))
    assert once(ece_width(found, 2), np.ones(5)) == pytest.approx(0.29)


def test_equal_mass_is_the_plain_formula() -> None:
    """Of Kumar et al.'s correction of absolute distances; they draw the normal scatter that is computed here."""
    answers = drawn_answers(2, 1500)
    found = predicted(answers)
    order = np.argsort(found.probability)
    rng = np.random.default_rng(0)
    plain, corrected = [], []
    for bin_rows in np.split(order, 15):
        mean, rate = found.probability[bin_rows].mean(), found.outcome[bin_rows].mean()
        scatter = rng.normal(rate, math.sqrt(rate * (1 - rate) / len(bin_rows)), 200_000)
        plain.append(abs(mean - rate))
        corrected.append(2 * abs(mean - rate) - np.abs(mean - scatter).mean())
    assert once(ece(found, answers.weight), answers.weight) == pytest.approx(np.mean(corrected), abs=2e-4)
    assert np.mean(corrected) < np.mean(plain)
    assert [each.outcome for each in diagram(found, answers.weight)] == pytest.approx(
        [found.outcome[bin_rows].mean() for bin_rows in np.split(order, 15)]
    )


def test_the_correction_removes_a_third_of_a_perfect_models_bias() -> None:
    plain, corrected = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        probability = rng.uniform(0.05, 0.95, 300)
        found = Predicted(probability, (rng.random(300) < probability).astype(float))
        bins = diagram(found, np.ones(300))
        plain.append(sum(each.share * abs(each.probability - each.outcome) for each in bins))
        corrected.append(once(ece(found, np.ones(300)), np.ones(300)))
    assert np.mean(plain) > 0.07  # and truly it is 0
    assert np.mean(corrected) < 0.65 * np.mean(plain)


def test_equal_probabilities_are_in_one_bin() -> None:
    found = Predicted(np.full(90, 0.7), np.r_[np.ones(45), np.zeros(45)])
    assert len(diagram(found, np.ones(90))) == 1
    deviation = math.sqrt(0.25 / 90)
    expected = 2 * 0.2 - 0.2  # 0.2 is nearly four deviations, so that scatter adds next to nothing
    assert once(ece(found, np.ones(90)), np.ones(90)) == pytest.approx(expected, abs=deviation / 100)


def test_of_more_classes_the_decision_is_what_is_compared() -> None:
    answers = made_answers([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]], [0, 1])
    assert predicted(answers).probability == pytest.approx([0.6, 0.6])
    assert predicted(answers).outcome.tolist() == [1.0, 0.0]


# Coverage.


def test_coverage_is_the_largest_share_with_enough_right_answers() -> None:
    confidence = np.array([0.9, 0.8, 0.7, 0.6, 0.55])
    correct = np.array([1.0, 1, 0, 1, 1])
    found = {
        wanted: once(sums.coverage(confidence, correct, wanted), np.ones(5)) for wanted in (1.0, 0.81, 0.8, 0.75, 0.5)
    }
    assert found == {1.0: 0.4, 0.81: 0.4, 0.8: 1.0, 0.75: 1.0, 0.5: 1.0}
    assert once(sums.coverage(confidence, 1 - correct, 0.9), np.ones(5)) == 0.0


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(1, 3)), min_size=1, max_size=30), SEEDS)
def test_equally_confident_answers_are_covered_together(rows: list[tuple[int, bool, int]], seed: int) -> None:
    by_confidence: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for confidence, correct, weight in rows:
        by_confidence[confidence][0] += weight
        by_confidence[confidence][1] += weight * correct
    best = kept = right = 0.0
    for _, (weight, own) in sorted(by_confidence.items(), reverse=True):
        kept, right = kept + weight, right + own
        best = max(best, kept) if right / kept >= 0.75 - 1e-12 else best
    shuffled = np.random.default_rng(seed).permutation(np.array(rows, float))
    found = once(sums.coverage(shuffled[:, 0], shuffled[:, 1], 0.75), shuffled[:, 2])
    assert found == pytest.approx(best / kept)


@pytest.mark.parametrize("name", ["accuracy", "ece", "coverage@0.9", "coverage@1", "coverage@.5", "ndcg@3", "mrr"])
def test_names_of_figures(name: str) -> None:
    assert is_figure(name)


@pytest.mark.parametrize("name", ["coverage@A", "coverage@90", "coverage", "ndcg@0", "ndcg@K", "ndcg", "precision", ""])
def test_what_is_no_name(name: str) -> None:
    assert not is_figure(name)


def test_scikit_learn_is_asked_for_what_it_has() -> None:
    answers = drawn_answers(7, classes=3)
    decided = answers.probabilities.argmax(axis=1)
    found = values(answers)
    assert found["macro_f1"] == pytest.approx(metrics.f1_score(answers.truth, decided, average="macro"))
    area = metrics.roc_auc_score(answers.truth, answers.probabilities, multi_class="ovr")
    assert found["auc"] == pytest.approx(area)
