"""Classification heads have the values of transformers on PyTorch, at the end of each whole sequence."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.special import expit, log_expit, log_softmax, softmax

from mis_testing.bits import assert_bits_equal
from mis_testing.options import SMALL_ENGINE
from mis_testing.oracle import PointwiseOracle
from mis_testing.tolerances import TINY_LOGITS, TINY_PROBABILITIES

if TYPE_CHECKING:
    from mis_core import Engine

pytestmark = pytest.mark.parity

PER_COMMIT = {("qwen3", 1), ("qwen3", 3)}
LABELS = {1: ("relevant",), 3: ("bad", "fair", "good")}

_random = np.random.default_rng(7)
QUERY: list[int] = _random.integers(0, 900, 90).tolist()
ITEMS: list[list[int]] = [_random.integers(0, 900, length).tolist() for length in (5, 1, 0, 17, 3, 110, 4)]
SEQUENCES = [[*QUERY, *item] for item in ITEMS]

Model = tuple["Engine", PointwiseOracle]


@pytest.fixture(
    params=[
        pytest.param(
            (family, rows), marks=() if (family, rows) in PER_COMMIT else pytest.mark.full, id=f"{family}-{rows}"
        )
        for family in ("qwen3", "qwen2", "llama", "gemma2", "gemma3")
        for rows in (1, 3)
    ]
)
def model(
    request: pytest.FixtureRequest,
    checkpoint_factory: Callable[..., Path],
    engine_factory: "Callable[..., Engine]",
    oracle_factory: Callable[..., PointwiseOracle],
) -> Model:
    family, rows = request.param
    path = checkpoint_factory(family, head_labels=LABELS[rows])
    engine = engine_factory(path, **SMALL_ENGINE)
    return engine, oracle_factory(path, "float32")


def test_scores_are_probabilities_of_the_heads_rows(model: Model) -> None:
    engine, oracle = model
    values = oracle.head_values(SEQUENCES)
    rows = values.shape[1]
    assert values.std() > 0.5
    result = engine.score(QUERY, ITEMS, return_token_logprobs=True)
    assert result.token_logprobs is not None
    probabilities, logprobs = (
        (expit(values), log_expit(values)) if rows == 1 else (softmax(values, axis=1), log_softmax(values, axis=1))
    )
    np.testing.assert_allclose(result.scores, probabilities, atol=TINY_PROBABILITIES)
    np.testing.assert_allclose(result.token_logprobs, logprobs, atol=TINY_LOGITS)
    named = engine.score(QUERY, ITEMS, labels=list(LABELS[rows][::-1]))
    assert_bits_equal(named.scores, np.ascontiguousarray(result.scores[:, ::-1]))


@pytest.mark.parametrize("apply_softmax", [False, True])
def test_an_item_has_the_same_bits_alone_and_among_others(model: Model, apply_softmax: bool) -> None:
    engine, _ = model
    together = engine.score(QUERY, ITEMS, apply_softmax=apply_softmax).scores
    for item, scores in zip(ITEMS, together, strict=True):
        assert_bits_equal(engine.score(QUERY, [item], apply_softmax=apply_softmax).scores[0], scores)


def test_classes_are_those_of_the_head(model: Model) -> None:
    engine, oracle = model
    values = oracle.head_values(SEQUENCES)
    rows = values.shape[1]
    result = engine.classify(SEQUENCES)
    expected = expit(values) if rows == 1 else softmax(values, axis=1)
    np.testing.assert_allclose(result.probabilities, expected, atol=TINY_PROBABILITIES)
    assert result.labels == tuple(LABELS[rows][row] for row in values.argmax(1))
    assert_bits_equal(asyncio.run(engine.classify_async(SEQUENCES)).probabilities, result.probabilities)
    plain = engine.classify(SEQUENCES, use_activation=False).probabilities
    np.testing.assert_allclose(plain, values, atol=TINY_LOGITS)
    for sequence, alone in zip(SEQUENCES, plain, strict=True):
        assert_bits_equal(engine.classify(sequence, use_activation=False).probabilities[0], alone)
