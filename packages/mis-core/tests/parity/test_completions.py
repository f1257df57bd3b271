"""Completions on the engine: what transformers says of prompts' tokens, and the same bits alone and among others."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from mis_core import Engine
from mis_core.tasks.limits import Limits
from mis_core.tasks.text.completion import COMPLETE, CompletionResult
from mis_testing import tiny_checkpoint
from mis_testing.bits import assert_bits_equal
from mis_testing.options import SMALL_ENGINE
from mis_testing.tolerances import TINY_LOGITS

pytestmark = pytest.mark.parity

VOCABULARY = 300
LIMITS = Limits(context_length=2048, vocab_size=VOCABULARY)
TOP = 20
_random = np.random.default_rng(3)
CONTEXTS: list[list[int]] = [_random.integers(0, VOCABULARY, length).tolist() for length in (300, 40, 5)]
# Choices behind contexts, in no order; one is a context itself, and one is there twice.
PROMPTS: list[list[int]] = [
    [*context, *_random.integers(0, VOCABULARY, length).tolist()] for length in (1, 3, 0, 9) for context in CONTEXTS
]
PROMPTS += [PROMPTS[0], [7]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("completions") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def engine(directory: Path) -> Iterator[Engine]:
    with Engine.from_pretrained(str(directory), progress=False, **SMALL_ENGINE) as engine:
        yield engine


@pytest.fixture(scope="module")
def reference(directory: Path) -> Callable[[list[int]], np.ndarray]:
    """Log-probabilities after every token of a prompt, `[tokens, vocab]`, of transformers on PyTorch."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def logprobs(prompt: list[int]) -> np.ndarray:
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor([prompt])).logits[0], -1).numpy()

    return logprobs


def complete(engine: Engine, *every: dict[str, object]) -> list[CompletionResult]:
    """Answer requests that the engine has all at once."""
    parsed = [COMPLETE.parse({"max_tokens": 1} | fields, None, LIMITS, None) for fields in every]
    futures = [[engine.submit(request) for request in each.requests] for each in parsed]
    outputs = [tuple(future.result(timeout=300) for future in each) for each in futures]
    return [COMPLETE.finish(*each) for each in zip(parsed, outputs, strict=True)]


def drawn(result: CompletionResult) -> dict[str, np.ndarray]:
    """Return the tokens of answers and their values as arrays, `[answers]` and `[answers, top_logprobs]`."""
    return {
        "token_ids": np.array([token.token_id for token in result.tokens], np.int32),
        "token_logprobs": np.array([token.logprob for token in result.tokens], np.float32),
        "top_ids": np.stack([token.top_ids for token in result.tokens]),
        "top_logprobs": np.stack([token.top_logprobs for token in result.tokens]),
    }


def test_log_probabilities_are_those_of_transformers(engine: Engine, reference: Callable[..., np.ndarray]) -> None:
    (result,) = complete(engine, {"prompt": PROMPTS, "echo": True, "logprobs": TOP, "temperature": 0})
    (short,) = complete(engine, {"prompt": PROMPTS, "logprobs": TOP, "temperature": 0})
    told = result.prompt
    assert told is not None
    begin = 0
    for index, prompt in enumerate(PROMPTS):
        expected = reference(prompt)
        rows, end = np.arange(len(prompt) - 1), begin + len(prompt)
        own = told.logprobs[begin + 1 : end]
        np.testing.assert_allclose(own, expected[rows, prompt[1:]], atol=TINY_LOGITS, rtol=0)
        check_top(told.top_ids[begin + 1 : end], told.top_logprobs[begin + 1 : end], expected[:-1])
        for each in (result, short):
            token, best = each.tokens[index], expected[-1].max()
            check_top(token.top_ids[None], token.top_logprobs[None], expected[-1:])
            np.testing.assert_allclose(token.logprob, best, atol=TINY_LOGITS, rtol=0)
            np.testing.assert_allclose(expected[-1][token.token_id], best, atol=TINY_LOGITS, rtol=0)
        begin = end


def check_top(ids: np.ndarray, logprobs: np.ndarray, expected: np.ndarray) -> None:
    """The values are the highest ones, and the ids have them; which of equal ones come first is free."""
    assert all(len(set(row)) == TOP for row in ids.tolist())
    np.testing.assert_allclose(logprobs, -np.sort(-expected, 1)[:, :TOP], atol=TINY_LOGITS, rtol=0)
    np.testing.assert_allclose(logprobs, np.take_along_axis(expected, ids, 1), atol=TINY_LOGITS, rtol=0)


@pytest.mark.parametrize("echo", [True, False])
def test_bits_are_the_same_alone_and_among_others(engine: Engine, echo: bool) -> None:
    def fields(prompt: object) -> dict[str, object]:
        return {"prompt": prompt, "echo": echo, "logprobs": 3, "seed": 5, "top_p": 0.9, "logit_bias": {"4": 2}}

    every = [fields(PROMPTS), fields(PROMPTS[1]), *[fields(PROMPTS[index:]) for index in range(1, 14)]]
    every.append(fields(CONTEXTS[0]) | {"n": 5})
    for request, among in zip(every, complete(engine, *every), strict=True):
        (alone,) = complete(engine, request)
        for name, values in drawn(alone).items():
            assert_bits_equal(values, drawn(among)[name])
        if alone.prompt is not None:
            for name in ("logprobs", "top_ids", "top_logprobs"):
                assert_bits_equal(getattr(alone.prompt, name), getattr(among.prompt, name))


def test_a_seed_draws_the_same_texts_whatever_their_number(engine: Engine) -> None:
    results = complete(engine, *[{"prompt": PROMPTS[0], "seed": 1, "n": n} for n in (3, 40, 40)])
    few, many, again = (drawn(result)["token_ids"] for result in results)
    assert len(np.unique(many)) > 5
    assert_bits_equal(many, again)
    assert_bits_equal(few, many[:3])


def test_a_prompt_that_is_sent_again_comes_from_the_cache(engine: Engine) -> None:
    prompt = _random.integers(0, VOCABULARY, 500).tolist()
    (first,) = complete(engine, {"prompt": prompt, "logprobs": 5, "temperature": 0})
    (second,) = complete(engine, {"prompt": prompt, "logprobs": 5, "temperature": 0})
    assert (first.usage.cached_tokens, second.usage.prompt_tokens) == (0, 500)
    assert second.usage.cached_tokens > 400
    assert_bits_equal(first.tokens[0].top_logprobs, second.tokens[0].top_logprobs)
