"""Bodies of requests that are answered with text: completions, chats, and generations from Python.

Names and ranges are OpenAI's; `top_k`, `min_p`, `stop_token_ids`, `ignore_eos` and those of templates are vLLM's.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

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

MAX_DRAWS = 128
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_IDS = 256

NEW_TOKENS = 16
"""Most tokens of an answer where a request does not say, as in OpenAI's completions."""

_Draws = Annotated[int, Meta(ge=1, le=MAX_DRAWS)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_TopTokens = Annotated[int, Meta(ge=0, le=MAX_TOP_TOKENS)]
_Texts = Annotated[list[Text], Meta(min_length=1)]
_Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Id = Annotated[str, Meta(pattern="^[0-9]+$")]
_Nothing = Annotated[list[Any], Meta(max_length=0)]

Prompt = Annotated[
    Any,
    about(
        "What an answer follows, or several of them, of one kind; none is empty.",
        noun="a text, a list of token ids, or a list of either",
        schemas=(Text, Tokens, _Texts, Annotated[list[Tokens], Meta(min_length=1)]),
    ),
]
"""The type of the field `prompt`."""

_AddSpecialTokens = Annotated[
    bool, optional("Add the tokenizer's special tokens, such as BOS, to texts without them.", wrong=TYPE)
]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is sent in events beside the answer."""

    include_usage: Annotated[bool, Meta(description="Send the usage in an event of its own, before the last.")] = False
    include_obfuscation: bool = False


class AnswerBody(Body, frozen=True, kw_only=True):
    """How next tokens are drawn, and where an answer ends."""

    temperature: Annotated[
        float,
        Meta(ge=0, le=2),
        optional("Divides the logits; 0, or less than 0.00001: the most probable token, the lowest id among equals."),
    ] = 1.0
    top_p: Annotated[
        _Share, optional("Draw from the fewest most probable tokens that have this probability together.")
    ] = 1.0
    top_k: Annotated[
        int, Meta(ge=-1, lt=(1 << 31) - 1), optional("Draw from so many most probable tokens; 0 and -1: all.")
    ] = 0
    min_p: Annotated[
        _Share, optional("Draw from tokens with at least this share of the most probable one's probability.")
    ] = 0.0
    presence_penalty: Annotated[_Penalty, optional("Is taken from the logits of tokens that the answer has.")] = 0.0
    frequency_penalty: Annotated[
        _Penalty, optional("Is taken from the logits of tokens for each time that the answer has them.")
    ] = 0.0
    seed: Annotated[_Seed | None, about("Draw the same tokens again; without it the operating system draws one.")] = (
        None
    )
    logit_bias: Annotated[
        Any,
        about(
            f"Numbers from -100 to 100, for at most {MAX_BIASES} token ids: added to logits before a token is drawn.",
            noun="an object of numbers by token id",
            schemas=(dict[_Id, Annotated[float, Meta(ge=-100, le=100)]], None),
        ),
    ] = None
    n: Annotated[_Draws, optional("How many answers a prompt gets; of several there are at most 256 prompts.")] = 1
    stop: Annotated[
        Any,
        about(
            f"At most {MAX_STOPS}, of at most {MAX_STOP_CHARACTERS} characters: an answer ends before the first.",
            noun="a text, or a list of texts",
            schemas=(str, list[str], None),
        ),
    ] = None
    stop_token_ids: Annotated[
        Any,
        about(
            f"At most {MAX_STOP_IDS}: an answer ends with the first of them.",
            noun="a list of token ids",
            schemas=(list[TokenId], None),
        ),
    ] = None
    ignore_eos: Annotated[bool, optional("Go on after the tokens with which the model ends answers.")] = False
    cache_salt: CacheSalt = None


class GenerateBody(AnswerBody, frozen=True, kw_only=True):
    """Keyword arguments of `Engine.generate`."""

    prompt: Prompt
    max_new_tokens: Annotated[Count, optional("Most tokens of an answer.")] = NEW_TOKENS
    logprobs: Annotated[_TopTokens | None, about("How many of the most probable tokens are told.")] = None
    add_special_tokens: _AddSpecialTokens = True


class StreamedBody(AnswerBody, frozen=True, kw_only=True):
    """A body whose answers may be sent as events."""

    stream: Annotated[
        bool, optional("Send events as tokens come; not with a `best_of` above `n` and more than one token.")
    ] = False
    stream_options: Annotated[
        StreamOptions | None,
        about(
            "Needs `stream`. `include_usage`: an event at the end says the usage; `include_obfuscation`: no effect.",
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
        about("Most tokens of an answer; 0, with `echo`, only reads the prompt. 16, or what the context has room for."),
    ] = None
    echo: Annotated[
        bool, optional("Begin the answer with the prompt, and its log-probabilities with the prompt's.")
    ] = False
    logprobs: Annotated[
        _TopTokens | None,
        about("Return the log-probability of every token, and of so many most probable ones in its place."),
    ] = None
    best_of: Annotated[
        _Draws | None,
        about("Draw so many, at least `n`, for each of at most 256 prompts; return the `n` most probable, best first."),
    ] = None
    add_special_tokens: _AddSpecialTokens = True
    suffix: Annotated[Literal[""] | None, refused('""')] = None


class TextPart(msgspec.Struct, frozen=True):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, frozen=True):
    """A message. The role `developer` is rendered as `system`; parts are joined by line breaks."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | list[TextPart], Meta(description="A text, or parts of text. Images and audio are refused.")
    ]


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The only format of an answer."""

    type: Literal["text"]


class ChatBody(StreamedBody, frozen=True, kw_only=True):
    """Fields of `POST /v1/chat/completions`."""

    messages: Annotated[
        Any,
        about(
            "The chat so far: at most 4,096 messages.",
            noun="a list of messages",
            schemas=(Annotated[list[ChatMessage], Meta(min_length=1)],),
        ),
    ]
    max_tokens: Annotated[
        Count | None, about("Most tokens of an answer; as many as the context has room for, if it is left out.")
    ] = None
    max_completion_tokens: Annotated[Count | None, about("The same; this one counts where both are given.")] = None
    logprobs: Annotated[bool, optional("Return the log-probabilities of the answer's tokens.")] = False
    top_logprobs: Annotated[_TopTokens, optional("And of so many most probable tokens; needs `logprobs`.")] = 0
    labels: Annotated[
        Any,
        about(
            "Texts of one token each, whose log-probabilities as the answer's first token are returned.",
            noun="a list of texts",
            schemas=(Annotated[list[str], Meta(min_length=1)], None),
        ),
    ] = None
    label_token_ids: Annotated[
        Any, about("The same as token ids.", noun="a list of token ids", schemas=(Tokens, None))
    ] = None
    chat_template_kwargs: Annotated[
        Any,
        about(
            "What the template reads beside the messages: `enable_thinking` and `thinking` (true or false), "
            "`reasoning_effort` and `date_string` (texts).",
            noun="an object",
            schemas=(dict[str, bool | str], None),
        ),
    ] = None
    add_generation_prompt: Annotated[
        bool | None, about("End the prompt with the answer's beginning; true unless `continue_final_message` is.")
    ] = None
    continue_final_message: Annotated[bool, optional("Continue the last message instead.")] = False
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
