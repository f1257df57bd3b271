"""Completions: fields, groups of prompts that begin alike, and what becomes of the engine's outputs."""

import pickle
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.fields.described import without_effect
from mis_core.tasks.limits import Limits
from mis_core.tasks.text.bodies import CompletionBody
from mis_core.tasks.text.choices import GeneratedChoice
from mis_core.tasks.text.completion import COMPLETE, CompletionResult, ParsedCompletion
from mis_core.tasks.text.prompt_groups import Prompts
from mis_core.tasks.text.row_logprobs import best_choices
from mis_core.tasks.text.sampling import sampling_keys
from mis_core.tokenization import Tokenizer

VOCABULARY = 1000
LIMITS = Limits(context_length=200, vocab_size=VOCABULARY, max_items=40, max_text_characters=5000)
MANY = Limits(context_length=200, vocab_size=VOCABULARY)
GOOD: dict[str, object] = {"prompt": [5, 6, 7], "max_tokens": 1}


@pytest.fixture(params=["qwen", "llama2"])
def tokenizer(request: pytest.FixtureRequest, small_tokenizer: Any) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(small_tokenizer(request.param).to_str()))


def parse(limits: Limits = LIMITS, tokenizer: Tokenizer | None = None, **changes: object) -> ParsedCompletion:
    return COMPLETE.parse(GOOD | changes, tokenizer, limits, ("m",))


def refusal(limits: Limits = LIMITS, **changes: object) -> tuple[str, str | None]:
    with pytest.raises(RequestError) as caught:
        parse(limits, **changes)
    assert len(caught.value.message) < 500
    return caught.value.code, caught.value.param


def value(sequence: list[int], token: int) -> float:
    """A logit that depends on all of a sequence and on a token."""
    return (hash((tuple(sequence), token)) % 10_000) / 1000


def compute(request: ScoreRequest) -> EngineOutput:
    """Answer a request by its definition: every row from its own whole sequence."""
    read_lens = np.ones(request.num_items, int) if request.read_lens is None else request.read_lens
    query = request.query.tolist()
    rows = [query[: end + 1] for end in range(len(query) - request.query_reads, len(query))]
    wholes = []
    for item, (begin, end) in enumerate(pairwise(request.item_starts.tolist())):
        whole = [*query[: request.context_lens[item]], *request.item_tokens[begin:end].tolist()]
        rows += [whole[: len(whole) - back] for back in reversed(range(read_lens[item]))]
        wholes.append(whole)
    labels = np.broadcast_to(request.label_ids, (len(rows), 1))[:, 0].tolist()
    logits = [value(row, label) if label >= 0 else np.nan for row, label in zip(rows, labels, strict=True)]
    top_ids = np.array([[len(row) + rank for rank in range(request.top_tokens)] for row in rows], np.int32)
    top_logits = [[value(row, token) for token in each] for row, each in zip(rows, top_ids.tolist(), strict=True)]
    output = EngineOutput(
        logits=np.array(logits, np.float32)[:, None],
        log_sum_exp=np.full(len(rows), 11, np.float32),
        cached_tokens=3,
        top_ids=top_ids if request.top_tokens else None,
        top_logits=np.array(top_logits, np.float32) if request.top_tokens else None,
    )
    if request.sampling is None:
        return output
    tokens = [drawn(whole, key) for whole, key in zip(wholes, request.sampling.keys.tolist(), strict=True)]
    values = [value(whole, token) for whole, token in zip(wholes, tokens, strict=True)]
    return replace(output, next_ids=np.array(tokens, np.int32), next_logits=np.array(values, np.float32))


def drawn(whole: list[int], key: list[int]) -> int:
    return hash((tuple(whole), *key)) % VOCABULARY


def answer(parsed: ParsedCompletion) -> CompletionResult:
    parsed = pickle.loads(pickle.dumps(parsed))
    return COMPLETE.finish(parsed, tuple(map(compute, parsed.requests)))


def ids(result: CompletionResult) -> list[int]:
    return [token.token_id for token in result.tokens]


# Beginnings that are long enough to be shared, and some that are not.
beginning = st.sampled_from([[], [1, 2], list(range(3, 30)), list(range(3, 50)), [7] * 40])
prompt_lists = st.lists(
    st.tuples(beginning, st.lists(st.integers(0, 3), max_size=4)).map(lambda parts: [*parts[0], *parts[1]] or [9]),
    min_size=1,
    max_size=12,
)


@given(prompts=prompt_lists, echo=st.booleans(), logprobs=st.sampled_from([None, 0, 2]), draws=st.sampled_from([1, 3]))
@settings(suppress_health_check=list(HealthCheck), deadline=None)
def test_every_token_is_read_after_those_before_it(prompts, echo: bool, logprobs: int | None, draws: int) -> None:
    parsed = parse(prompt=prompts, echo=echo, logprobs=logprobs, n=draws, seed=4)
    result = answer(parsed)
    sampling = parsed.requests[0].sampling
    assert sampling is not None
    keys = sampling.keys[:draws].tolist()
    assert ids(result) == [drawn(prompt, key) for prompt in prompts for key in keys]
    sequences = [prompt for prompt in prompts for _ in range(draws)]
    own = [value(whole, token) - 11 for whole, token in zip(sequences, ids(result), strict=True)]
    np.testing.assert_allclose([token.logprob for token in result.tokens], own, rtol=1e-5)
    tops = [[len(whole) + rank for rank in range(logprobs or 0)] for whole in sequences]
    assert [token.top_ids.tolist() for token in result.tokens] == tops
    assert result.usage.prompt_tokens == sum(map(len, prompts))
    assert result.completion_tokens == len(prompts) * draws
    assert (result.prompt is None) == (not echo or logprobs is None)
    if result.prompt is not None:
        places = [(prompt, place) for prompt in prompts for place in range(len(prompt))]
        told = [value(prompt[:place], prompt[place]) - 11 if place else 0.0 for prompt, place in places]
        np.testing.assert_allclose(result.prompt.logprobs, told, rtol=1e-5)
        tops = [place and place + rank for _, place in places for rank in range(logprobs or 0)]
        assert result.prompt.top_ids.ravel().tolist() == tops


@given(prompts=prompt_lists, cached=st.booleans())
def test_groups_hold_every_prompt_once_and_save_tokens(prompts: list[list[int]], cached: bool) -> None:
    flat = Prompts(np.concatenate(prompts).astype(np.int32), np.array([len(prompt) for prompt in prompts]))
    groups = flat.group(cached=cached)
    assert sorted(np.concatenate([group.members for group in groups]).tolist()) == list(range(len(prompts)))
    for group in groups:
        texts = [prompts[member] for member in group.members]
        assert len({tuple(text[: group.shared + 1]) for text in texts}) == 1 or group.shared == 0
        assert all(group.shared < len(text) for text in texts)
    cost = sum(group.shared + sum(len(prompts[member]) - group.shared for member in group.members) for group in groups)
    assert cost <= sum(map(len, prompts))
    if len({tuple(prompt[:20]) for prompt in prompts}) == 1 and len(prompts) > 1 and min(map(len, prompts)) > 20:
        assert len(groups) < len(prompts)


def test_choices_of_one_context_are_one_request() -> None:
    context = list(range(100, 160))
    questions = [[*context, first, second] for first in (1, 2) for second in (3, 4)]
    others = [[*range(200, 260), last] for last in (1, 2)]
    parsed = parse(prompt=[*questions, *others], echo=True, logprobs=1)
    assert sorted(request.query_reads for request in parsed.requests) == [59, 59]
    assert sum(len(request.query) + len(request.item_tokens) for request in parsed.requests) == 2 * 59 + 4 * 3 + 2 * 2


def test_unrelated_prompts_are_one_request_unless_cacheable() -> None:
    prompts = [[1, 2, 3], [4, 5], [6]]
    (request,) = parse(prompt=prompts, echo=True, logprobs=1).requests
    assert (len(request.query), request.num_items) == (0, 3)
    cached = parse(prompt=prompts, cache_salt="s").requests
    assert sorted(len(request.query) for request in cached) == [0, 1, 2]
    assert {request.cache_salt for request in cached} == {"s"}


def test_many_prompts_are_few_engine_requests() -> None:
    shared = [[*range(100, 150), last] for last in (1, 2, 3)]
    prompts = [[each] for each in range(5, 300)] + shared + [[each % 900, each // 900, 7] for each in range(5000)]
    for options in ({}, {"echo": True, "logprobs": 1}):
        parsed = parse(MANY, prompt=prompts, **options)
        assert len(parsed.requests) <= 256
        assert max(len(request.query) for request in parsed.requests if request.num_items == 3) == 49
        assert sum(request.num_items for request in parsed.requests) == len(prompts)
    pairs = [[each, *range(100, 150), last] for each in range(300) for last in (1, 2)]
    assert len(parse(MANY, prompt=pairs, echo=True, logprobs=1).requests) == 256


def test_many_prompts_are_not_drawn_from_several_times() -> None:
    prompts = [[1, 2]] * 257
    assert len(parse(MANY, prompt=prompts[1:], n=2).requests) == 256
    with pytest.raises(RequestError, match="257 prompts with 2 draws each; at most 256") as caught:
        parse(MANY, prompt=prompts, best_of=2)
    assert (caught.value.code, caught.value.param) == ("too_many_items", "prompt")


def test_many_nested_prompts_are_grouped_without_recursion() -> None:
    lens = np.arange(1, 1500)
    flat = Prompts(np.ones(lens.sum(), np.int32), lens)
    assert any(len(group.members) > 1 and group.shared >= 16 for group in flat.group(cached=False))


def test_draws_share_their_prompt() -> None:
    (request,) = parse(n=4, seed=1).requests
    assert (request.query.tolist(), request.item_tokens.tolist()) == ([5, 6], [7, 7, 7, 7])
    assert len(np.unique(request.sampling.keys, axis=0)) == 4


def test_a_prompt_draws_the_same_alone_and_among_others() -> None:
    prompts = [[*range(100, 150), last] for last in (1, 2, 3)]
    together = answer(parse(prompt=prompts, seed=3))
    assert ids(together) == [token for prompt in prompts for token in ids(answer(parse(prompt=prompt, seed=3)))]


def test_the_best_of_several_draws_are_the_most_probable_ones() -> None:
    every = answer(parse(n=6, seed=2))
    best = answer(parse(n=2, best_of=6, seed=2))
    order = np.argsort([-token.logprob for token in every.tokens], kind="stable")[:2]
    assert ids(best) == np.array(ids(every))[order].tolist()
    assert (best.completion_tokens, every.completion_tokens) == (6, 6)


def test_nothing_is_drawn_where_only_the_prompt_is_asked_for() -> None:
    parsed = parse(max_tokens=0, echo=True, logprobs=2)
    assert all(request.sampling is None for request in parsed.requests)
    result = answer(parsed)
    assert (result.tokens, result.completion_tokens) == ([], 0)
    assert answer(parse(max_tokens=0, echo=True)).prompt is None


def test_texts_are_their_ids(tokenizer: Tokenizer) -> None:
    texts = ["Do cats purr?", " yes"]
    parsed = parse(tokenizer=tokenizer, prompt=texts)
    ids = [tokenizer.encode(text).tolist() for text in texts]
    assert parsed.prompts.tokens.tolist() == np.concatenate(ids).tolist()
    assert parsed.texts == tuple(texts)
    bare = parse(tokenizer=tokenizer, prompt=texts[0], add_special_tokens=False)
    assert bare.prompts.tokens.tolist() == tokenizer.encode(texts[0], add_special_tokens=False).tolist()


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], ("a",)])
def test_texts_need_a_tokenizer_and_ids_do_not(prompt: object) -> None:
    assert COMPLETE.has_text({"prompt": prompt, "max_tokens": 1})
    for ids in ([1], [[1]], None, 7, []):
        assert not COMPLETE.has_text({"prompt": ids, "max_tokens": 1})
        assert COMPLETE.has_text({"prompt": ids, "max_tokens": 2})  # whose answers end where the tokenizer says
        assert COMPLETE.has_text({"prompt": ids})


def test_null_is_as_good_as_missing() -> None:
    parsed = parse(**{name: None for name in CompletionBody.__struct_fields__ if name not in GOOD})
    assert parsed.prompts.tokens.tolist() == [5, 6, 7]
    parse(suffix="", user="u", frequency_penalty=1, presence_penalty=-1.5, model="m", best_of=1)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"prompt": None}, "missing_prompt"),
        ({"prompt": []}, "empty_prompt"),
        ({"prompt": ""}, "empty_prompt"),
        ({"prompt": [[1], []]}, "empty_prompt"),
        ({"prompt": ["a", ""]}, "empty_prompt"),
        ({"prompt": 7}, "invalid_prompt"),
        ({"prompt": {"a": 1}}, "invalid_prompt"),
        ({"prompt": ["a", [1]]}, "invalid_prompt"),
        ({"prompt": ["a", 1]}, "invalid_prompt"),
        ({"prompt": "\ud800"}, "invalid_prompt"),
        ({"prompt": [None]}, "invalid_token_id_type"),
        ({"prompt": [1.0]}, "invalid_token_id_type"),
        ({"prompt": [[1], [True]]}, "invalid_token_id_type"),
        ({"prompt": [-1]}, "negative_token_id"),
        ({"prompt": [[1], [VOCABULARY]]}, "token_id_exceeds_vocab"),
        ({"prompt": [1] * 201}, "context_length_exceeded"),
        ({"prompt": [[1]] * 41}, "too_many_items"),
        ({"prompt": "a" * 5001}, "too_many_tokens"),
        ({"model": "other"}, "model_not_found"),
        ({"suffix": "a"}, "unsupported_parameter"),
        ({"max_tokens": 2}, "task_not_supported"),
        ({"max_tokens": 2**31}, "invalid_max_tokens"),
        ({"max_tokens": -1}, "invalid_max_tokens"),
        ({"max_tokens": 0}, "invalid_max_tokens"),
        ({"n": 0}, "invalid_n"),
        ({"n": 129}, "invalid_n"),
        ({"best_of": 1, "n": 2}, "invalid_best_of"),
        ({"logprobs": 21}, "invalid_logprobs"),
        ({"logprobs": True}, "invalid_logprobs"),
        ({"echo": 1}, "invalid_echo"),
        ({"stream": 1}, "invalid_stream"),
        ({"temperature": 3}, "invalid_temperature"),
        ({"logit_bias": {"1000": 1}}, "token_id_exceeds_vocab"),
        ({"stop": [1]}, "invalid_stop"),
        ({"add_special_tokens": 1}, "invalid_add_special_tokens_type"),
        *[({name: [1]}, f"invalid_{name}") for name in without_effect(CompletionBody)],
    ],
)  # fmt: skip
def test_errors_name_the_field(changes: dict[str, Any], code: str) -> None:
    (param,) = list(changes)[:1]
    assert refusal(**changes) == (code, param)


def test_an_answer_of_more_tokens_is_a_sequence_for_each_draw(tokenizer: Tokenizer) -> None:
    fields = {"prompt": [[5, 6, 7], [5, 6, 8]], "n": 2, "seed": 3, "logprobs": 2, "cache_salt": "s"}
    parsed = pickle.loads(pickle.dumps(parse(tokenizer=tokenizer, max_tokens=9, **fields)))
    assert parsed.requests == ()
    assert [each.prompt.tolist() for each in parsed.sequences] == [[5, 6, 7]] * 2 + [[5, 6, 8]] * 2
    keys = sampling_keys(3, 2).tolist()
    assert [each.sampling.keys.tolist() for each in parsed.sequences] == [[key] for key in keys] * 2
    assert {(each.max_new_tokens, each.top_tokens, each.cache_salt) for each in parsed.sequences} == {(9, 2, "s")}
    assert {each.end_ids for each in parsed.sequences} == {tokenizer.end_ids}
    result = answer(parsed)
    assert (result.tokens, result.prompt, result.completion_tokens, result.usage.prompt_tokens) == ([], None, 0, 6)


def test_prompts_of_longer_answers_are_read_beside_them(tokenizer: Tokenizer) -> None:
    fields = {"prompt": [[5, 6, 7], [5, 6, 8]], "echo": True, "logprobs": 1, "n": 2}
    alone, beside = (answer(parse(tokenizer=tokenizer, max_tokens=count, **fields)) for count in (1, 5))
    assert (alone.prompt is None, beside.prompt is None, beside.tokens) == (False, False, [])
    np.testing.assert_array_equal(beside.prompt.logprobs, alone.prompt.logprobs)
    np.testing.assert_array_equal(beside.prompt.top_ids, alone.prompt.top_ids)
    assert parse(tokenizer=tokenizer, prompt=[5], max_tokens=5, echo=True).requests == ()


def test_an_answer_has_sixteen_tokens_by_default_or_what_fits(tokenizer: Tokenizer) -> None:
    def longest(tokens: int) -> int:
        parsed = parse(tokenizer=tokenizer, prompt=[1] * tokens, max_tokens=None)
        return parsed.sequences.max_new_tokens if parsed.sequences else 1

    assert [longest(tokens) for tokens in (1, 184, 190, 199, 200)] == [16, 16, 10, 1, 1]


def test_what_answers_may_cost_is_bounded(tokenizer: Tokenizer) -> None:
    def refused(limits: Limits, **changes: object) -> tuple[str, str | None]:
        with pytest.raises(RequestError) as caught:
            parse(limits, tokenizer, **changes)
        return caught.value.code, caught.value.param

    assert refused(LIMITS, max_tokens=198) == ("context_length_exceeded", "prompt")
    assert refused(replace(LIMITS, max_request_tokens=60), max_tokens=30, n=2) == ("too_many_tokens", "max_tokens")
    assert refused(replace(LIMITS, max_scores=99), max_tokens=50, n=2) == ("too_many_tokens", "max_tokens")
    narrow = replace(LIMITS, max_scores=299)
    assert refused(narrow, max_tokens=50, n=2, logprobs=2) == ("too_many_tokens", "max_tokens")
    parse(narrow, tokenizer, max_tokens=49, n=2, logprobs=2)
    assert refused(LIMITS, max_tokens=2, best_of=2, stream=True) == ("invalid_best_of", "best_of")


def test_the_best_answers_have_the_highest_mean_log_probability() -> None:
    values = [[-3.0, -3.0], [-1.0], [-1.0, -4.0], [-2.0], [-2.0], [-9.0]]
    written = [
        GeneratedChoice(
            index=index,
            text="",
            token_ids=np.zeros(len(each), np.int32),
            token_logprobs=np.array(each, np.float32),
            top_ids=np.zeros((len(each), 0), np.int32),
            top_logprobs=np.zeros((len(each), 0), np.float32),
            finish_reason="length",
        )
        for index, each in enumerate(values)
    ]

    def best(drawn: list[GeneratedChoice], count: int) -> list[int]:
        return [choice.index for choice in best_choices(drawn, count, lambda choice: choice.token_logprobs.mean())]

    assert best(written[:3], 2) == [1, 2]
    assert best(written[3:], 2) == [3, 4]
    assert best(written, 6) == [0, 1, 2, 3, 4, 5]


def test_answers_are_counted_before_anything_is_tokenised(tokenizer: Tokenizer, monkeypatch: Any) -> None:
    narrow = replace(LIMITS, max_sequences=6)

    def parsed(**fields: object) -> ParsedCompletion:
        return parse(narrow, tokenizer, **fields)

    def refused(**fields: object) -> tuple[str, str | None]:
        with monkeypatch.context() as patch:
            patch.setattr(Tokenizer, "encode_all", None)
            with pytest.raises(RequestError) as caught:
                parsed(**fields)
        assert "6" in caught.value.message
        return caught.value.code, caught.value.param

    two = {"prompt": ["a b", "c"]}
    assert [parsed(**two, max_tokens=count, n=3).num_sequences for count in (1, 2, None)] == [6, 6, 6]
    assert parsed(**two, max_tokens=4, best_of=3).num_sequences == 6
    for count in (1, 2, None):
        assert refused(**two, max_tokens=count, n=4) == ("too_many_sequences", "n")
        assert refused(**two, max_tokens=count, n=1, best_of=4) == ("too_many_sequences", "best_of")
    assert refused(prompt=["a"] * 7, max_tokens=2) == ("too_many_sequences", "prompt")
    scored = parsed(prompt=["a"] * 7, max_tokens=1)  # scores, of which a request may have more
    assert (len(scored.prompts.lens), scored.num_sequences) == (7, 0)


def test_thousands_of_answers_take_no_more_than_their_prompts(tokenizer: Tokenizer) -> None:
    limits = replace(LIMITS, context_length=4000, max_items=4096)
    fields = {"prompt": [[number] * 1500 for number in range(1, 33)], "max_tokens": 100, "n": 128}
    parsed = parse(limits, tokenizer, **fields)
    assert len(pickle.dumps(parsed)) < 400_000  # 48,000 ids
    assert parsed.sequences.most_tokens == sum(len(each.prompt) + each.max_new_tokens for each in parsed.sequences)
    assert [each.prompt[0] for each in parsed.sequences][126:130] == [1, 1, 2, 2]
    assert len(parsed.sequences) == len(list(parsed.sequences)) == 4096


def test_limits_count_draws_and_values_that_are_read() -> None:
    assert refusal(prompt=[[1]] * 5, n=9) == ("too_many_items", "prompt")
    narrow = Limits(context_length=200, vocab_size=VOCABULARY, max_scores=59)
    assert refusal(narrow, prompt=[1] * 10, echo=True, logprobs=5) == ("too_many_tokens", "prompt")
    parse(narrow, prompt=[1] * 10, logprobs=5)
    assert refusal(Limits(context_length=200, vocab_size=9, max_request_tokens=4), prompt=[[1, 2, 3]] * 2) == (
        "too_many_tokens",
        "prompt",
    )


def test_no_draws_without_a_token() -> None:
    assert refusal(max_tokens=0, echo=True, n=2) == ("invalid_n", "n")
    assert refusal(max_tokens=0, echo=True, best_of=2) == ("invalid_best_of", "best_of")


def test_a_classification_head_completes_nothing() -> None:
    limits = Limits(context_length=200, vocab_size=VOCABULARY, head_labels=("yes", "no"))
    assert refusal(limits)[0] == "task_not_supported"


def test_an_output_that_lacks_values_is_an_error() -> None:
    parsed = parse(logprobs=2)
    (output,) = map(compute, parsed.requests)
    for missing in ("log_sum_exp", "top_ids", "next_ids", "next_logits"):
        broken = replace(output, **{missing: None})
        with pytest.raises(ValueError, match=missing):
            COMPLETE.finish(parsed, (broken,))
    broken = replace(output, next_logits=np.full(1, np.nan, np.float32))
    with pytest.raises(FloatingPointError):
        COMPLETE.finish(parsed, (broken,))
