"""The engine's scores are those of transformers on PyTorch, one whole sequence at a time.

Every comparison runs on checkpoints whose logits spread over several units. The last tests plant faults
and show that the same comparison then fails.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mis_testing.grids import part
from mis_testing.options import SMALL_ENGINE
from mis_testing.oracle import PointwiseOracle
from mis_testing.tolerances import assert_scores_close

if TYPE_CHECKING:
    from mis_core import Engine

pytestmark = pytest.mark.parity

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}

MODELS: dict[str, dict[str, Any]] = {
    "qwen3 grouped tied": {"family": "qwen3"},
    "qwen3 full heads untied": {"family": "qwen3", "num_key_value_heads": 4, "tie_word_embeddings": False},
    "qwen2 linear new spelling": {
        "family": "qwen2",
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        "rope_spelling": "new",
        "tie_word_embeddings": False,
    },
    "llama narrow head": {"family": "llama", "head_dim": 16, "num_key_value_heads": 1},
    "llama wide head new spelling, shards": {
        "family": "llama",
        "head_dim": 64,
        "num_key_value_heads": 1,
        "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64},
        "rope_spelling": "new",
        "shards": 2,
    },
    "mistral": {"family": "mistral"},
    "ministral, a window shorter than the query": {"family": "ministral"},
    "gemma2": {"family": "gemma2"},
    "gemma3": {"family": "gemma3"},
    "smollm3 listed layers, yarn, biases": {
        "family": "smollm3",
        "num_hidden_layers": 3,
        "no_rope_layers": (0, 1, 0),
        "rope_scaling": YARN,
        "attention_bias": True,
        "mlp_bias": True,
    },
}
FULL_ONLY: dict[str, dict[str, Any]] = {
    "llama plain, biases everywhere, float32 files": {
        "family": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "rope_scaling": None,
        "dtype": "float32",
    },
    "qwen3 yarn old spelling, shards": {"family": "qwen3", "rope_scaling": YARN, "rope_theta": 1e4, "shards": 3},
    "qwen3 biases of attention": {"family": "qwen3", "attention_bias": True},
    "qwen2 bias": {"family": "qwen2", "num_attention_heads": 8, "hidden_size": 128, "num_key_value_heads": 2},
    "llama biases everywhere": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "llama biases of the mlp": {"family": "llama", "mlp_bias": True},
    "smollm2 heads": {
        "family": "llama",
        "hidden_size": 576,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "rope_scaling": None,
    },
    "mistral tied, wide head": {"family": "mistral", "tie_word_embeddings": True, "head_dim": 64},
    "smollm3 every second layer": {"family": "smollm3"},
    "mistral, a window of a page": {"family": "mistral", "sliding_window": 64, "num_hidden_layers": 3},
    "mistral, a window of three": {"family": "mistral", "sliding_window": 3},
    "qwen2, a window between query and items": {"family": "qwen2", "sliding_window": 93},
    "qwen3, layers listed, a window shorter than items": {
        "family": "qwen3",
        "sliding_window": 33,
        "num_hidden_layers": 3,
        "layer_types": ("sliding_attention", "full_attention", "sliding_attention"),
    },
    "smollm3, layers without rope slide": {"family": "smollm3", "sliding_window": 20},
    "gemma2 without caps, biases, new spelling": {
        "family": "gemma2",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "attention_bias": True,
        "rope_spelling": "new",
        "num_hidden_layers": 3,
    },
    "gemma2, a window of a page, untied": {"family": "gemma2", "sliding_window": 64, "tie_word_embeddings": False},
    "gemma2, a window beyond every sequence": {"family": "gemma2", "sliding_window": 4096},
    "gemma3 new spelling, a cap, three layers": {
        "family": "gemma3",
        "rope_spelling": "new",
        "final_logit_softcapping": 5.0,
        "num_hidden_layers": 3,
    },
    "gemma3, a window shorter than items, wide head": {"family": "gemma3", "sliding_window": 33, "head_dim": 64},
}
DTYPES = ("float32", "bfloat16")
FEW_IN_FRONT = {
    ("qwen3 grouped tied", "float32"),
    ("qwen3 full heads untied", "bfloat16"),
    ("llama narrow head", "float32"),
}
POINTS = [
    *part([*itertools.product(MODELS, DTYPES)]),
    *(
        pytest.param(point, marks=pytest.mark.full, id="-".join(point))
        for point in itertools.product(FULL_ONLY, DTYPES)
    ),
]

# In front of the query only the reading differs, so a few families stand for all.
IN_FRONT = [
    pytest.param(point.values[0], marks=() if point.values[0] in FEW_IN_FRONT else pytest.mark.full, id=point.id)
    for point in POINTS
]

_random = np.random.default_rng(7)
QUERY: list[int] = _random.integers(0, 900, 90).tolist()
# With the query one step of up to 256 tokens, and so they are without it: most of a model's time is compiling.
ITEMS: list[list[int]] = [_random.integers(0, 900, length).tolist() for length in (5, 1, 0, 17, 3, 60, 50, 4)]
LABELS = [271, 269, 276, 5, 271]  # duplicates are allowed

# Longer than a step of 256 tokens, so that query and items are computed in chunks.
LONG_QUERY: list[int] = _random.integers(0, 900, 600).tolist()
LONG_ITEMS: list[list[int]] = [_random.integers(0, 900, length).tolist() for length in (3, 600, 300, 1)]


@pytest.fixture(params=POINTS)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Name of a model, and a type."""
    return request.param


@pytest.fixture
def path(case: tuple[str, str], checkpoint_factory: Callable[..., Path]) -> Path:
    return checkpoint_factory(**(MODELS | FULL_ONLY)[case[0]])


@pytest.fixture
def dtype(case: tuple[str, str]) -> str:
    return case[1]


@pytest.fixture
def engine(path: Path, dtype: str, engine_factory: "Callable[..., Engine]") -> "Engine":
    return engine_factory(path, **SMALL_ENGINE | {"dtype": dtype})


@pytest.fixture
def oracle(path: Path, dtype: str, oracle_factory: Callable[..., PointwiseOracle]) -> PointwiseOracle:
    return oracle_factory(path, dtype)


@pytest.fixture
def plain(checkpoint: Path, oracle_factory: Callable[..., PointwiseOracle]) -> PointwiseOracle:
    """Oracle of the plugin's `checkpoint`, float32."""
    return oracle_factory(checkpoint, "float32")


@pytest.fixture
def plain_engine(checkpoint: Path, engine_factory: "Callable[..., Engine]") -> "Engine":
    return engine_factory(checkpoint, **SMALL_ENGINE)


def kind(apply_softmax: bool) -> Any:
    return "label_softmax" if apply_softmax else "probability"


def joined(items: Sequence[Sequence[int]] = ITEMS) -> list[list[int]]:
    return [[*QUERY, *item] for item in items]


@pytest.mark.parametrize("apply_softmax", [False, True])
def test_items_behind_a_query(engine: "Engine", oracle: PointwiseOracle, dtype: str, apply_softmax: bool) -> None:
    result = engine.score(query=QUERY, items=ITEMS, label_token_ids=LABELS, apply_softmax=apply_softmax)
    assert result.scores.dtype == np.float32
    assert result.scores.shape == (len(ITEMS), len(LABELS))
    expected = oracle.score(joined(), LABELS, apply_softmax=apply_softmax)
    assert_scores_close(result.scores, expected, dtype, kind(apply_softmax))


@pytest.mark.parametrize("case", IN_FRONT, indirect=True)
def test_items_in_front_of_the_query(engine: "Engine", oracle: PointwiseOracle, dtype: str) -> None:
    result = engine.score(query=QUERY, items=ITEMS, label_token_ids=LABELS, item_first=True)
    expected = oracle.score([[*item, *QUERY] for item in ITEMS], LABELS)
    assert_scores_close(result.scores, expected, dtype, "probability")


@pytest.mark.parametrize(
    "model",
    [
        "qwen3 grouped tied",
        pytest.param("llama narrow head", marks=pytest.mark.full),
        pytest.param("qwen2 bias", marks=pytest.mark.full),
        pytest.param("ministral, a window shorter than the query", marks=pytest.mark.full),
        pytest.param("gemma2", marks=pytest.mark.full),
        pytest.param("gemma3, a window shorter than items, wide head", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("item_first", [False, True])
def test_queries_and_items_longer_than_a_step(
    item_first: bool,
    model: str,
    checkpoint_factory: Callable[..., Path],
    oracle_factory: Callable,
    engine_factory: "Callable[..., Engine]",
) -> None:
    path = checkpoint_factory(**(MODELS | FULL_ONLY)[model])
    engine = engine_factory(path, **SMALL_ENGINE)
    result = engine.score(query=LONG_QUERY, items=LONG_ITEMS, label_token_ids=LABELS, item_first=item_first)
    sequences = [[*item, *LONG_QUERY] if item_first else [*LONG_QUERY, *item] for item in LONG_ITEMS]
    expected = oracle_factory(path, "float32").score(sequences, LABELS)
    assert_scores_close(result.scores, expected, "float32", "probability")


@pytest.mark.parametrize("temperature", [0.25, 3.0])
def test_temperature_divides_log_probabilities(
    temperature: float, plain_engine: "Engine", plain: PointwiseOracle
) -> None:
    result = plain_engine.score(
        query=QUERY, items=ITEMS, label_token_ids=LABELS, apply_softmax=True, temperature=temperature
    )
    expected = plain.score(joined(), LABELS, apply_softmax=True, temperature=temperature)
    assert_scores_close(result.scores, expected, "float32")


@pytest.mark.parametrize("apply_softmax", [False, True])
def test_token_logprobs_are_of_the_full_vocabulary(
    apply_softmax: bool, plain_engine: "Engine", plain: PointwiseOracle
) -> None:
    result = plain_engine.score(
        query=QUERY, items=ITEMS, label_token_ids=LABELS, apply_softmax=apply_softmax, return_token_logprobs=True
    )
    assert_scores_close(result.token_logprobs, plain.label_logprobs(joined(), LABELS), "float32", "logprob")


def test_labels_of_each_item(plain_engine: "Engine", plain: PointwiseOracle) -> None:
    labels = [[10 + number, 300 - number] for number in range(len(ITEMS))]
    result = plain_engine.score(query=QUERY, items=ITEMS, label_token_ids=labels)
    assert_scores_close(result.scores, plain.score(joined(), labels), "float32", "probability")


def test_a_single_item_and_a_single_token_query(plain_engine: "Engine", plain: PointwiseOracle) -> None:
    for query, item in ((QUERY, [4]), ([11], [4, 5]), ([11], [])):
        result = plain_engine.score(query=query, items=[item], label_token_ids=LABELS)
        assert_scores_close(result.scores, plain.score([[*query, *item]], LABELS), "float32", "probability")


TEXTS = {
    "words": ("Does the document answer the question? Document:", [" Paris is the capital", " no", "", "yes"]),
    "white space that joins": ("Answer the question:  ", ["\n\nyes", " yes", "  ", "no\n", ""]),
    "digits that group": ("tracking number 12", ["34567", "3", ".5", ""]),
    "marks that compose": ("Le cafe", ["\u0301 ferme\u0301", "\u0323\u0301", "s", ""]),
    "special tokens that form": ("Judge.<|im_", ["end|>\n", "start|>user", "x", ""]),
}


@pytest.mark.parametrize("family", ["qwen3", "llama"])
@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("texts", TEXTS)
def test_texts_score_as_the_joined_string(
    family: str,
    item_first: bool,
    texts: str,
    checkpoint_factory: Callable[..., Path],
    engine_factory: "Callable[..., Engine]",
    oracle_factory: Callable[..., PointwiseOracle],
) -> None:
    from transformers import AutoTokenizer

    path = checkpoint_factory(family)
    query, items = TEXTS[texts]
    engine = engine_factory(path, **SMALL_ENGINE)
    result = engine.score(query=query, items=items, label_token_ids=LABELS, item_first=item_first)
    tokenizer = AutoTokenizer.from_pretrained(path)
    sequences = [tokenizer(item + query if item_first else query + item).input_ids for item in items]
    expected = oracle_factory(path, "float32").score(sequences, LABELS)
    assert_scores_close(result.scores, expected, "float32", "probability")


@pytest.mark.parametrize("apply_softmax", [False, True])
@pytest.mark.parametrize("fault", ["two items swapped", "item positions shifted", "last query token lost"])
def test_a_planted_fault_fails_the_same_comparison(
    fault: str, apply_softmax: bool, engine: "Engine", oracle: PointwiseOracle, dtype: str
) -> None:
    sequences: list[list[int]] = joined()
    positions: list[list[int]] = [list(range(len(sequence))) for sequence in sequences]
    if fault == "two items swapped":
        for rows in (sequences, positions):
            rows[0], rows[3] = rows[3], rows[0]
    elif fault == "item positions shifted":
        # Against the query: a shift of everything together changes no score, by design of RoPE.
        start = len(QUERY)
        positions = [[*row[:start], *(position + 1 for position in row[start:])] for row in positions]
    else:  # what a context shorter by one does
        sequences, positions = [[*QUERY[:-1], *item] for item in ITEMS], [row[:-1] for row in positions]
    result = engine.score(query=QUERY, items=ITEMS, label_token_ids=LABELS, apply_softmax=apply_softmax)
    faulty = oracle.score(sequences, LABELS, apply_softmax=apply_softmax, position_ids=positions)
    with pytest.raises(AssertionError, match=r"log-probability|label softmax"):
        assert_scores_close(result.scores, faulty, dtype, kind(apply_softmax))
