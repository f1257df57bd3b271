"""Chat with one new token: fields, prompts, and what becomes of the engine's outputs."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from mis_core.errors import RequestError
from mis_core.requests import EngineOutput
from mis_core.tasks.fields.described import without_effect
from mis_core.tasks.limits import Limits
from mis_core.tasks.text.bodies import ChatBody
from mis_core.tasks.text.chat import CHAT, ParsedChat
from mis_core.tasks.text.messages import MAX_MESSAGES, read_messages
from mis_core.tasks.text.sampling import Stops, sampling_keys
from mis_core.tokenization import Tokenizer
from mis_testing import tiny_checkpoint

LIMITS = Limits(context_length=200, vocab_size=2000, max_labels=4, max_text_characters=5000)
MESSAGES = [{"role": "system", "content": "Answer yes or no."}, {"role": "user", "content": "Do cats purr?"}]
FIELDS = ChatBody.__struct_fields__
GOOD = {"messages": MESSAGES, "max_tokens": 1}


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp(request.param), request.param, num_hidden_layers=1)


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_pretrained(directory)


@pytest.fixture(scope="module")
def some_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tiny_checkpoint(tmp_path_factory.mktemp("some"), "qwen3", num_hidden_layers=1)
    return Tokenizer.from_pretrained(directory)


def parse(tokenizer: Tokenizer | None, limits: Limits = LIMITS, **changes: object) -> ParsedChat:
    return CHAT.parse(GOOD | changes, tokenizer, limits, ("m",))


def refusal(tokenizer: Tokenizer | None, limits: Limits = LIMITS, **changes: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(tokenizer, limits, **changes)
    assert len(caught.value.message) < 500
    return caught.value


def prompt(parsed: ParsedChat) -> list[int]:
    """The ids that the last item is the end of."""
    (request,) = parsed.requests
    assert (request.context_lens == len(request.query) - 1).all()
    assert (request.item_tokens == request.query[-1]).all()
    return request.query.tolist()


@pytest.mark.parametrize(
    ("fields", "theirs"),
    [
        ({}, {"add_generation_prompt": True}),
        ({"add_generation_prompt": False}, {}),
        ({"continue_final_message": True, "messages": [*MESSAGES, {"role": "assistant", "content": "I say"}]},
         {"continue_final_message": True}),
        ({"chat_template_kwargs": {"enable_thinking": False}},
         {"add_generation_prompt": True, "enable_thinking": False}),
    ],
)  # fmt: skip
def test_the_prompt_is_what_transformers_makes_of_the_messages(directory, tokenizer, fields, theirs) -> None:
    parsed = parse(tokenizer, **fields)
    reference = AutoTokenizer.from_pretrained(directory)
    messages = fields.get("messages", MESSAGES)
    assert prompt(parsed) == reference.apply_chat_template(messages, return_dict=True, **theirs)["input_ids"]
    assert parsed.prompt_tokens == len(prompt(parsed))


def test_every_choice_is_the_same_segment_with_a_key_of_its_own(some_tokenizer: Tokenizer) -> None:
    (request,) = pickle.loads(pickle.dumps(parse(some_tokenizer, n=3, seed=5))).requests
    assert request.num_items == request.num_reads == 3
    assert len(request.item_tokens) == 3
    assert request.prompt_tokens == len(request.query)
    assert len(np.unique(request.sampling.keys, axis=0)) == 3
    again = parse(some_tokenizer, seed=5).requests[0].sampling
    np.testing.assert_array_equal(again.keys, request.sampling.keys[:1])


def test_fields_arrive(some_tokenizer: Tokenizer) -> None:
    options = {"include_usage": True, "include_obfuscation": False}
    parsed = parse(
        some_tokenizer, logprobs=True, top_logprobs=20, temperature=0, top_p=0.5, logit_bias={"3": 1}, stop="a",
        stream=True, stream_options=options, label_token_ids=[7, 8, 7], cache_salt="s", model="m",
    )  # fmt: skip
    (request,) = parsed.requests
    assert (request.top_tokens, request.cache_salt, request.label_ids.tolist()) == (20, "s", [[7, 8, 7]])
    assert (request.sampling.temperature, request.sampling.bias_ids.tolist()) == (0, [3])
    options = parsed.options
    assert (options.logprobs, options.stops.texts, options.stream, options.include_usage) == (20, ("a",), True, True)


def test_labels_are_looked_up(some_tokenizer: Tokenizer) -> None:
    labels = ["a", " the"]
    ids = [some_tokenizer.label_id(label) for label in labels]
    assert parse(some_tokenizer, labels=labels).requests[0].label_ids.tolist() == [ids]


def test_null_is_as_good_as_missing(some_tokenizer: Tokenizer) -> None:
    fields = {name: None for name in ChatBody.__struct_fields__ if name not in GOOD}
    parsed = parse(some_tokenizer, **fields)
    assert prompt(parsed) == prompt(parse(some_tokenizer))
    assert parsed.requests[0].label_ids.shape == (1, 0)


def test_what_is_harmless_or_has_no_effect_is_accepted(some_tokenizer: Tokenizer) -> None:
    values = {"frequency_penalty": 0.5, "presence_penalty": 1, "store": True, "parallel_tool_calls": False}
    ignored = {
        name: {} if "options" in name or name in ("metadata", "prediction") else "text"
        for name in without_effect(ChatBody)
    }
    harmless = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"]}
    parse(some_tokenizer, **(ignored | values | harmless))


REFUSED = [
    ({"messages": None}, "missing_messages"),
    ({"messages": []}, "empty_messages"),
    *[({"messages": value}, "invalid_messages") for value in ("hi", {}, 1, [1], [{}], [{"role": "user"}])],
    *[({"messages": [{"role": role, "content": "a"}]}, "invalid_messages") for role in ("function", "User", None, 1)],
    *[({"messages": [{"role": "user", "content": value}]}, "invalid_messages") for value in (None, 1, {}, [1], ["a"])],
    *[({"messages": [{"role": "user", "content": [part]}]}, "invalid_messages")
      for part in ({}, {"type": "text"}, {"type": "text", "text": 1}, {"type": ["a"]}, {"text": "a"})],
    *[({"messages": [{"role": "user", "content": [{"type": kind}]}]}, "unsupported_parameter")
      for kind in ("image_url", "input_audio", "file")],
    ({"messages": [{"role": "user", "content": "a \ud83d"}]}, "invalid_messages"),
    ({"messages": MESSAGES[:1] * (MAX_MESSAGES + 1)}, "invalid_messages"),
    ({"messages": [{"role": "user", "content": "a", "mood": "b"}]}, "unknown_parameter"),
    ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "unsupported_parameter"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "invalid_messages"),
    *[({"messages": [{"role": "assistant", "content": "a", "tool_calls": value}]}, "invalid_messages")
      for value in (False, 0, "", {}, [{"type": "custom", "function": {"name": "f", "arguments": ""}}])],
    *[({"messages": [{"role": "assistant", "content": "a", "refusal": value}]}, "invalid_messages")
      for value in (1, [])],
    ({"messages": [{"role": "user", "content": "a" * 5000}]}, "too_many_tokens"),
    ({"messages": [{"role": "user", "content": "no such word " * 100}]}, "context_length_exceeded"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "code"), REFUSED, ids=range(len(REFUSED)))
def test_bad_messages_are_refused(some_tokenizer: Tokenizer, changes: dict[str, object], code: str) -> None:
    error = refusal(some_tokenizer, **changes)
    assert (error.code, error.param) == (code, "messages")


REFUSED_FIELDS = [
    *[("max_tokens", value, "invalid_max_tokens") for value in (2**31, 10**30)],
    *[("max_tokens", value, "invalid_max_tokens") for value in (0, -1, 1.0, True, "1")],
    ("max_completion_tokens", 0, "invalid_max_completion_tokens"),
    *[("tools", value, "unsupported_parameter") for value in ([{}], {}, "a")],
    *[("tool_choice", value, "unsupported_parameter") for value in ("auto", "required", {})],
    *[("response_format", value, "unsupported_parameter") for value in ({"type": "json_object"}, {}, "text")],
    ("modalities", ["text", "audio"], "unsupported_parameter"),
    ("audio", {}, "unsupported_parameter"),
    ("functions", [{}], "unsupported_parameter"),
    ("logprobs", 5, "invalid_logprobs"),
    *[("top_logprobs", value, "invalid_top_logprobs") for value in (1, 21, -1, True, "5")],
    ("stream", 1, "invalid_stream"),
    *[("stream_options", value, "invalid_stream_options") for value in ({"include_usage": True}, [], {"a": True})],
    ("continue_final_message", "yes", "invalid_continue_final_message"),
    ("add_generation_prompt", 1, "invalid_add_generation_prompt"),
    *[("chat_template_kwargs", value, "invalid_chat_template_kwargs")
      for value in ([], {"tools": []}, {"enable_thinking": 1}, {"date_string": "a" * 101}, {"date_string": "\ud83d"})],
    ("labels", [], "empty_labels"),
    ("labels", ["this is not one token"], "label_not_single_token"),
    ("label_token_ids", [[1], [2]], "label_count_mismatch"),
    ("label_token_ids", [[1]], "invalid_label_token_ids_type"),
    ("label_token_ids", [2000], "token_id_exceeds_vocab"),
    ("label_token_ids", [1, 2, 3, 4, 5], "too_many_labels"),
    ("cache_salt", 1, "invalid_cache_salt_type"),
    ("model", "other", "model_not_found"),
    ("user", 1, "invalid_user"),
    ("n", 0, "invalid_n"),
    ("temperature", 3, "invalid_temperature"),
    ("massages", [], "unknown_parameter"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "code"), REFUSED_FIELDS, ids=range(len(REFUSED_FIELDS)))
def test_bad_fields_are_refused_by_name(some_tokenizer: Tokenizer, name: str, value: object, code: str) -> None:
    error = refusal(some_tokenizer, **{name: value})
    assert (error.code, error.param) == (code, name)
    assert name in error.message or code.partition("_")[0] not in ("invalid", "unsupported", "unknown")


def test_continuing_a_message_is_not_beginning_another(some_tokenizer: Tokenizer) -> None:
    error = refusal(some_tokenizer, continue_final_message=True, add_generation_prompt=True)
    assert (error.code, error.param) == ("invalid_continue_final_message", "continue_final_message")


def test_an_answer_of_more_tokens_is_a_sequence_for_each_choice(some_tokenizer: Tokenizer) -> None:
    fields = {"n": 3, "seed": 5, "logprobs": True, "top_logprobs": 2, "stop": "a", "stop_token_ids": [9]}
    parsed = pickle.loads(pickle.dumps(parse(some_tokenizer, max_tokens=7, cache_salt="s", top_k=4, **fields)))
    assert parsed.requests == ()
    assert parsed.options.stops == Stops(("a",), frozenset([9]))
    (first, *_) = parse(some_tokenizer, seed=5).requests
    for number, sequence in enumerate(parsed.sequences):
        assert sequence.prompt.tolist() == first.query.tolist()
        assert (sequence.max_new_tokens, sequence.top_tokens, sequence.cache_salt) == (7, 2, "s")
        assert sequence.end_ids == some_tokenizer.end_ids | {9}
        assert sequence.sampling.keys.tolist() == sampling_keys(5, 3)[number : number + 1].tolist()
        assert sequence.sampling.top_k == 4
    assert len(parsed.sequences) == 3
    (unending,) = parse(some_tokenizer, max_tokens=2, ignore_eos=True).sequences
    assert unending.end_ids == frozenset()


def test_labels_of_a_longer_answer_are_scored_once_beside_it(some_tokenizer: Tokenizer) -> None:
    parsed = parse(some_tokenizer, max_tokens=5, n=2, label_token_ids=[1, 2], logprobs=True, top_logprobs=3)
    (request,) = parsed.requests
    assert (request.num_items, request.sampling, request.top_tokens, len(parsed.sequences)) == (1, None, 0, 2)


def test_without_a_number_an_answer_has_what_fits(some_tokenizer: Tokenizer) -> None:
    def longest(limits: Limits, **fields: object) -> int:
        return parse(some_tokenizer, limits, max_tokens=None, **fields).sequences.max_new_tokens

    tokens = parse(some_tokenizer).prompt_tokens
    assert longest(LIMITS) == LIMITS.context_length - tokens
    assert longest(replace(LIMITS, max_request_tokens=tokens + 40), n=4) == 10
    assert longest(replace(LIMITS, max_scores=60), n=2, logprobs=True, top_logprobs=4) == 6
    assert parse(some_tokenizer, max_tokens=9, max_completion_tokens=3).sequences.max_new_tokens == 3


def test_what_an_answer_may_cost_is_bounded(some_tokenizer: Tokenizer) -> None:
    room = LIMITS.context_length - parse(some_tokenizer).prompt_tokens
    assert parse(some_tokenizer, max_tokens=room).sequences
    assert refusal(some_tokenizer, max_tokens=room + 1).code == "context_length_exceeded"
    error = refusal(some_tokenizer, replace(LIMITS, max_request_tokens=100), max_completion_tokens=50, n=2)
    assert (error.code, error.param) == ("too_many_tokens", "max_completion_tokens")
    error = refusal(some_tokenizer, replace(LIMITS, max_scores=99), max_tokens=50, n=2)
    assert (error.code, error.param) == ("too_many_tokens", "max_tokens")


def test_answers_are_counted_before_messages_are_rendered(some_tokenizer: Tokenizer) -> None:
    narrow = replace(LIMITS, max_sequences=3)
    for count in (1, 2, None):
        assert parse(some_tokenizer, narrow, max_tokens=count, n=3).num_sequences == 3
        error = refusal(some_tokenizer, narrow, max_tokens=count, n=4)
        assert (error.code, error.param) == ("too_many_sequences", "n")


def test_without_a_template_the_task_is_not_supported(small_tokenizer) -> None:
    for tokenizer in (None, Tokenizer(small_tokenizer("qwen"))):
        error = refusal(tokenizer)
        assert error.code == "task_not_supported"
        assert "--chat-template" in error.message


def test_messages_become_what_templates_read() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c", "name": "d"},
        {"role": "assistant", "content": None, "refusal": None, "audio": None, "tool_calls": [call]},
        {"role": "tool", "content": "e", "tool_call_id": "1"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "tool_calls": None},
    ]
    assert read_messages(messages) == [
        {"role": "system", "content": "a\nb"},
        {"role": "user", "content": "c", "name": "d"},
        {"role": "assistant", "content": "",
         "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": [1]}}}]},
        {"role": "tool", "content": "e", "tool_call_id": "1"},
        {"role": "assistant", "content": "No."},
    ]  # fmt: skip


@pytest.mark.parametrize("depth", [900, 5000])
def test_arguments_nested_too_deeply_are_refused(some_tokenizer: Tokenizer, depth: int) -> None:
    arguments = '{"":' * depth + "1" + "}" * depth
    call = {"function": {"name": "f", "arguments": arguments}}
    assert refusal(some_tokenizer, messages=[{"role": "assistant", "tool_calls": [call]}]).code == "invalid_messages"


def test_log_probabilities_are_of_the_models_own_distribution(some_tokenizer: Tokenizer) -> None:
    fields = {"n": 2, "logprobs": True, "top_logprobs": 2, "label_token_ids": [1, 3, 1], "temperature": 0.5}
    parsed = parse(some_tokenizer, **fields, logit_bias={"3": 50})
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32)) + np.float32(3)
    rows = np.tile(logits, (2, 1))
    output = EngineOutput(
        logits=rows[:, [1, 3, 1]], log_sum_exp=np.full(2, 3, np.float32), cached_tokens=4,
        top_ids=np.array([[0, 1], [0, 1]], np.int32), top_logits=rows[:, :2],
        next_ids=np.array([3, 0], np.int32), next_logits=logits[[3, 0]],
    )  # fmt: skip
    result = CHAT.finish(parsed, (output,))
    assert [token.token_id for token in result.tokens] == [3, 0]
    np.testing.assert_allclose(np.exp([token.logprob for token in result.tokens]), [0.125, 0.5], rtol=1e-6)
    for token in result.tokens:
        assert token.top_ids.tolist() == [0, 1]
        np.testing.assert_allclose(np.exp(token.top_logprobs), [0.5, 0.25], rtol=1e-6)
    np.testing.assert_allclose(np.exp(result.label_logprobs), [0.25, 0.125, 0.25], rtol=1e-6)
    assert result.label_ids.tolist() == [1, 3, 1]
    assert (result.usage.prompt_tokens, result.usage.cached_tokens) == (len(prompt(parsed)), 4)


def test_without_labels_and_top_tokens_there_are_none(some_tokenizer: Tokenizer) -> None:
    parsed = parse(some_tokenizer)
    normaliser, drawn = np.ones(1, np.float32), np.zeros(1, np.int32)
    output = EngineOutput(np.zeros((1, 0), np.float32), normaliser, next_ids=drawn, next_logits=normaliser)
    result = CHAT.finish(parsed, (output,))
    (token,) = result.tokens
    assert token.top_ids.shape == token.top_logprobs.shape == result.label_logprobs.shape == (0,)
    with pytest.raises(ValueError, match="next_ids"):
        CHAT.finish(parsed, (EngineOutput(np.zeros((1, 0), np.float32), normaliser),))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
contents = st.text(max_size=30) | st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text()}) | anything
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]) | anything},
        optional={"content": contents | anything, "name": anything, "tool_calls": anything, "refusal": anything},
    ),
    max_size=4,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    given=st.dictionaries(st.sampled_from(FIELDS), anything, max_size=3),
    chat=messages | st.just(MESSAGES) | anything,
)
def test_anything_is_a_request_or_an_error_of_it(some_tokenizer: Tokenizer, given, chat) -> None:
    try:
        parsed = parse(some_tokenizer, **({"messages": chat} | given))
    except RequestError as refused:
        message, param = refused.message, refused.param
    else:
        assert 0 < len(prompt(parsed)) <= LIMITS.context_length
        return
    assert 0 < len(message) <= 500
    assert param is None or isinstance(param, str)
