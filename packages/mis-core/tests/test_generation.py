"""`Engine.generate` and `stream`: options, where answers end, and what is free afterwards."""

import asyncio
import itertools
import time
from typing import Any

import numpy as np
import pytest

from mis_core import Engine, RequestError
from mis_core.requests import FinishReason, NewToken
from mis_core.tasks.text.choices import GeneratedChoices
from mis_core.tasks.text.generation import parse_generation
from mis_testing.tolerances import TINY_LOGITS

PROMPT = list(range(20, 90))
GREEDY = {"temperature": 0, "ignore_eos": True}


def assert_free(engine: Engine) -> None:
    """Nothing is held once the step under way has ended."""
    for _ in range(200):
        now = engine.statistics()
        if not now["waiting_requests"] and not now["held_pages"]:
            break
        time.sleep(0.05)
    engine.check()
    assert (now["held_pages"], now["waiting_requests"]) == (0, 0)
    assert now["free_pages"] + now["cached_pages"] == now["pages"]


def logprobs_of(engine: Engine, sequence: list[int]) -> np.ndarray:
    """Log-probabilities of every token after a sequence, by the way that scores go."""
    result = engine.score(sequence, [[]], [list(range(engine.vocab_size))], return_token_logprobs=True)
    assert result.token_logprobs is not None
    return result.token_logprobs[0]


def test_a_greedy_answer_and_what_is_told_of_it(engine: Engine) -> None:
    result = engine.generate(PROMPT, 6, logprobs=3, **GREEDY)
    (choice,) = result.choices
    assert (result.usage.prompt_tokens, result.completion_tokens, choice.finish_reason) == (len(PROMPT), 6, "length")
    sequence = list(PROMPT)
    for token, logprob, top_ids, top_logprobs in zip(
        choice.token_ids.tolist(), choice.token_logprobs, choice.top_ids, choice.top_logprobs, strict=True
    ):
        expected = logprobs_of(engine, sequence)
        assert top_ids.tolist() == np.argsort(-expected, kind="stable")[:3].tolist()
        np.testing.assert_allclose(top_logprobs, expected[top_ids], atol=TINY_LOGITS)
        assert token == top_ids[0]
        np.testing.assert_allclose(logprob, expected[token], atol=TINY_LOGITS)
        sequence.append(token)
    assert_free(engine)


def test_an_answer_streams_as_it_is_returned(engine: Engine) -> None:
    result = engine.generate("What is it?", 20, n=3, seed=1, ignore_eos=True)
    chunks = list(engine.stream("What is it?", 20, n=3, seed=1, ignore_eos=True))
    for choice in result.choices:
        mine = [chunk for chunk in chunks if chunk.index == choice.index]
        assert "".join(chunk.text for chunk in mine) == choice.text
        assert [chunk.token_id for chunk in mine] == choice.token_ids.tolist()
        assert [chunk.finish_reason for chunk in mine] == [None] * 19 + ["length"]
    assert len({choice.text for choice in result.choices}) == 3


def test_asyncio_gets_the_same(engine: Engine) -> None:
    async def ask() -> tuple[Any, list[Any]]:
        whole = await engine.generate_async(PROMPT, 12, seed=4)
        return whole, [chunk async for chunk in engine.stream_async(PROMPT, 12, seed=4)]

    whole, chunks = asyncio.run(ask())
    expected = engine.generate(PROMPT, 12, seed=4).choices[0]
    assert whole.choices[0].token_ids.tolist() == expected.token_ids.tolist()
    assert [chunk.token_id for chunk in chunks] == expected.token_ids.tolist()


def test_a_token_that_ends_an_answer_is_its_last(engine: Engine) -> None:
    tokens = engine.generate(PROMPT, 12, **GREEDY).choices[0].token_ids.tolist()
    end = tokens[4]
    (choice,) = engine.generate(PROMPT, 12, stop_token_ids=[end], **GREEDY).choices
    assert choice.token_ids.tolist() == tokens[: tokens.index(end) + 1]
    assert choice.finish_reason == "stop"
    assert_free(engine)


def test_a_text_that_ends_an_answer_is_not_in_it(engine: Engine) -> None:
    text = engine.generate(PROMPT, 30, **GREEDY).choices[0].text
    stop = text[6:9]
    (choice,) = engine.generate(PROMPT, 30, stop=["never there", stop], **GREEDY).choices
    assert choice.text == text[: text.index(stop)]
    assert choice.finish_reason == "stop"
    assert len(choice.token_ids) < 30
    assert_free(engine)


def test_penalties_are_of_what_was_written(engine: Engine) -> None:
    """Greedy tokens are those of the penalised log-probabilities, computed beside."""
    options = {"presence_penalty": 1.5, "frequency_penalty": 0.7, "logit_bias": {"9": 2.5}}
    tokens = engine.generate(PROMPT, 15, **GREEDY, **options).choices[0].token_ids.tolist()
    assert tokens != engine.generate(PROMPT, 15, **GREEDY).choices[0].token_ids.tolist()
    counts, sequence = np.zeros(engine.vocab_size), list(PROMPT)
    for token in tokens:
        expected = logprobs_of(engine, sequence) - 0.7 * counts - 1.5 * (counts > 0)
        expected[9] += 2.5
        best, second = np.sort(expected)[:-3:-1]
        assert best - second < 1e-3 or token == expected.argmax()
        counts[token] += 1
        sequence.append(token)


@pytest.mark.parametrize("options", [{"top_k": 2}, {"min_p": 0.6}, {"top_k": 3, "top_p": 0.5}])
def test_what_is_cut_off_is_never_drawn(engine: Engine, options: dict[str, Any]) -> None:
    probabilities = np.exp(logprobs_of(engine, PROMPT).astype(np.float64))
    order = np.argsort(-probabilities)
    kept = order[: options.get("top_k", len(order))]
    share = np.cumsum(probabilities[kept]) / probabilities[kept].sum()
    kept = kept[: int(np.searchsorted(share, options.get("top_p", 1.0))) + 1]
    kept = kept[probabilities[kept] >= options.get("min_p", 0) * probabilities.max()]
    drawn = engine.generate(PROMPT, 1, n=64, seed=3, temperature=1.0, ignore_eos=True, **options)
    found = {int(choice.token_ids[0]) for choice in drawn.choices}
    assert found <= set(kept.tolist())
    assert len(found) > 1 or len(kept) == 1


def test_the_next_turn_finds_the_answer_in_the_cache(engine: Engine) -> None:
    first = engine.generate(PROMPT, 70, cache_salt="turns", **GREEDY)
    longer = [*PROMPT, *first.choices[0].token_ids.tolist(), 5]
    assert engine.generate(longer, 1, cache_salt="turns").usage.cached_tokens == 128


def test_who_stops_reading_frees_the_sequence(engine: Engine) -> None:
    chunks = engine.stream(PROMPT, 1000, ignore_eos=True)
    assert len(list(itertools.islice(chunks, 3))) == 3
    chunks.close()
    assert_free(engine)
    assert engine.statistics()["written_tokens"] < 1000

    async def leave() -> None:
        task = asyncio.create_task(engine.generate_async(PROMPT, 1000, ignore_eos=True))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(leave())
    assert_free(engine)


def test_who_stops_reading_is_in_no_further_step(engine: Engine) -> None:
    chunks = engine.stream(PROMPT, 1000, ignore_eos=True)
    for _ in range(5):
        next(chunks)
    before = engine.statistics()["steps"]
    while engine.statistics()["steps"] == before:  # it goes on, whether or not anybody reads
        time.sleep(0.01)
    chunks.close()
    closed = engine.statistics()
    assert closed["held_pages"] == 0
    assert_free(engine)
    assert engine.statistics()["steps"] == closed["steps"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"max_new_tokens": 0}, "invalid_max_new_tokens", "max_new_tokens"),
        ({"max_new_tokens": 10**6}, "context_length_exceeded", "prompt"),
        ({"prompt": []}, "empty_prompt", "prompt"),
        ({"prompt": ["a", "b"]}, "invalid_prompt", "prompt"),
        ({"top_k": -2}, "invalid_top_k", "top_k"),
        ({"min_p": 1.1}, "invalid_min_p", "min_p"),
        ({"presence_penalty": 2.1}, "invalid_presence_penalty", "presence_penalty"),
        ({"frequency_penalty": "1"}, "invalid_frequency_penalty", "frequency_penalty"),
        ({"stop_token_ids": 7}, "invalid_stop_token_ids", "stop_token_ids"),
        ({"stop_token_ids": [10**6]}, "token_id_exceeds_vocab", "stop_token_ids"),
        ({"n": 0}, "invalid_n", "n"),
        ({"max_tokens": 3}, "unknown_parameter", "max_tokens"),
    ],
)
def test_what_breaks_the_contract_is_named(engine: Engine, fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as error:
        engine.generate(**{"prompt": PROMPT} | fields)
    assert (error.value.code, error.value.param) == (code, param)


def write(engine: Engine, text: str, **fields: Any) -> tuple[list[str], str | None]:
    """Return the texts of the chunks of an answer whose tokens spell a text."""
    ids = engine.tokenizer.encode(text, add_special_tokens=False).tolist()
    parsed = parse_generation({"prompt": PROMPT, "max_new_tokens": 100, **fields}, engine.tokenizer, engine.limits)
    choices, none = GeneratedChoices(engine.tokenizer, parsed.options.stops, 1), np.zeros(0, np.int32)
    texts: list[str] = []
    finish: str | None = None
    for place, token in enumerate(ids):
        reason: FinishReason | None = "length" if place == len(ids) - 1 else None
        chunk = choices.add(0, NewToken(token, -1.0, none, none.astype(np.float32), reason))
        if chunk is None:
            break
        texts.append(chunk.text)
        finish = chunk.finish_reason
    return texts, finish


def test_characters_come_whole(engine: Engine) -> None:
    texts, finish = write(engine, "naïve 日本語 🙂 end")
    assert "".join(texts) == "naïve 日本語 🙂 end"
    assert "�" not in "".join(texts)
    assert finish == "length"


def test_what_may_begin_a_stop_text_is_held_back(engine: Engine) -> None:
    texts, finish = write(engine, "one two three", stop=["three!", "xyz"])
    assert ("".join(texts), finish) == ("one two three", "length")
    texts, finish = write(engine, "one two three four", stop=["e f"])
    assert ("".join(texts), finish) == ("one two thre", "stop")
    assert all("e f" not in text for text in texts)


def test_nothing_is_compiled_for_another_sequence(engine: Engine) -> None:
    engine.generate(PROMPT, 3, presence_penalty=0.5, logprobs=2)
    before = engine.statistics()["compilations"]
    engine.generate(PROMPT[:5], 70, seed=1, top_p=0.5, top_k=4, frequency_penalty=0.5, n=3)
    assert engine.statistics()["compilations"] == before


def test_many_sequences_and_many_that_are_left(engine: Engine) -> None:
    """No page, place or listener is lost."""
    for number in range(60):
        prompt = [number % 50 + 1] * (number % 130 + 1)
        chunks = engine.stream(prompt, 3 + number % 5, seed=number)
        for _ in itertools.islice(chunks, number % 6 or None):
            pass
        chunks.close()
    assert_free(engine)
    assert not engine._loop._listeners
    assert not engine._loop._scheduler._homes[0].slots
