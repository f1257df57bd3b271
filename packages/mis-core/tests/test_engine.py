"""The engine's Python face: results, errors, threads, asyncio, and compilation before readiness."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mis_core import Engine
from mis_core.errors import ConfigError, EngineUnavailable, ModelError, RequestError
from mis_kernels.backends import ANY_HEADS, choose, fastest_dtype
from mis_kernels.backends.native import library as native
from mis_kernels.target import compiling_for
from mis_testing import tiny_checkpoint
from mis_testing.bits import assert_bits_equal
from mis_testing.compilations import count_compilations
from mis_testing.options import SMALL_ENGINE
from mis_testing.tolerances import assert_scores_close

QUERY = list(range(10, 110))
ITEMS = [[1, 2, 3], [4], [], [5] * 40]
LABELS = [7, 8]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("engine") / "model")


@pytest.fixture(scope="module")
def engine(path: Path):
    with Engine.from_pretrained(path, **SMALL_ENGINE) as engine:
        yield engine


def test_a_result_has_a_row_per_item_and_a_column_per_label(engine: Engine) -> None:
    result = engine.score(QUERY, ITEMS, LABELS)
    assert result.scores.shape == (4, 2)
    assert result.scores.dtype == np.float32
    assert (result.scores >= 0).all()
    assert result.usage.prompt_tokens >= len(QUERY) + 44
    assert result.token_logprobs is None
    assert result.timings_ms["device"] > 0


def test_softmax_rows_sum_to_one_and_logprobs_match_scores(engine: Engine) -> None:
    softmax = engine.score(QUERY, ITEMS, LABELS, apply_softmax=True, return_token_logprobs=True)
    plain = engine.score(QUERY, ITEMS, LABELS)
    np.testing.assert_allclose(softmax.scores.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(np.exp(softmax.token_logprobs), plain.scores, rtol=1e-5)


def test_duplicate_labels_and_items_get_equal_scores(engine: Engine) -> None:
    scores = engine.score(QUERY, [[1, 2], [3], [1, 2]], [7, 8, 7]).scores
    assert_bits_equal(scores[:, 0], scores[:, 2])
    assert_bits_equal(scores[0], scores[2])


def test_full_vocabulary_probabilities_sum_to_one(engine: Engine) -> None:
    labels = list(range(engine.vocab_size))
    assert engine.score(QUERY, [[3]], labels).scores.sum() == pytest.approx(1, abs=1e-4)


def test_an_empty_item_is_scored_at_the_querys_last_token(engine: Engine) -> None:
    empty = engine.score(QUERY, [[]], LABELS).scores
    other_cut = engine.score(QUERY[:-1], [QUERY[-1:]], LABELS).scores
    assert_scores_close(empty, other_cut, "float32", "probability", reference="pointwise")


def test_more_items_than_a_step_and_more_pairs_than_a_head_call(engine: Engine) -> None:
    items = [[i % 300, i % 7] for i in range(2500)]
    scores = engine.score(QUERY, items, [7, 8, 9]).scores
    assert_bits_equal(scores[2100], engine.score(QUERY, [items[2100]], [7, 8, 9]).scores[0])


def test_threads_share_an_engine(engine: Engine) -> None:
    alone = [engine.score(QUERY, [[n]], LABELS).scores for n in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda n: engine.score(QUERY, [[n]], LABELS).scores, range(8)))
    assert_bits_equal(np.stack(alone), np.stack(together))


def test_asyncio_face(engine: Engine) -> None:
    async def both():
        return await asyncio.gather(*(engine.score_async(QUERY, [[n]], LABELS) for n in (1, 2)))

    first, second = asyncio.run(both())
    assert_bits_equal(first.scores, engine.score(QUERY, [[1]], LABELS).scores)
    assert second.scores.shape == (1, 2)


def test_a_refused_request_leaves_the_engine_as_it_was(engine: Engine) -> None:
    before = engine.score(QUERY, ITEMS, LABELS).scores
    with pytest.raises(RequestError) as caught:
        engine.score(QUERY, ITEMS, [engine.vocab_size])
    assert (caught.value.code, caught.value.param) == ("token_id_exceeds_vocab", "label_token_ids")
    with pytest.raises(RequestError, match="context"):
        engine.score([1] * (engine.context_length - 4), [[1], [1] * 9], LABELS)
    assert_bits_equal(engine.score(QUERY, ITEMS, LABELS).scores, before)


def test_an_item_as_long_as_the_context_allows(engine: Engine) -> None:
    item = [i % 300 for i in range(engine.context_length - len(QUERY))]
    whole = engine.score(QUERY, [item], LABELS).scores
    other_cut = engine.score(QUERY + item[:500], [item[500:]], LABELS).scores
    assert_scores_close(whole, other_cut, "float32", "probability", reference="pointwise")


def test_memory_names_what_stays_on_the_devices(engine: Engine) -> None:
    memory = engine.memory()
    names = {name.removesuffix("/tiles") for name in memory}  # of packed weights
    assert {"embedding", "layers/qkv", "layers/down", "norm", "cache/keys", "cache/values"} <= names
    cache = memory["cache/keys"]
    assert cache.bytes == 4 * np.prod(cache.shape)
    assert cache.dtype == "float32"


def test_nothing_compiles_after_warm_up(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with Engine.from_pretrained(path, **SMALL_ENGINE | {"skip_warmup": False}) as engine:
        assert re.search(r"Compiling the steps of \d+ shapes\..*Compiled in [\d.]+ s: \{", caplog.text, re.DOTALL)
        rng = np.random.default_rng(0)
        with count_compilations() as compilations:
            for _ in range(30):
                lens = rng.integers(1, 60, rng.integers(1, 80))
                items = [rng.integers(0, 300, n).tolist() for n in lens]
                query = rng.integers(0, 300, rng.integers(1, 900)).tolist()
                labels = rng.integers(0, 300, rng.integers(1, 5)).tolist()
                engine.score(query, items, labels, apply_softmax=bool(rng.integers(2)))
            engine.generate([1, 2, 3], 70, n=2, seed=1, top_p=0.5, top_k=9, frequency_penalty=0.5, logprobs=2)
        assert compilations.count == 0


@pytest.mark.full
def test_a_context_shorter_than_a_step_warms_up(path: Path) -> None:
    with Engine.from_pretrained(path, context_length=100, chunked_prefill_size=512) as engine:
        assert engine.score(QUERY[:90], [[1] * 10], LABELS).scores.shape == (1, 2)


def test_without_warm_up_steps_compile_later_and_are_counted(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with Engine.from_pretrained(path, **SMALL_ENGINE) as engine, count_compilations() as found:
        assert "Compiling the steps" not in caplog.text
        engine.score(QUERY, ITEMS, LABELS)
    assert engine.statistics()["compilations"] >= found.count > 0


def test_the_type_is_what_this_machine_multiplies_fastest(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    here = "bfloat16" if native.why_not() is None else "float32"
    with caplog.at_level("INFO"), Engine.from_pretrained(path, context_length=256, skip_warmup=True) as engine:
        assert (engine.config.dtype, engine.summary["dtype"], engine.memory()["embedding"].dtype) == (
            here,
            here,
            choose(ANY_HEADS, here).storage_dtype.name,
        )
    assert f"Loading {path.name} as {here} (" in caplog.text


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_type_that_is_asked_for_is_obeyed(path: Path, dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    options = {"dtype": dtype, "context_length": 256, "skip_warmup": True}
    with caplog.at_level("INFO"), Engine.from_pretrained(path, **options) as engine:
        assert engine.summary["dtype"] == dtype
    assert f"as {dtype} (as asked for)" in caplog.text


def test_which_type_is_fastest_follows_from_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reasons of all backends that do not fit are one message."""
    monkeypatch.setattr(native, "why_not", lambda: None)
    assert fastest_dtype() == ("bfloat16", "computed by native; tpu runs on tpu only; gpu runs on gpu only")
    monkeypatch.setattr(native, "why_not", lambda: "needs a CPU with avx512_bf16")
    dtype, reason = fastest_dtype()
    assert dtype == "float32"
    assert reason.startswith("computed by xla; ")
    assert "; native needs a CPU with avx512_bf16" in reason
    with compiling_for("v6e"):
        assert fastest_dtype() == ("bfloat16", "computed by tpu")


def test_a_closed_engine_says_so(path: Path) -> None:
    engine = Engine.from_pretrained(path, context_length=256, skip_warmup=True)
    engine.close()
    engine.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        engine.score(QUERY, ITEMS, LABELS)


def test_bad_models_and_options(path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        Engine.from_pretrained("/nowhere/at/all")
    with pytest.raises(ModelError, match="exceeds the model's"):
        Engine.from_pretrained(path, context_length=10**6)
    with pytest.raises(ConfigError, match=r"delimiter must be .* below 960, not 99999") as caught:
        Engine.from_pretrained(path, multi_item_scoring_delimiter=99999)
    assert caught.value.option == "multi_item_scoring_delimiter"
    with pytest.raises(ConfigError, match="Did you mean 'dtype'"):
        Engine.from_pretrained(path, dtypes="float32")
