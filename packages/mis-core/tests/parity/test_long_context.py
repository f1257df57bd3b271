"""Contexts that RoPE scaling makes longer than `max_position_embeddings`, as model cards ask for."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mis_core.errors import ModelError
from mis_testing.options import SMALL_ENGINE
from mis_testing.oracle import PointwiseOracle
from mis_testing.tolerances import assert_scores_close

if TYPE_CHECKING:
    from mis_core import Engine

pytestmark = pytest.mark.parity

# As the cards write them, at a hundredth of their size: the model, its context, what is added, and the longest context.
CARDS: dict[str, tuple[str, int, dict[str, Any], int]] = {
    # https://huggingface.co/Qwen/Qwen3-8B: 40960 positions, 131072 by YaRN
    "Qwen3": ("qwen3", 400, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 320}, 1280),
    # https://huggingface.co/Qwen/Qwen2.5-7B-Instruct: 32768 positions, 131072 by YaRN
    "Qwen2.5": ("qwen2", 320, {"factor": 4.0, "original_max_position_embeddings": 320, "type": "yarn"}, 1280),
    # https://huggingface.co/HuggingFaceTB/SmolLM3-3B: 65536 positions, twice as many by YaRN
    "SmolLM3": ("smollm3", 650, {"factor": 2.0, "original_max_position_embeddings": 650, "type": "yarn"}, 1300),
    # https://huggingface.co/lmsys/vicuna-7b-v1.5-16k: 4096 positions, 16384 by linear scaling
    "Vicuna": ("llama", 320, {"factor": 4.0, "type": "linear"}, 1280),
}
CASES = [pytest.param(name, marks=() if name == "Qwen3" else pytest.mark.full) for name in CARDS]
LABELS = [271, 269, 276, 5]

_random = np.random.default_rng(11)
QUERY: list[int] = _random.integers(0, 900, 1200).tolist()
ITEMS: list[list[int]] = [_random.integers(0, 900, length).tolist() for length in (80, 3, 0)]


@pytest.mark.parametrize("name", CASES)
def test_scores_of_scaled_contexts_match_transformers(
    name: str,
    checkpoint_factory: Callable[..., Path],
    oracle_factory: Callable[..., PointwiseOracle],
    engine_factory: "Callable[..., Engine]",
) -> None:
    family, positions, scaling, longest = CARDS[name]
    path = checkpoint_factory(family, max_position_embeddings=positions, rope_scaling=scaling)
    engine = engine_factory(path, **SMALL_ENGINE, context_length=longest)
    result = engine.score(query=QUERY, items=ITEMS, label_token_ids=LABELS)
    expected = oracle_factory(path, "float32").score([[*QUERY, *item] for item in ITEMS], LABELS)
    assert_scores_close(result.scores, expected, "float32", "probability")


@pytest.mark.parametrize("name", ["Qwen3", "Vicuna"])
def test_a_context_is_that_of_the_model_unless_it_is_asked_for(
    name: str, checkpoint_factory: Callable[..., Path], engine_factory: "Callable[..., Engine]"
) -> None:
    family, positions, scaling, longest = CARDS[name]
    path = checkpoint_factory(family, max_position_embeddings=positions, rope_scaling=scaling)
    assert engine_factory(path, **SMALL_ENGINE).context_length == positions
    with pytest.raises(ModelError, match=f"context_length {longest + 1} exceeds the model's {longest} positions"):
        engine_factory(path, **SMALL_ENGINE, context_length=longest + 1)


def test_without_scaling_no_longer_context_is_to_be_had(
    checkpoint_factory: Callable[..., Path], engine_factory: "Callable[..., Engine]"
) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    for rope in (None, scaling | {"original_max_position_embeddings": 300}):
        path = checkpoint_factory("llama", max_position_embeddings=400, rope_scaling=rope)
        with pytest.raises(ModelError, match="context_length 401 exceeds the model's 400 positions"):
            engine_factory(path, **SMALL_ENGINE, context_length=401)
