"""Chat: what the model answers, and how likely labels are as the first token of that.

An answer of one token is a score; where it may have more, all of it is written as a sequence.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Float32, Int32

from mis_core.calibration import Calibrations
from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.fields.body import check_model, read_body
from mis_core.tasks.fields.labels import label_matrix, read_labels
from mis_core.tasks.fields.values import check_characters, check_count
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Fields, ServedModels, Task
from mis_core.tasks.probabilities import check_finite
from mis_core.tasks.served import check_task
from mis_core.tasks.text.bodies import ChatBody, stream_of
from mis_core.tasks.text.messages import count_characters, read_messages
from mis_core.tasks.text.parsed import ParsedText, TextResult
from mis_core.tasks.text.prompt_groups import Prompts
from mis_core.tasks.text.row_logprobs import RowLogprobs
from mis_core.tasks.text.sampling import sampling_of, stops_of
from mis_core.tasks.text.sequences import NO_SEQUENCES, AnswerOptions, check_sequences, sequences_after
from mis_core.tasks.usage import Usage
from mis_core.tokenization import Tokenizer, join_ids


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
    body = read_body(ChatBody, fields)
    check_model(body.model, served_models)
    messages = read_messages(body.messages)
    choices, stops = body.n, stops_of(body, limits.vocab_size)
    check_sequences(1, choices, limits)
    sampling = sampling_of(body, choices, limits.vocab_size)
    options = AnswerOptions(sampling, stops, _logprobs(body), *stream_of(body), body.cache_salt)
    variables = _variables(body)
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
    param = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    count = body.max_completion_tokens or body.max_tokens
    if count is None:
        count = _room(len(prompt), options, limits)
    sequences = NO_SEQUENCES
    if count > 1:
        prompts = Prompts(prompt, np.array([len(prompt)]))
        sequences = sequences_after(prompts, count, options, tokenizer, limits, param, "messages")
    is_drawn = count == 1
    requests = (_request(prompt, label_ids, options, is_drawn=is_drawn),) if is_drawn or label_ids.size else ()
    return ParsedChat(options, requests, sequences, len(prompt))


def finish_chat(parsed: ParsedChat, outputs: tuple[EngineOutput, ...], _: Calibrations | None = None) -> ChatResult:
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


def _room(prompt_tokens: int, options: AnswerOptions, limits: Limits) -> int:
    """Return how many tokens each answer may have, at least 1."""
    in_request = (limits.max_request_tokens - prompt_tokens) // options.draws
    in_reply = limits.max_scores // (options.draws * (1 + options.top_tokens))
    return max(min(limits.context_length - prompt_tokens, in_request, in_reply), 1)


def _logprobs(body: ChatBody) -> int | None:
    """Return how many of the most probable tokens are told with each; None: no log-probabilities at all."""
    if body.top_logprobs and not body.logprobs:
        raise RequestError("invalid_top_logprobs", "top_logprobs needs logprobs: true.", "top_logprobs")
    return body.top_logprobs if body.logprobs else None


def _variables(body: ChatBody) -> dict[str, Any]:
    """Return what the template gets beside the messages."""
    continues = body.continue_final_message
    adds = not continues if body.add_generation_prompt is None else body.add_generation_prompt
    if continues and adds:
        message = "continue_final_message needs add_generation_prompt: false."
        raise RequestError("invalid_continue_final_message", message, "continue_final_message")
    variables: dict[str, Any] = {"add_generation_prompt": adds}
    if continues:
        variables["continue_final_message"] = True
    given = body.chat_template_kwargs
    if given is not None:
        variables |= {
            name: value for name, value in msgspec.structs.asdict(given).items() if value is not msgspec.UNSET
        }
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
        raise RequestError("invalid_messages", "The chat template renders these messages as an empty text.", "messages")
    if tokens > limits.context_length:
        message = f"The messages have {tokens} tokens; the context holds {limits.context_length}."
        raise RequestError("context_length_exceeded", message, "messages")
    limits.check_tokens(tokens, "The messages", "messages")
