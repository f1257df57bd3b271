"""Rerankers in GGUF files answer as the checkpoints that they were made of, and as transformers on PyTorch."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, softmax

from mis_core import Engine
from mis_testing import tiny_checkpoint
from mis_testing.options import SMALL_ENGINE
from mis_testing.oracle import PointwiseOracle
from mis_testing.tolerances import TINY_PROBABILITIES

pytest.importorskip("gguf", reason="needs gguf, which mis-core[gguf] brings")

from mis_testing.gguf_file import write_gguf

pytestmark = pytest.mark.parity

FLOAT32 = SMALL_ENGINE | {"dtype": "float32"}
QUERY = "which city is the capital of France?"
DOCUMENTS = ["Paris is the capital of France.", "It rains in winter.", "", "The battery lasts 12 hours. " * 4]
LABELS = {1: ("relevant",), 2: ("no", "yes"), 3: ("bad", "fair", "good")}
GRID = [
    pytest.param(family, rows, marks=() if (family, rows) == ("qwen3", 3) else pytest.mark.full)
    for family in ("qwen3", "qwen2", "llama")
    for rows in LABELS
]

OracleFactory = Callable[..., PointwiseOracle]


@pytest.mark.parametrize(("family", "rows"), GRID)
def test_a_gguf_head_matches_its_directory_and_transformers(
    tmp_path: Path, oracle_factory: OracleFactory, family: str, rows: int
) -> None:
    directory = tiny_checkpoint(tmp_path / "model", family, head_labels=LABELS[rows])
    file = write_gguf(tmp_path / "model.gguf", directory)
    inputs = np.random.default_rng(7).integers(0, 900, (4, 30)).tolist()
    values = oracle_factory(directory, "float32").head_values(inputs)
    assert values.std() > 0.5
    classes, relevance = [], []
    for path in (directory, file):
        with Engine.from_pretrained(path, progress=False, **FLOAT32) as engine:
            classes.append(engine.classify(inputs))
            ranked = [] if rows > 2 else engine.rerank(QUERY, DOCUMENTS).results
            relevance.append([score for _, score in sorted((each.index, each.relevance_score) for each in ranked)])
    assert classes[0].labels == classes[1].labels
    # RoPE's factors of Llama 3 are stored in float32; others have the same bits.
    tolerance = 1e-5 if family == "llama" else 0
    np.testing.assert_allclose(classes[1].probabilities, classes[0].probabilities, rtol=tolerance)
    np.testing.assert_allclose(*relevance, rtol=tolerance)
    probabilities = expit(values) if rows == 1 else softmax(values, axis=1)
    np.testing.assert_allclose(classes[1].probabilities, probabilities, atol=TINY_PROBABILITIES)


@pytest.mark.parametrize("is_tied", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_converted_qwen3_reranker_ranks_like_the_original(tmp_path: Path, is_tied: bool) -> None:
    directory = tiny_checkpoint(tmp_path / "Qwen3-Reranker", "qwen3", tie_word_embeddings=is_tied)
    with Engine.from_pretrained(directory, progress=False, **FLOAT32) as engine:
        wanted = engine.rerank(QUERY, DOCUMENTS)
        yes, no = (engine.tokenizer.label_id(word) for word in ("yes", "no"))
    file = write_gguf(tmp_path / "Qwen3-Reranker.gguf", directory, answers=(yes, no))
    with Engine.from_pretrained(file, progress=False, **FLOAT32) as engine:
        found = engine.rerank(QUERY, DOCUMENTS)
        answers = engine.classify(["Is it a cat?"])
    assert found.recipe == wanted.recipe == "qwen3-reranker"
    assert [each.index for each in found.results] == [each.index for each in wanted.results]
    ours, theirs = ([each.relevance_score for each in ranking.results] for ranking in (found, wanted))
    assert np.ptp(theirs) > 0.01
    np.testing.assert_allclose(ours, theirs, atol=TINY_PROBABILITIES)
    assert answers.labels[0] in ("yes", "no")
