"""Chats: log-probabilities are those of transformers on PyTorch, and answers depend on nothing beside them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from mis_core import Engine
from mis_core.tasks.limits import Limits
from mis_core.tasks.text.chat import CHAT, ChatResult
from mis_testing.bits import assert_bits_equal
from mis_testing.tolerances import TINY_LOGITS

pytestmark = pytest.mark.parity

CHATS = [
    [{"role": "system", "content": "Answer yes or no."}, {"role": "user", "content": "Do cats purr?"}],
    [{"role": "user", "content": "Ships in the harbour, and what else? " * 12}],
]
ASKED = {"max_tokens": 1, "logprobs": True, "top_logprobs": 20, "label_token_ids": [5, 271, 900, 5]}


@pytest.fixture(scope="module")
def limits(engine: Engine) -> Limits:
    return Limits(context_length=engine.context_length, vocab_size=engine.vocab_size)


def answers(engine: Engine, limits: Limits, *bodies: dict[str, Any]) -> list[ChatResult]:
    """Answer chats together, as one service would."""
    parsed = [CHAT.parse(body, engine.tokenizer, limits, None) for body in bodies]
    waiting = [engine.submit(request) for each in parsed for request in each.requests]
    return [CHAT.finish(each, (future.result(300),)) for each, future in zip(parsed, waiting, strict=True)]


@pytest.mark.parametrize("messages", CHATS, ids=["short", "long"])
def test_log_probabilities_are_those_of_transformers(
    engine: Engine, limits: Limits, checkpoint: Path, oracle_factory: Any, messages: list[dict[str, str]]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    expected = oracle_factory(checkpoint, "float32").next_token_logprobs(prompt)
    body = ASKED | {"messages": messages, "temperature": 0.7, "logit_bias": {"7": 20}, "n": 2, "seed": 3}
    for _ in range(2):  # the second time the prompt is cached
        (result,) = answers(engine, limits, body)
        assert result.usage.prompt_tokens == len(prompt)
        np.testing.assert_allclose(result.label_logprobs, expected[[5, 271, 900, 5]], atol=TINY_LOGITS)
        for token in result.tokens:
            np.testing.assert_allclose(token.logprob, expected[token.token_id], atol=TINY_LOGITS)
            np.testing.assert_allclose(token.top_logprobs, expected[token.top_ids], atol=TINY_LOGITS)
            np.testing.assert_allclose(token.top_logprobs, np.sort(expected)[::-1][:20], atol=TINY_LOGITS)
    assert result.usage.cached_tokens > 0


def test_temperature_zero_picks_the_best_token_after_the_bias(engine: Engine, limits: Limits) -> None:
    body = ASKED | {"messages": CHATS[0], "temperature": 0}
    plain, biased = answers(engine, limits, body, body | {"logit_bias": {"7": 100}})
    (plain_token,), (biased_token,) = plain.tokens, biased.tokens
    assert plain_token.token_id == plain_token.top_ids[0]
    assert biased_token.token_id == 7
    assert_bits_equal(biased_token.top_logprobs, plain_token.top_logprobs)  # of the model's own distribution


def test_a_seed_draws_the_same_tokens_whatever_else_is_asked(engine: Engine, limits: Limits) -> None:
    body = {"messages": CHATS[0], "max_tokens": 1, "temperature": 2.0}
    fields = [{"seed": 5, "n": 100}, {"seed": 5, "n": 3} | ASKED, {"seed": 6, "n": 100}, {"n": 100}, {"n": 100}]
    results = answers(engine, limits, *(body | each for each in fields))
    many, few, other, *unseeded = ([token.token_id for token in result.tokens] for result in results)
    assert few == many[:3]
    assert len(set(many)) > 5
    assert other != many
    assert unseeded[0] != unseeded[1]


def test_a_chat_alone_has_the_bits_that_it_has_among_others(engine: Engine, limits: Limits) -> None:
    bodies = [
        ASKED | {"messages": [*CHATS[number % 2], {"role": "user", "content": f"Number {number}."}], "seed": number,
                 "n": 1 + number % 3, "temperature": number / 8, "top_p": 1 - number / 20, "cache_salt": str(number)}
        for number in range(17)
    ]  # fmt: skip
    together = answers(engine, limits, *bodies)
    for number in (0, 1, 8, 16):
        (alone,) = answers(engine, limits, bodies[number] | {"cache_salt": f"alone {number}"})
        assert_bits_equal(together[number].label_logprobs, alone.label_logprobs)
        for among, token in zip(together[number].tokens, alone.tokens, strict=True):
            assert (among.token_id, among.logprob) == (token.token_id, token.logprob)
            assert_bits_equal(among.top_ids, token.top_ids)
            assert_bits_equal(among.top_logprobs, token.top_logprobs)
