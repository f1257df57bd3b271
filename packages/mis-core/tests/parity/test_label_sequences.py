"""Labels of several tokens have the probabilities that transformers on PyTorch gives their tokens, one by one."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mis_testing.bits import assert_bits_equal
from mis_testing.oracle import PointwiseOracle
from mis_testing.tolerances import TINY_LOGITS

if TYPE_CHECKING:
    from mis_core import Engine

pytestmark = pytest.mark.parity

QUERY = "Is it about animals, and if so, about which of them? "
ITEMS = ["A cat sleeps.", "", "Rain falls on the roof of the old house. " * 3, "no"]
LABELS = [" yes", " not at all", "a cat and a dog", " no", " yes indeed"]


def expected(engine: "Engine", oracle: PointwiseOracle, item: str) -> list[float]:
    """The chain rule on whole sequences, without anything shared."""
    tokens = engine.tokenizer.encode(QUERY + item).tolist()
    logprobs = []
    for text in LABELS:
        label = engine.tokenizer.label_ids(text)
        steps = [oracle.next_token_logprobs([*tokens, *label[:place]])[token] for place, token in enumerate(label)]
        logprobs.append(float(sum(steps)))
    return logprobs


def score(engine: "Engine", items: list[str] = ITEMS, **options: Any) -> np.ndarray:
    result = engine.score(QUERY, items, labels=LABELS, return_token_logprobs=True, **options)
    assert result.token_logprobs is not None
    return result.token_logprobs


@pytest.mark.parametrize("algorithm", ["packed", "prefill_extend", "serial"])
def test_log_probabilities_are_those_of_the_oracle(
    engine: "Engine", checkpoint: Path, oracle_factory: Callable[..., PointwiseOracle], algorithm: str
) -> None:
    lens = [len(engine.tokenizer.label_ids(text)) for text in LABELS]
    assert min(lens) == 1
    assert max(lens) > 2
    oracle = oracle_factory(checkpoint, "float32")
    logprobs = score(engine, scoring_algorithm=algorithm)
    np.testing.assert_allclose(logprobs, [expected(engine, oracle, item) for item in ITEMS], atol=TINY_LOGITS)


def test_a_label_alone_has_the_same_bits(engine: "Engine") -> None:
    together = score(engine)
    for column, label in enumerate(LABELS):
        alone = engine.score(QUERY, ITEMS, labels=[label], return_token_logprobs=True)
        assert alone.token_logprobs is not None
        assert_bits_equal(alone.token_logprobs[:, 0], together[:, column])


def test_an_item_has_the_same_bits_alone_and_among_others(engine: "Engine") -> None:
    alone = [score(engine, [item])[0] for item in ITEMS]
    with ThreadPoolExecutor(8) as pool:
        strangers = [
            pool.submit(engine.score, [number, 5, 6] * 30, [[7, number]] * 20, [1, 2, number]) for number in range(8)
        ]
        crowd = [pool.submit(score, engine, ITEMS[::-1]) for _ in range(4)]
        for logprobs in (future.result() for future in crowd):
            assert_bits_equal(np.array(logprobs[::-1]), np.array(alone))
        for stranger in strangers:
            stranger.result()


def test_an_item_that_is_wrong_takes_nothing_from_the_others(engine: "Engine") -> None:
    mixed = [ITEMS[0], 7, ITEMS[2], "long " * 9000, ITEMS[3]]
    options: dict[str, Any] = {"labels": LABELS, "on_error": "item", "return_token_logprobs": True}
    result = asyncio.run(engine.score_async(QUERY, mixed, **options))  # `score` says that items are texts
    assert result.token_logprobs is not None
    assert [(error.index, error.code) for error in result.errors] == [
        (1, "invalid_items_type"),
        (3, "context_length_exceeded"),
    ]
    assert_bits_equal(result.token_logprobs[[0, 2, 4]], score(engine)[[0, 2, 3]])
    ids = engine.score([1, 2], [[3], [-1], [4]], [[5], [6], [7, 8]], on_error="item")
    alone = engine.score([1, 2], [[3], [4]], [[5], [7, 8]])
    assert_bits_equal(ids.scores[[0, 2]], alone.scores)
