"""Chat: what the model answers, and how likely labels are as the first token of that.

An answer of one token is a score; where it may have more, all of it is written as a sequence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32

from mis_core.errors import RequestError
from mis_core.requests import MAX_TOP_TOKENS, EngineOutput, ScoreRequest
from mis_core.tasks.fields.labels import label_matrix, read_labels
from mis_core.tasks.fields.openai import (
    check_ignored,
    check_model,
    read_flag,
    read_stream,
    read_whole,
    refuse_unsupported,
)
from mis_core.tasks.fields.values import check_characters, check_count, check_names, kind, read_optional_text, readable
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Fields, ServedModels, Task
from mis_core.tasks.probabilities import check_finite
from mis_core.tasks.served import check_task
from mis_core.tasks.text.messages import count_characters, read_messages
from mis_core.tasks.text.parsed import ParsedText, TextResult
from mis_core.tasks.text.prompt_groups import Prompts
from mis_core.tasks.text.row_logprobs import RowLogprobs
from mis_core.tasks.text.sampling import SAMPLING_FIELDS, read_draws, read_sampling, read_stops
from mis_core.tasks.text.sequences import NO_SEQUENCES, AnswerOptions, check_sequences, sequences_behind
from mis_core.tasks.usage import Usage
from mis_core.tokenization import Tokenizer, join_ids

IGNORED = (
    "metadata", "parallel_tool_calls", "prediction", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "reasoning_effort", "safety_identifier", "service_tier", "store",
    "user", "verbosity",
)  # fmt: skip
"""Fields that change nothing here."""

UNSUPPORTED = {
    "tools": lambda value: value == [],
    "tool_choice": lambda value: value == "none",
    "functions": lambda value: value == [],
    "function_call": lambda value: value == "none",
    "response_format": lambda value: value == {"type": "text"},
    "modalities": lambda value: value == ["text"],
    "audio": lambda value: False,
    "moderation": lambda value: False,
    "web_search_options": lambda value: False,
}
"""Fields that are refused, each with what is harmless."""

FIELDS = (
    "messages", "model", "max_tokens", "max_completion_tokens", *SAMPLING_FIELDS, "logprobs", "top_logprobs", "stream",
    "stream_options", "labels", "label_token_ids", "cache_salt", "chat_template_kwargs", "add_generation_prompt",
    "continue_final_message", *IGNORED, *UNSUPPORTED,
)  # fmt: skip
"""Every field of a request."""

TEMPLATE_VARIABLES: dict[str, type] = {
    "enable_thinking": bool,
    "thinking": bool,
    "reasoning_effort": str,
    "date_string": str,
}
"""What `chat_template_kwargs` may hold."""

_MAX_VARIABLE_CHARACTERS = 100


@dataclass(frozen=True, slots=True, eq=False)
class ParsedChat(ParsedText):
    """A chat as the engine computes it: at most one request, of the prompt as the query and empty items.

    The items are one for each choice of one token, or one for labels.

    Attributes:
        prompt_tokens: Tokens of the prompt.
    """

    prompt_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class ChatResult(TextResult):
    """What scores say of the prompt's next token.

    Attributes:
        label_ids: The labels that were asked for, `[labels]`.
        label_logprobs: Their log-probabilities, `[labels]`; the same whatever is drawn.
    """

    label_ids: Int32[np.ndarray, " labels"]
    label_logprobs: Float32[np.ndarray, " labels"]

    @property
    def label_probabilities(self) -> Float32[np.ndarray, " labels"]:
        """Probabilities of the labels over the full vocabulary, `[labels]`."""
        return np.exp(self.label_logprobs)


def parse_chat(
    fields: Fields, tokenizer: Tokenizer | None, limits: Limits, served_models: ServedModels = None
) -> ParsedChat:
    """Validate the fields of a chat, render its messages and tokenise them; see `Task.parse`."""
    check_names(fields, FIELDS)
    messages = read_messages(fields.get("messages"))
    check_model(fields, served_models)
    refuse_unsupported(fields, UNSUPPORTED)
    check_ignored(fields, IGNORED)
    count = _read_max_tokens(fields)
    choices, stops = read_draws(fields), read_stops(fields, limits.vocab_size)
    check_sequences(1, choices, limits)
    sampling = read_sampling(fields, choices, limits.vocab_size)
    logprobs, (stream, include_usage) = _read_logprobs(fields), read_stream(fields)
    cache_salt = read_optional_text(fields, "cache_salt")
    options = AnswerOptions(sampling, stops, logprobs, stream, include_usage, cache_salt)
    variables = _read_variables(fields)
    label_ids = _read_label_ids(fields, tokenizer, limits)
    most = limits.max_text_characters
    check_count(count_characters(messages), most, "characters of text", "messages", "too_many_tokens")
    check_task("chat", tokenizer, limits)
    assert tokenizer is not None, "as checked"
    assert tokenizer.chat_template is not None, "as checked"
    text = tokenizer.chat_template.render(messages, **variables)
    check_characters(most, messages=[text])
    prompt = tokenizer.encode(text, add_special_tokens=False, field="messages")  # the template writes them itself
    _check_length(len(prompt), limits)
    if count is None:
        count = _room(len(prompt), options, limits)
    sequences = NO_SEQUENCES
    if count > 1:
        param = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
        prompts = Prompts(prompt, np.array([len(prompt)]))
        sequences = sequences_behind(prompts, count, options, tokenizer, limits, param, "messages")
    is_drawn = count == 1
    requests = (_request(prompt, label_ids, options, is_drawn=is_drawn),) if is_drawn or label_ids.size else ()
    return ParsedChat(options, requests, sequences, len(prompt))


def finish_chat(parsed: ParsedChat, outputs: tuple[EngineOutput, ...]) -> ChatResult:
    """Turn what the engine computed into log-probabilities; see `Task.finish`."""
    if not parsed.requests:
        return ChatResult([], Usage(parsed.prompt_tokens), np.zeros(0, np.int32), np.zeros(0, np.float32))
    (request,), (output,) = parsed.requests, outputs
    reads = RowLogprobs.of(parsed.requests, outputs)
    labels = reads.label_logprobs[0]  # all items are the same segment, and have the same bits
    check_finite(labels, what="log-probabilities")
    return ChatResult(reads.tokens, Usage(request.prompt_tokens, output.cached_tokens), request.label_ids[0], labels)


CHAT: Task[ParsedChat, ChatResult] = Task("chat", parse_chat, finish_chat)


def _request(
    prompt: Int32[np.ndarray, " query_tokens"],
    label_ids: Int32[np.ndarray, "1 labels"],
    options: AnswerOptions,
    *,
    is_drawn: bool,
) -> ScoreRequest:
    """Return what is scored behind a prompt: an item for each choice whose only token is drawn, or one for labels."""
    none, items = np.zeros(0, np.int32), options.draws if is_drawn else 1
    return ScoreRequest(
        *join_ids(prompt, none, np.zeros(items, np.int64), item_first=False),
        label_ids,
        cache_salt=options.cache_salt,
        empty_items=items,
        top_tokens=options.top_tokens if is_drawn else 0,
        sampling=options.sampling if is_drawn else None,
    )


def _read_max_tokens(fields: Fields) -> int | None:
    """Read how many tokens an answer has at most; None: as many as fit. The newer of the two names counts."""
    names = ("max_completion_tokens", "max_tokens")
    given = [count for name in names if (count := read_whole(fields, name, range(1, 2**31))) is not None]
    return given[0] if given else None


def _room(prompt_tokens: int, options: AnswerOptions, limits: Limits) -> int:
    """Return how many tokens each answer may have, at least 1."""
    in_request = (limits.max_request_tokens - prompt_tokens) // options.draws
    in_reply = limits.max_scores // (options.draws * (1 + options.top_tokens))
    return max(min(limits.context_length - prompt_tokens, in_request, in_reply), 1)


def _read_logprobs(fields: Fields) -> int | None:
    """Read how many of the most probable tokens are told with each; None: no log-probabilities at all."""
    logprobs = read_flag(fields, "logprobs")
    count = read_whole(fields, "top_logprobs", range(MAX_TOP_TOKENS + 1)) or 0
    if count and not logprobs:
        raise RequestError("invalid_top_logprobs", "top_logprobs needs logprobs: true.", "top_logprobs")
    return count if logprobs else None


def _read_variables(fields: Fields) -> dict[str, Any]:
    """Read what the template gets beside the messages."""
    continues = read_flag(fields, "continue_final_message")
    adds = read_flag(fields, "add_generation_prompt", default=not continues)
    if continues and adds:
        message = "continue_final_message needs add_generation_prompt: false."
        raise RequestError("invalid_continue_final_message", message, "continue_final_message")
    variables: dict[str, Any] = {"add_generation_prompt": adds}
    if continues:
        variables["continue_final_message"] = True
    param = "chat_template_kwargs"
    given = fields.get(param)
    if given is None:
        return variables
    if not isinstance(given, Mapping):
        raise RequestError(f"invalid_{param}", f"{param} must be an object, not {kind(given)}.", param)
    for name, value in given.items():
        if name not in TEMPLATE_VARIABLES or type(value) is not TEMPLATE_VARIABLES[name]:
            known = ", ".join(f"{each} ({of.__name__})" for each, of in TEMPLATE_VARIABLES.items())
            raise RequestError(f"invalid_{param}", f"{param} may hold {known} only.", param)
        if isinstance(value, str):
            if len(value) > _MAX_VARIABLE_CHARACTERS:
                message = f"Texts in {param} have at most {_MAX_VARIABLE_CHARACTERS} characters."
                raise RequestError(f"invalid_{param}", message, param)
            readable(value, param, f"invalid_{param}")
        variables[name] = value
    return variables


def _read_label_ids(fields: Fields, tokenizer: Tokenizer | None, limits: Limits) -> Int32[np.ndarray, "1 labels"]:
    """Return the ids of the labels, none if there are none."""
    if fields.get("labels") is None and fields.get("label_token_ids") is None:
        return np.zeros((1, 0), np.int32)
    labels = read_labels(fields, num_items=1)
    check_count(len(labels.texts), limits.max_labels, "labels", "labels", "too_many_labels")
    check_characters(limits.max_text_characters, labels=labels.texts)
    if labels.texts and tokenizer is None:
        raise RequestError("invalid_labels_type", "This engine has no tokenizer: send label_token_ids.", "labels")
    ids = labels.look_up(tokenizer)
    if ids.is_nested:
        message = "label_token_ids must be one list of token ids."
        raise RequestError("invalid_label_token_ids_type", message, "label_token_ids")
    ids.check_below(limits.vocab_size)
    check_count(ids.longest, limits.max_labels, "labels", ids.param, "too_many_labels")
    return label_matrix(ids)


def _check_length(tokens: int, limits: Limits) -> None:
    if not tokens:
        raise RequestError("invalid_messages", "The chat template makes no text of these messages.", "messages")
    if tokens > limits.context_length:
        message = f"The messages have {tokens} tokens; the context holds {limits.context_length}."
        raise RequestError("context_length_exceeded", message, "messages")
    limits.check_tokens(tokens, "The messages", "messages")
