"""Heads that label tokens have the values of transformers on PyTorch, and offsets those of its tokenizers."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.special import softmax

from mis_testing.bits import assert_bits_equal
from mis_testing.options import SMALL_ENGINE
from mis_testing.oracle import PointwiseOracle
from mis_testing.tolerances import TINY_LOGITS, TINY_PROBABILITIES

if TYPE_CHECKING:
    from mis_core import Engine

pytestmark = pytest.mark.parity

FAMILIES = ("qwen3", "qwen2", "llama", "mistral", "smollm3")
LABELS = ("O", "B-PER", "I-PER")

_random = np.random.default_rng(11)
# Of one token, shorter than a page, of several pages; the last has more rows than a step reads and takes several.
SEQUENCES: list[list[int]] = [_random.integers(0, 900, length).tolist() for length in (1, 17, 130, 700)]
TEXTS = ["Ada met Grace in Zürich.", " two  spaces", "日本語 🙂 and\nlines", "x"]


@pytest.fixture(
    params=[pytest.param(family, marks=pytest.mark.full if family != "qwen3" else ()) for family in FAMILIES]
)
def path(request: pytest.FixtureRequest, checkpoint_factory: Callable[..., Path]) -> Path:
    return checkpoint_factory(request.param, head_labels=LABELS, labels_tokens=True)


@pytest.fixture
def engine(path: Path, engine_factory: "Callable[..., Engine]") -> "Engine":
    return engine_factory(path, **SMALL_ENGINE)


def test_labels_of_tokens_are_those_of_transformers(
    path: Path, engine: "Engine", oracle_factory: Callable[..., PointwiseOracle]
) -> None:
    values = oracle_factory(path, "float32").head_values(SEQUENCES)
    assert values.std() > 0.5
    result = engine.token_classify(SEQUENCES)
    np.testing.assert_allclose(result.probabilities, softmax(values, axis=1), atol=TINY_PROBABILITIES)
    np.testing.assert_array_equal(result.best, values.argmax(1))
    plain = engine.token_classify(SEQUENCES, use_activation=False).probabilities
    np.testing.assert_allclose(plain, values, atol=TINY_LOGITS)
    again = asyncio.run(engine.token_classify_async(SEQUENCES, use_activation=False))
    assert_bits_equal(again.probabilities, plain)


def test_an_input_has_the_same_bits_alone_and_among_others(engine: "Engine") -> None:
    together = engine.token_classify(SEQUENCES, use_activation=False)
    for number, sequence in enumerate(SEQUENCES):
        alone = engine.token_classify(sequence, use_activation=False).probabilities
        assert_bits_equal(together.probabilities[together.starts[number] : together.starts[number + 1]], alone)


@pytest.mark.parametrize("special", [True, False])
def test_offsets_are_those_of_the_tokenizer(path: Path, engine: "Engine", special: bool) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(path)
    result = engine.token_classify(TEXTS, add_special_tokens=special)
    assert len(result) == len(TEXTS)
    for text, tokens in zip(TEXTS, result, strict=True):
        expected = theirs(text, add_special_tokens=special, return_offsets_mapping=True)
        assert [token.id for token in tokens] == expected["input_ids"]
        assert [(token.start, token.end) for token in tokens] == [tuple(each) for each in expected["offset_mapping"]]
        assert all(token.text == text[token.start : token.end] for token in tokens)
        assert all(token.label == LABELS[np.argmax(token.probabilities)] for token in tokens)


def test_tokens_of_ids_have_no_place(engine: "Engine") -> None:
    (tokens,) = engine.token_classify([5, 6])
    assert [(token.id, token.text, token.start, token.end) for token in tokens] == [
        (5, None, None, None),
        (6, None, None, None),
    ]
