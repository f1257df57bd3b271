"""Chat: what the model answers, and how likely labels are as the first token of that.

An answer of one token is a score; where it may have more, all of it is written as a sequence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32

from mis_core.errors import RequestError
from mis_core.requests import MAX_TOP_TOKENS, EngineOutput, NewToken, ScoreRequest
from mis_core.tasks.fields.labels import check_label_count, label_matrix, read_labels
from mis_core.tasks.fields.openai import (
    check_ignored,
    check_model,
    read_flag,
    read_stream,
    read_whole,
    refuse_unsupported,
)
from mis_core.tasks.fields.values import check_characters, check_names, kind, read_optional_text, readable
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Task
from mis_core.tasks.probabilities import normalised
from mis_core.tasks.served import check_task
from mis_core.tasks.text.messages import count_characters, read_messages
from mis_core.tasks.text.prompt_groups import Prompts
from mis_core.tasks.text.sampling import SAMPLING_FIELDS, Stops, read_draws, read_sampling, read_stops
from mis_core.tasks.text.sequences import Sequences, check_new_tokens, check_sequences, no_sequences
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
class ParsedChat:
    """A chat as the engine computes it, and how it is to be answered.

    Attributes:
        requests: At most one, of the prompt as the query and empty items: one for each choice of one token, or one for
            labels.
        sequences: What the engine writes, one for each choice that may have more tokens.
        prompt_tokens: Tokens of the prompt.
        logprobs: Whether log-probabilities are in the answer.
        stops: What ends an answer.
        stream: Whether the answer is sent as events.
        include_usage: Whether an event at the end says the usage.
    """

    requests: tuple[ScoreRequest, ...]
    sequences: Sequences
    prompt_tokens: int
    logprobs: bool
    stops: Stops
    stream: bool
    include_usage: bool

    @property
    def num_sequences(self) -> int:
        """Answers that are written, or drawn several to a prompt."""
        drawn = sum(request.num_items for request in self.requests if request.sampling is not None)
        return len(self.sequences) or (drawn if drawn > 1 else 0)


@dataclass(frozen=True, slots=True, eq=False)
class ChatResult:
    """What scores say of the prompt's next token.

    Log-probabilities are natural, of the model's own distribution: before temperature, bias and `top_p`.

    Attributes:
        token_ids: The token of each choice, `[choices]`; none where choices may have more.
        token_logprobs: Their log-probabilities, `[choices]`.
        top_ids: The most probable tokens, best first, `[top_logprobs]`; the same whatever is drawn, as are labels.
        top_logprobs: Their log-probabilities, `[top_logprobs]`.
        label_ids: The labels that were asked for, `[labels]`.
        label_logprobs: Their log-probabilities, `[labels]`.
        label_probabilities: Their probabilities over the full vocabulary, `[labels]`.
        usage: Token counts.
    """

    token_ids: Int32[np.ndarray, " choices"]
    token_logprobs: Float32[np.ndarray, " choices"]
    top_ids: Int32[np.ndarray, " top_logprobs"]
    top_logprobs: Float32[np.ndarray, " top_logprobs"]
    label_ids: Int32[np.ndarray, " labels"]
    label_logprobs: Float32[np.ndarray, " labels"]
    label_probabilities: Float32[np.ndarray, " labels"]
    usage: Usage

    @property
    def tokens(self) -> list[NewToken]:
        """The token of each choice, if they have one."""
        rows = zip(self.token_ids.tolist(), self.token_logprobs.tolist(), strict=True)
        return [NewToken(token, logprob, self.top_ids, self.top_logprobs, "length") for token, logprob in rows]


def parse_chat(
    fields: Mapping[str, object],
    tokenizer: Tokenizer | None,
    limits: Limits,
    served_models: tuple[str, ...] | None = None,
) -> ParsedChat:
    """Validate the fields of a chat, render its messages and tokenise them.

    Args:
        fields: The JSON object of `POST /v1/chat/completions`.
        tokenizer: The model's, with its chat template.
        limits: What the request may ask for.
        served_models: Names that the field `model` may have; None allows every name.

    Raises:
        RequestError: the request breaks the contract; `code` and `param` say where.
    """
    check_names(fields, FIELDS)
    messages = read_messages(fields.get("messages"))
    check_model(fields, served_models)
    refuse_unsupported(fields, UNSUPPORTED)
    check_ignored(fields, IGNORED)
    count = _read_max_tokens(fields)
    choices, stops = read_draws(fields), read_stops(fields, limits.vocab_size)
    check_sequences(1, choices, limits)
    sampling = read_sampling(fields, choices, limits.vocab_size)
    logprobs, top_logprobs = _read_logprobs(fields)
    stream, include_usage = read_stream(fields)
    cache_salt = read_optional_text(fields, "cache_salt")
    variables = _read_variables(fields)
    label_ids = _read_label_ids(fields, tokenizer, limits)
    characters = count_characters(messages)
    if characters > limits.max_text_characters:
        message = f"{characters} characters of text; at most {limits.max_text_characters} are allowed."
        raise RequestError("too_many_tokens", message, "messages")
    check_task("chat", tokenizer, limits)
    assert tokenizer is not None, "as checked"
    assert tokenizer.chat_template is not None, "as checked"
    text = tokenizer.chat_template.render(messages, **variables)
    check_characters(limits.max_text_characters, messages=[text])
    prompt = tokenizer.encode(text, add_special_tokens=False, field="messages")  # the template writes them itself
    _check_length(len(prompt), limits)
    if count is None:
        count = _room(len(prompt), choices, top_logprobs, limits)
    sequences = no_sequences()
    if count > 1:
        prompts, end_ids = Prompts(prompt, np.array([len(prompt)])), stops.end_ids(tokenizer)
        param = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
        check_new_tokens(prompts, choices, count, top_logprobs, limits, param, "messages")
        sequences = Sequences(prompts, count, sampling, end_ids, top_logprobs, cache_salt)
    requests: tuple[ScoreRequest, ...] = ()
    if count == 1 or label_ids.size:
        none, items = np.zeros(0, np.int32), choices if count == 1 else 1
        request = ScoreRequest(
            *join_ids(prompt, none, np.zeros(items, np.int64), item_first=False),
            label_ids,
            cache_salt=cache_salt,
            empty_items=items,
            top_tokens=top_logprobs if count == 1 else 0,
            sampling=sampling if count == 1 else None,
        )
        requests = (request,)
    return ParsedChat(requests, sequences, len(prompt), logprobs, stops, stream, include_usage)


def finish_chat(parsed: ParsedChat, outputs: tuple[EngineOutput, ...]) -> ChatResult:
    """Turn what the engine computed into log-probabilities.

    Raises:
        ValueError: the engine's output lacks what the request needs.
        FloatingPointError: its values are not finite.
    """
    ids, values = np.zeros(0, np.int32), np.zeros(0, np.float32)
    if not parsed.requests:
        return ChatResult(ids, values, ids, values, ids, values, values, Usage(parsed.prompt_tokens, 0))
    (request,), (output,) = parsed.requests, outputs
    if output.log_sum_exp is None:
        raise ValueError("The engine normalised nothing.")
    # All items are the same segment, and have the same bits.
    normaliser = output.log_sum_exp[:1]
    labels = normalised(output.logits[:1], normaliser)[0]
    token_ids, token_logprobs, top_ids, top_logprobs = ids, values, ids, values
    if request.sampling is not None:
        if output.next_ids is None or output.next_logits is None:
            raise ValueError("The engine drew no token.")
        token_ids = output.next_ids
        token_logprobs = normalised(output.next_logits[:, None], output.log_sum_exp)[:, 0]
    if request.top_tokens:
        if output.top_ids is None or output.top_logits is None:
            raise ValueError("The engine returned no most probable tokens.")
        top_ids, top_logprobs = output.top_ids[0], normalised(output.top_logits[:1], normaliser)[0]
    result = ChatResult(
        token_ids=token_ids,
        token_logprobs=token_logprobs,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        label_ids=request.label_ids[0],
        label_logprobs=labels,
        label_probabilities=np.exp(labels),
        usage=Usage(request.prompt_tokens, output.cached_tokens),
    )
    if not all(np.isfinite(values).all() for values in (result.token_logprobs, result.top_logprobs, labels)):
        raise FloatingPointError("The engine returned log-probabilities that are not finite.")
    return result


CHAT: Task[ParsedChat, ChatResult] = Task("chat", parse_chat, finish_chat)


def _read_max_tokens(fields: Mapping[str, object]) -> int | None:
    """Read how many tokens an answer has at most; None: as many as fit. The newer of the two names counts."""
    names = ("max_completion_tokens", "max_tokens")
    given = [count for name in names if (count := read_whole(fields, name, range(1, 2**31))) is not None]
    return given[0] if given else None


def _room(prompt_tokens: int, choices: int, top_tokens: int, limits: Limits) -> int:
    """Return how many tokens each answer may have, at least 1."""
    in_request = (limits.max_request_tokens - prompt_tokens) // choices
    in_reply = limits.max_scores // (choices * (1 + top_tokens))
    return max(min(limits.context_length - prompt_tokens, in_request, in_reply), 1)


def _read_logprobs(fields: Mapping[str, object]) -> tuple[bool, int]:
    logprobs = read_flag(fields, "logprobs")
    count = read_whole(fields, "top_logprobs", range(MAX_TOP_TOKENS + 1))
    if count is not None and not logprobs and count:
        raise RequestError("invalid_top_logprobs", "top_logprobs needs logprobs: true.", "top_logprobs")
    return logprobs, count or 0


def _read_variables(fields: Mapping[str, object]) -> dict[str, Any]:
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


def _read_label_ids(
    fields: Mapping[str, object], tokenizer: Tokenizer | None, limits: Limits
) -> Int32[np.ndarray, "1 labels"]:
    """Return the ids of the labels, none if there are none."""
    if fields.get("labels") is None and fields.get("label_token_ids") is None:
        return np.zeros((1, 0), np.int32)
    labels = read_labels(fields, num_items=1)
    check_label_count(len(labels.texts), "labels", limits)
    check_characters(limits.max_text_characters, labels=labels.texts)
    if labels.texts and tokenizer is None:
        raise RequestError("invalid_labels_type", "This engine has no tokenizer: send label_token_ids.", "labels")
    ids = labels.look_up(tokenizer)
    if ids.is_nested:
        message = "label_token_ids must be one list of token ids."
        raise RequestError("invalid_label_token_ids_type", message, "label_token_ids")
    ids.check_below(limits.vocab_size)
    check_label_count(ids.longest, ids.param, limits)
    return label_matrix(ids)


def _check_length(tokens: int, limits: Limits) -> None:
    if not tokens:
        raise RequestError("invalid_messages", "The chat template makes no text of these messages.", "messages")
    if tokens > limits.context_length:
        message = f"The messages have {tokens} tokens; the context holds {limits.context_length}."
        raise RequestError("context_length_exceeded", message, "messages")
    if tokens > limits.max_request_tokens:
        message = f"The messages have {tokens} tokens; at most {limits.max_request_tokens} are allowed."
        raise RequestError("too_many_tokens", message, "messages")
