"""Every layout gives the scores of pointwise scoring; and the same comparison fails when something is wrong."""

from collections.abc import Iterator

import numpy as np
import pytest

from mis_core import Engine
from mis_core.errors import RequestError
from mis_testing import tiny_checkpoint
from mis_testing.bits import assert_bits_equal
from mis_testing.options import SMALL_ENGINE
from mis_testing.oracle import PointwiseOracle
from mis_testing.tolerances import assert_scores_close

_random = np.random.default_rng(11)
QUERY: list[int] = _random.integers(1, 900, 700).tolist()
ITEMS: list[list[int]] = [_random.integers(1, 900, n).tolist() for n in (20, 1, 0, 5, 64, 256, 257, 600, 20, 33)]
LABELS = [271, 269, 276, 5]
LAYOUTS = {
    "serial": {"scoring_algorithm": "serial"},
    "packed": {"scoring_algorithm": "packed"},
    "packed dense": {"scoring_algorithm": "packed", "mask_impl": "dense"},
    "prefill_extend": {"scoring_algorithm": "prefill_extend"},
    "auto": {},
    "chunks of 1": {"multi_item_scoring_chunk_size": 1},
    "chunks of 4": {"scoring_algorithm": "packed", "multi_item_scoring_chunk_size": 4},
}
DELIMITER = 0  # a legal id


FULL = pytest.mark.full
OTHERS = ("qwen3-bfloat16", "qwen2-float32", "llama-float32", "mistral-float32", "smollm3-float32")
MODELS = {"qwen3-float32": (), **dict.fromkeys(OTHERS, FULL)}


@pytest.fixture(scope="module", params=[pytest.param(model, marks=marks) for model, marks in MODELS.items()])
def case(request, tmp_path_factory) -> Iterator[tuple[Engine, PointwiseOracle, str]]:
    family, dtype = request.param.split("-")
    path = tiny_checkpoint(tmp_path_factory.mktemp("algorithms") / family, family=family)
    with Engine.from_pretrained(path, **SMALL_ENGINE | {"dtype": dtype}) as engine:
        yield engine, PointwiseOracle(path, dtype), dtype


@pytest.fixture(scope="module")
def serial(case) -> np.ndarray:
    return case[0].score(QUERY, ITEMS, LABELS, apply_softmax=True, scoring_algorithm="serial").scores


@pytest.fixture(scope="module")
def expected(case) -> np.ndarray:
    return case[1].score([QUERY + item for item in ITEMS], LABELS, apply_softmax=True)


@pytest.mark.parametrize(
    "layout", [pytest.param(layout, marks=FULL if layout == "chunks of 1" else ()) for layout in LAYOUTS]
)
def test_each_layout_agrees_with_pointwise_scoring(case, layout: str, serial: np.ndarray, expected: np.ndarray) -> None:
    engine, _, dtype = case
    found = engine.score(QUERY, ITEMS, LABELS, apply_softmax=True, **LAYOUTS[layout])
    assert_scores_close(found.scores, serial, dtype, reference="pointwise")
    assert_scores_close(found.scores, expected, dtype)
    if layout != "auto":
        assert found.algorithm.startswith(LAYOUTS[layout].get("scoring_algorithm", ""))


def test_two_swapped_items_fail_the_comparison(case, serial: np.ndarray) -> None:
    engine, _, dtype = case
    swapped = [ITEMS[1], ITEMS[0], *ITEMS[2:]]
    found = engine.score(QUERY, swapped, LABELS, apply_softmax=True, scoring_algorithm="packed").scores
    with pytest.raises(AssertionError, match="differ by more"):
        assert_scores_close(found, serial, dtype, reference="pointwise")


def test_a_lost_query_token_fails_the_comparison(case, serial: np.ndarray) -> None:
    engine, _, dtype = case
    found = engine.score(QUERY[:-1], ITEMS, LABELS, apply_softmax=True).scores
    with pytest.raises(AssertionError, match="differ by more"):
        assert_scores_close(found, serial, dtype, reference="pointwise")


def test_duplicate_items_have_the_bits_of_one(case) -> None:
    engine, _, _ = case
    scores = engine.score(QUERY, [ITEMS[0], ITEMS[4], ITEMS[0]], LABELS).scores
    assert_bits_equal(scores[0], scores[2])
    assert_bits_equal(scores[:1], engine.score(QUERY, [ITEMS[0]], LABELS).scores)


@pytest.fixture(scope="module")
def delimited(tmp_path_factory) -> Iterator[tuple[Engine, PointwiseOracle]]:
    path = tiny_checkpoint(tmp_path_factory.mktemp("delimiter") / "model")
    with Engine.from_pretrained(path, multi_item_scoring_delimiter=DELIMITER, **SMALL_ENGINE) as engine:
        yield engine, PointwiseOracle(path)


class TestDelimiter:
    """`query + delimiter + item`, with a delimiter that is id 0."""

    @pytest.mark.parametrize(
        "layout", ["packed", *(pytest.param(each, marks=FULL) for each in ("packed dense", "prefill_extend", "serial"))]
    )
    def test_scores_are_those_of_query_delimiter_item(self, delimited, layout: str) -> None:
        engine, oracle = delimited
        expected = oracle.score([[*QUERY, DELIMITER, *item] for item in ITEMS], LABELS, apply_softmax=True)
        found = engine.score(QUERY, ITEMS, LABELS, apply_softmax=True, **LAYOUTS[layout])
        assert_scores_close(found.scores, expected, "float32")
        assert found.usage.prompt_tokens == len(QUERY) + 1 + sum(map(len, ITEMS))

    def test_item_first(self, delimited) -> None:
        engine, oracle = delimited
        expected = oracle.score([[*item, DELIMITER, *QUERY] for item in ITEMS], LABELS, apply_softmax=True)
        found = engine.score(QUERY, ITEMS, LABELS, apply_softmax=True, item_first=True)
        assert_scores_close(found.scores, expected, "float32")

    def test_text(self, delimited) -> None:
        engine, oracle = delimited
        query, items = "Does the document answer?", [" yes it does", "", "no"]

        def ids(text: str) -> list[int]:
            return engine.tokenizer.encode(text).tolist()

        sequences = [[*ids(query), DELIMITER, *ids(item)] for item in items]
        found = engine.score(query, items, LABELS, apply_softmax=True)
        assert_scores_close(found.scores, oracle.score(sequences, LABELS, apply_softmax=True), "float32")

    @pytest.mark.parametrize(
        ("query", "items", "param"), [([1, DELIMITER], [[2]], "query"), ([1], [[2], [3, DELIMITER]], "items")]
    )
    def test_a_delimiter_in_the_input_is_refused(self, delimited, query, items, param) -> None:
        with pytest.raises(RequestError) as caught:
            delimited[0].score(query, items, LABELS)
        assert (caught.value.code, caught.value.param) == ("delimiter_in_input", param)
