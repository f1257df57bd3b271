"""What is read at rows of a step: log-probabilities of prompts, the most probable tokens, and drawn tokens."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy import stats

from mis_core import Engine
from mis_core.requests import EngineOutput, Layout, Sampling, ScoreRequest
from mis_core.tasks.probabilities import normalised
from mis_testing import tiny_checkpoint
from mis_testing.bits import assert_bits_equal
from mis_testing.options import SMALL_ENGINE
from mis_testing.tolerances import TINY_LOGITS

VOCAB = 300


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    return str(tiny_checkpoint(tmp_path_factory.mktemp("reads") / "qwen3", family="qwen3"))


@pytest.fixture(scope="module")
def engine(checkpoint) -> Iterator[Engine]:
    with (
        pytest.MonkeyPatch.context() as patch,
        Engine.from_pretrained(checkpoint, progress=False, **SMALL_ENGINE) as engine,
    ):
        # Heads go through the vocabulary in chunks, the last of which reaches back.
        patch.setattr(type(engine._loop._runner._backend), "vocab_chunk", 256)
        yield engine
        engine.check()


@pytest.fixture(scope="module")
def reference(checkpoint):
    """Log-probabilities after every token of a sequence, `[tokens, vocab]`, of transformers on PyTorch."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    def logprobs(ids: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor(ids[None], dtype=torch.long)).logits[0], -1).numpy()

    return logprobs


def ids(seed: int, length: int) -> np.ndarray:
    return np.random.default_rng((seed, length)).integers(0, VOCAB, length).astype(np.int32)


def request_of(query: np.ndarray, items: list[np.ndarray], **fields) -> ScoreRequest:
    fields = {"label_ids": np.zeros((1, 0), np.int32), **fields}
    return ScoreRequest(
        query=query,
        item_tokens=np.concatenate(items).astype(np.int32),
        item_starts=np.cumsum([0, *map(len, items)]).astype(np.int32),
        context_lens=np.full(len(items), len(query), np.int32),
        **fields,
    )


def prompt(query: np.ndarray, items: list[np.ndarray], **fields) -> ScoreRequest:
    """Read every row; its label is the token that follows, and token 0 after the last."""
    following = [np.append(query[1:], items[0][0])] if len(query) else []
    following += [np.append(item[1:], 0) for item in items]
    return request_of(
        query,
        items,
        label_ids=np.concatenate(following)[:, None].astype(np.int32),
        read_lens=np.array([len(item) for item in items], np.int32),
        query_reads=len(query),
        **fields,
    )


def run(engine: Engine, *requests: ScoreRequest) -> list[EngineOutput]:
    futures = [engine.submit(request) for request in requests]
    return [future.result(timeout=300) for future in futures]


def rows_of(reference, request: ScoreRequest) -> np.ndarray:
    """Return the reference's log-probabilities at the rows that are read, `[rows, vocab]`."""
    rows = [reference(request.query)[len(request.query) - request.query_reads :]] if request.query_reads else []
    for item, (start, end) in enumerate(zip(request.item_starts[:-1], request.item_starts[1:], strict=True)):
        whole = np.concatenate([request.query[: request.context_lens[item]], request.item_tokens[start:end]])
        count = 1 if request.read_lens is None else request.read_lens[item]
        rows.append(reference(whole)[-count:])
    return np.concatenate(rows)


PROMPTS = {
    "short": ([], [20]),
    "longer than a step": ([], [900]),
    "behind a shared query": (ids(1, 333), [20, 1, 300, 64]),
    "a query longer than a step": (ids(2, 700), [5]),
}


@pytest.mark.parametrize("algorithm", ["auto", "serial", "packed"])
@pytest.mark.parametrize("name", PROMPTS)
def test_logprobs_of_prompt_tokens_match_transformers(engine, reference, name, algorithm) -> None:
    query, lengths = PROMPTS[name]
    request = prompt(np.array(query, np.int32), [ids(3, n) for n in lengths], layout=Layout(algorithm))
    for _ in range(2):  # what is cached changes nothing
        (output,) = run(engine, request)
        expected = np.take_along_axis(rows_of(reference, request), request.label_ids, 1)
        assert output.log_sum_exp is not None
        np.testing.assert_allclose(normalised(output.logits, output.log_sum_exp), expected, atol=TINY_LOGITS)
        assert output.cached_tokens == 0


def test_the_most_probable_tokens_are_those_of_transformers(engine, reference) -> None:
    request = prompt(ids(1, 100), [ids(2, 30), ids(3, 300)], top_tokens=20)
    (output,) = run(engine, request)
    assert output.top_ids is not None
    expected = rows_of(reference, request)
    found = normalised(output.top_logits, output.log_sum_exp)
    np.testing.assert_allclose(found, np.take_along_axis(expected, output.top_ids, 1), atol=TINY_LOGITS)
    np.testing.assert_allclose(found, -np.sort(-expected)[:, :20], atol=TINY_LOGITS)
    assert (np.diff(output.top_logits, axis=1) <= 0).all()
    (fewer,) = run(engine, dataclasses.replace(request, top_tokens=3))
    assert_bits_equal(fewer.top_ids, output.top_ids[:, :3])


def test_a_label_of_several_tokens_sums_their_logprobs(engine, reference) -> None:
    query, label = ids(1, 100), ids(7, 3)
    item = np.concatenate([ids(2, 30), label[:-1]])
    request = request_of(query, [item], label_ids=label[:, None], read_lens=np.array([3], np.int32), query_reads=0)
    (output,) = run(engine, request)
    whole = reference(np.concatenate([query, item]))[-3:]
    expected = whole[np.arange(3), label].sum()
    assert abs(float(normalised(output.logits, output.log_sum_exp).sum()) - expected) < 3e-4


def sampled(items: list[np.ndarray], keys: np.ndarray, query: np.ndarray | None = None, **how) -> ScoreRequest:
    return request_of(ids(5, 40) if query is None else query, items, sampling=Sampling(keys.astype(np.int32), **how))


def keys_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**31), 2**31, (count, 2)).astype(np.int32)


def test_greedy_is_the_most_probable_token(engine) -> None:
    items = [ids(n, n) for n in range(1, 100)]
    request = dataclasses.replace(sampled(items, keys_of(99), temperature=0.0), top_tokens=1)
    (output,) = run(engine, request)
    np.testing.assert_array_equal(output.next_ids, output.top_ids[:, 0])
    np.testing.assert_allclose(output.next_logits, output.top_logits[:, 0], atol=1e-5)


def test_the_same_key_draws_the_same_token(engine) -> None:
    items = [ids(1, 9)] * 40
    keys = np.concatenate([keys_of(1).repeat(20, 0), keys_of(20)])
    one, again = run(engine, sampled(items, keys), sampled(items, keys))
    assert_bits_equal(one.next_ids, again.next_ids)
    assert len(set(one.next_ids[:20].tolist())) == 1
    assert len(set(one.next_ids[20:].tolist())) > 5


def distribution(logits: np.ndarray, temperature: float, top_p: float, bias: dict[int, float]) -> np.ndarray:
    """Return the probabilities from which tokens are drawn, by sorting."""
    logits = logits.astype(np.float64)
    logits[list(bias)] += list(bias.values())
    weights = np.exp((logits - logits.max()) / temperature)
    shares = weights / weights.sum()
    order = np.argsort(-shares, kind="stable")
    enough = int(np.searchsorted(np.cumsum(shares[order]), top_p)) + 1
    kept = np.zeros_like(shares)
    kept[order[:enough]] = shares[order[:enough]]
    return kept / kept.sum()


@pytest.mark.parametrize("draws", [2000, pytest.param(20_000, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("temperature", "top_p", "bias"), [(1.0, 1.0, {}), (0.5, 0.7, {}), (0.8, 0.3, {3: 4.0, 7: 3.5, 11: -100.0})]
)
def test_drawn_tokens_have_the_frequencies_of_the_distribution(
    engine, reference, draws, temperature, top_p, bias
) -> None:
    how = {
        "temperature": temperature,
        "top_p": top_p,
        "bias_ids": np.array(list(bias), np.int32),
        "bias": np.array(list(bias.values()), np.float32),
    }
    request = sampled([ids(1, 5)] * draws, keys_of(draws), **how)
    (output,) = run(engine, request)
    whole = reference(np.concatenate([request.query, ids(1, 5)]))[-1]
    expected = distribution(whole, temperature, top_p, bias) * draws
    counts = np.bincount(output.next_ids, minlength=len(whole))
    assert not counts[expected == 0].any()
    common = expected >= 5
    seen = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    some = wanted > 0
    assert stats.chisquare(seen[some], wanted[some] * seen.sum() / wanted.sum()).pvalue > 1e-3


def kinds(count: int) -> list[ScoreRequest]:
    """Return requests of all kinds, the same at every call."""
    random = np.random.default_rng(count)
    made = []
    for n in range(count):
        query, items = (
            ids(n % 3, int(random.integers(1, 500))),
            [ids(n, int(random.integers(1, 280))) for _ in range(3)],
        )
        kind = n % 4
        if kind == 0:
            made.append(prompt(query, items, top_tokens=5))
        elif kind == 1:
            made.append(sampled(items, keys_of(3, n), query, temperature=0.7, top_p=0.9))
        elif kind == 2:
            made.append(request_of(query, items, label_ids=np.array([[1, 2, 3]], np.int32)))
        else:
            made.append(prompt(np.zeros(0, np.int32), items, sampling=Sampling(keys_of(3, n))))
    return made


def test_values_have_the_same_bits_alone_and_among_others(engine) -> None:
    requests = kinds(16)
    together = run(engine, *requests)
    for request, among in list(zip(requests, together, strict=True))[:8]:
        engine.flush_cache()
        (alone,) = run(engine, request)
        for name in ("logits", "log_sum_exp", "top_ids", "top_logits", "next_ids", "next_logits"):
            if getattr(among, name) is not None:
                assert_bits_equal(getattr(alone, name), getattr(among, name))


@pytest.mark.full
def test_nothing_is_compiled_for_reads_after_warm_up(checkpoint) -> None:
    with Engine.from_pretrained(checkpoint, progress=False, **SMALL_ENGINE | {"skip_warmup": False}) as engine:
        run(engine, *kinds(8)[2:])
        assert engine.statistics().get("compilations", 0) == 0
