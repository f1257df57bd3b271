"""Answers drawn from a seed, for tests of figures."""

from collections.abc import Sequence

import numpy as np

from mis_bench.evaluate.answers import Answers, RowAnswer


def drawn_answers(
    seed: int, rows: int = 300, classes: int = 2, *, weighted: bool = False, digits: int | None = None
) -> Answers:
    """Answers that are right more often than not; with few digits many are equal."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(classes, size=rows)
    logits = rng.normal(size=(rows, classes)) + 1.2 * np.eye(classes)[truth]
    each = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    if digits is not None:
        each = np.maximum(np.round(each, digits), 10.0**-digits)
    weights = rng.choice([0.5, 1.0, 2.0], rows) if weighted else np.ones(rows)
    return made_answers(each, truth, weights)


def made_answers(
    probabilities: Sequence[Sequence[float]] | np.ndarray,
    truth: Sequence[int] | np.ndarray,
    weights: Sequence[float] | np.ndarray | None = None,
    names: Sequence[str] | None = None,
) -> Answers:
    """Answers to one question, each of a row and a cluster of its own."""
    probabilities = np.asarray(probabilities, np.float64)
    rows, classes = probabilities.shape
    named = tuple(names or map(str, range(classes)))
    found = [
        RowAnswer(row, ("", tuple(sorted(named))), named, each.tolist(), int(right), True, None)
        for row, (each, right) in enumerate(zip(probabilities, truth, strict=True))
    ]
    weights = np.ones(rows) if weights is None else np.asarray(weights, np.float64)
    return Answers.of(found, weights, np.arange(rows))
