"""Bodies of requests that are answered with text: completions, chats, and generations from Python.

Names and ranges are OpenAI's; `top_k`, `min_p`, `stop_token_ids`, `ignore_eos` and those of templates are vLLM's.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from mis_core.errors import RequestError
from mis_core.requests import MAX_BIASES, MAX_TOP_TOKENS
from mis_core.tasks.fields.body import (
    NO_EFFECT,
    TYPE,
    Body,
    CacheSalt,
    Count,
    ModelName,
    OnlyText,
    Text,
    TokenId,
    Tokens,
    about,
    optional,
    refused,
)
from mis_core.tasks.text.message_types import ChatMessage

MAX_DRAWS = 128
MAX_STOP_IDS = 256

NEW_TOKENS = 16
"""Most tokens of an answer where a request does not say, as in OpenAI's completions."""

_MOST_STOPS, _STOP_CHARACTERS = 16, 256
_VARIABLE_CHARACTERS = 100

_Draws = Annotated[int, Meta(ge=1, le=MAX_DRAWS)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_TopTokens = Annotated[int, Meta(ge=0, le=MAX_TOP_TOKENS)]
_Texts = Annotated[list[Text], Meta(min_length=1)]
_Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Stop = Annotated[str, Meta(min_length=1, max_length=_STOP_CHARACTERS)]
_Variable = Annotated[str, Meta(max_length=_VARIABLE_CHARACTERS)]
_Id = Annotated[str, Meta(pattern="^[0-9]+$")]
_Nothing = Annotated[list[Any], Meta(max_length=0)]

Prompt = Annotated[
    Any,
    about(
        "The text to continue, or several of one kind. None may be empty.",
        noun="a text, a list of token ids, or a list of either",
        schemas=(Text, Tokens, _Texts, Annotated[list[Tokens], Meta(min_length=1)]),
    ),
]
"""The type of the field `prompt`."""

_AddSpecialTokens = Annotated[
    bool, optional("Add the tokenizer's special tokens, such as BOS, to texts that do not begin with them.", wrong=TYPE)
]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What events hold besides the answer."""

    include_usage: Annotated[bool, Meta(description="Send token counts in an event of their own, before the last.")] = (
        False
    )
    include_obfuscation: bool = False


class AnswerBody(Body, frozen=True, kw_only=True):
    """How next tokens are drawn, and where an answer ends."""

    temperature: Annotated[
        float,
        Meta(ge=0, le=2),
        optional("Divides the logits. Below 0.00001, the most probable token is taken, the lowest id among equals."),
    ] = 1.0
    top_p: Annotated[
        _Share, optional("Draw from the smallest set of most probable tokens whose probabilities reach this sum.")
    ] = 1.0
    top_k: Annotated[
        int, Meta(ge=-1, lt=(1 << 31) - 1), optional("Draw from this many most probable tokens. 0 and -1 mean all.")
    ] = 0
    min_p: Annotated[
        _Share, optional("Draw from tokens at least this fraction as probable as the most probable one.")
    ] = 0.0
    presence_penalty: Annotated[_Penalty, optional("Subtracted from the logits of tokens already in the answer.")] = 0.0
    frequency_penalty: Annotated[
        _Penalty, optional("Subtracted from a token's logit once for each time it is in the answer.")
    ] = 0.0
    seed: Annotated[_Seed | None, about("Makes the draw repeatable. By default the operating system chooses one.")] = (
        None
    )
    logit_bias: Annotated[
        Any,
        about(
            f"Added to the logits before a token is drawn: numbers from -100 to 100 for at most {MAX_BIASES} tokens.",
            noun="an object of numbers by token id",
            schemas=(dict[_Id, Annotated[float, Meta(ge=-100, le=100)]], None),
        ),
    ] = None
    n: Annotated[_Draws, optional("Number of answers to each prompt. Above 1, at most 256 prompts are allowed.")] = 1
    stop: Annotated[
        _Stop | Annotated[list[_Stop], Meta(max_length=_MOST_STOPS)] | None,
        about(
            "An answer ends before the first of these.",
            noun=f"a text of 1 to {_STOP_CHARACTERS} characters, or a list of at most {_MOST_STOPS}",
        ),
    ] = None
    stop_token_ids: Annotated[
        Any,
        about(
            f"An answer ends with the first of these; at most {MAX_STOP_IDS}.",
            noun="a list of token ids",
            schemas=(list[TokenId], None),
        ),
    ] = None
    ignore_eos: Annotated[bool, optional("Continue past the tokens that end the model's answers.")] = False
    cache_salt: CacheSalt = None


class GenerateBody(AnswerBody, frozen=True, kw_only=True):
    """Keyword arguments of `Engine.generate`."""

    prompt: Prompt
    max_new_tokens: Annotated[Count, optional("Most tokens of an answer.")] = NEW_TOKENS
    logprobs: Annotated[_TopTokens | None, about("Number of most probable tokens to return at each position.")] = None
    add_special_tokens: _AddSpecialTokens = True


class StreamedBody(AnswerBody, frozen=True, kw_only=True):
    """A body whose answer may be streamed."""

    stream: Annotated[
        bool, optional("Send events as tokens come. Not allowed with `best_of` above `n` and more than one token.")
    ] = False
    stream_options: Annotated[
        StreamOptions | None,
        about(
            "Needs `stream`. `include_usage` adds an event with token counts; `include_obfuscation` has no effect.",
            noun="an object of include_usage and include_obfuscation, true or false",
            unknown="invalid_stream_options",
        ),
    ] = None
    model: ModelName = None
    user: Annotated[str | None, NO_EFFECT] = None


def stream_of(body: StreamedBody) -> tuple[bool, bool]:
    """Return whether an answer is sent as events, and whether one of them says the usage.

    Raises:
        RequestError: `invalid_stream_options`.
    """
    if body.stream_options is not None and not body.stream:
        raise RequestError("invalid_stream_options", "stream_options needs stream: true.", "stream_options")
    return body.stream, body.stream_options is not None and body.stream_options.include_usage


class CompletionBody(StreamedBody, frozen=True, kw_only=True):
    """Fields of `POST /v1/completions`."""

    prompt: Prompt
    max_tokens: Annotated[
        Annotated[int, Meta(ge=0, lt=1 << 31)] | None,
        about("Maximum tokens of an answer; 16 by default, or fewer if the context is full. 0 needs `echo`."),
    ] = None
    echo: Annotated[bool, optional("Repeat the prompt, and its log-probabilities if asked for, before the answer.")] = (
        False
    )
    logprobs: Annotated[
        _TopTokens | None,
        about("Return the log-probability of each token and of this many most probable alternatives."),
    ] = None
    best_of: Annotated[
        _Draws | None,
        about("Draw this many answers, at least `n`, and return the `n` most probable. At most 256 prompts."),
    ] = None
    add_special_tokens: _AddSpecialTokens = True
    suffix: Annotated[Literal[""] | None, refused('""')] = None


class TemplateVariables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a chat template may read besides the messages. What a request leaves out, the template does not get."""

    enable_thinking: bool | UnsetType = UNSET
    thinking: bool | UnsetType = UNSET
    reasoning_effort: _Variable | UnsetType = UNSET
    date_string: _Variable | UnsetType = UNSET


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The only format of an answer."""

    type: Literal["text"]


class ChatBody(StreamedBody, frozen=True, kw_only=True):
    """Fields of `POST /v1/chat/completions`."""

    messages: Annotated[
        Any,
        about(
            "The chat so far; at most 4,096 messages.",
            noun="a list of messages",
            schemas=(Annotated[list[ChatMessage], Meta(min_length=1)],),
        ),
    ]
    max_tokens: Annotated[
        Count | None, about("Maximum tokens of an answer. By default, as many as fit in the context.")
    ] = None
    max_completion_tokens: Annotated[Count | None, about("The same as `max_tokens`, and takes precedence.")] = None
    logprobs: Annotated[bool, optional("Return the log-probabilities of the answer's tokens.")] = False
    top_logprobs: Annotated[
        _TopTokens, optional("Also return this many most probable alternatives at each position; needs `logprobs`.")
    ] = 0
    labels: Annotated[
        Any,
        about(
            "Return the log-probability of each as the first token of the answer; each must be a single token.",
            noun="a list of texts",
            schemas=(Annotated[list[str], Meta(min_length=1)], None),
        ),
    ] = None
    label_token_ids: Annotated[
        Any, about("The same as `labels`, as token ids.", noun="a list of token ids", schemas=(Tokens, None))
    ] = None
    chat_template_kwargs: Annotated[
        TemplateVariables | None,
        about(
            "Variables for the template: `enable_thinking` and `thinking` (true or false), "
            f"`reasoning_effort` and `date_string` (texts of at most {_VARIABLE_CHARACTERS} characters).",
            unknown="invalid_chat_template_kwargs",
        ),
    ] = None
    add_generation_prompt: Annotated[
        bool | None,
        about("End the prompt where the answer begins. True by default, unless `continue_final_message` is set."),
    ] = None
    continue_final_message: Annotated[bool, optional("Continue the last message instead of beginning an answer.")] = (
        False
    )
    metadata: Annotated[dict[str, Any] | None, NO_EFFECT] = None
    parallel_tool_calls: Annotated[bool | None, NO_EFFECT] = None
    prediction: Annotated[dict[str, Any] | None, NO_EFFECT] = None
    prompt_cache_key: Annotated[str | None, NO_EFFECT] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, NO_EFFECT] = None
    prompt_cache_retention: Annotated[str | None, NO_EFFECT] = None
    reasoning_effort: Annotated[str | None, NO_EFFECT] = None
    safety_identifier: Annotated[str | None, NO_EFFECT] = None
    service_tier: Annotated[str | None, NO_EFFECT] = None
    store: Annotated[bool | None, NO_EFFECT] = None
    verbosity: Annotated[str | None, NO_EFFECT] = None
    tools: Annotated[_Nothing | None, refused("[]")] = None
    tool_choice: Annotated[Literal["none"] | None, refused('"none"')] = None
    functions: Annotated[_Nothing | None, refused("[]")] = None
    function_call: Annotated[Literal["none"] | None, refused('"none"')] = None
    response_format: Annotated[TextFormat | None, refused('{"type": "text"}')] = None
    modalities: Annotated[OnlyText | None, refused('["text"]')] = None
    audio: Annotated[None, refused()] = None
    moderation: Annotated[None, refused()] = None
    web_search_options: Annotated[None, refused()] = None
