"""Completions with at most one new token: log-probabilities of prompts' own tokens, and of what may follow them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32, Int64

from mis_core.errors import RequestError
from mis_core.ragged import offsets
from mis_core.scoring.fields import read_bool, read_optional_text
from mis_core.scoring.limits import Limits
from mis_core.scoring.request import MAX_TOP_TOKENS, EngineOutput, ScoreRequest, Usage
from mis_core.scoring.scores import normalised
from mis_core.scoring.service import Task
from mis_core.scoring.token_rows import TokenRows
from mis_core.scoring.validation import check_names
from mis_core.tasks.openai_fields import (
    check_ignored,
    check_model,
    read_flag,
    read_stream,
    read_whole,
    refuse_unsupported,
)
from mis_core.tasks.prompt_field import check_lengths, read_prompts, tokenize_prompts
from mis_core.tasks.sampling import MAX_DRAWS, SAMPLING_FIELDS, read_draws, read_sampling, read_stop
from mis_core.tasks.served import check_task
from mis_core.tasks.sharing import Prompts
from mis_core.tokenization import Tokenizer

IGNORED = ("frequency_penalty", "presence_penalty", "user")
"""Fields that change nothing where there is at most one new token."""

UNSUPPORTED = {"suffix": lambda value: value == ""}
"""Fields that are refused, each with what is harmless."""

FIELDS = (
    "prompt", "model", "max_tokens", "echo", "logprobs", *SAMPLING_FIELDS, "best_of", "stream", "stream_options",
    "cache_salt", "add_special_tokens", *IGNORED, *UNSUPPORTED,
)  # fmt: skip
"""Every field of a request."""


@dataclass(frozen=True, slots=True, eq=False)
class ParsedCompletion:
    """Prompts as the engine computes them, and how they are to be answered.

    Attributes:
        requests: What the engine computes; prompts that begin alike are one request.
        prompts: Token ids.
        texts: The prompts as they were given; None where they were ids.
        echo: Whether prompts are in the answer.
        logprobs: How many of the most probable tokens are in the answer; None for no log-probabilities at all.
        choices: Answers to each prompt.
        stop: Texts before which an answer ends.
        stream: Whether answers are sent as events.
        include_usage: Whether an event at the end says the usage.
        items: The requests' item of each draw from each prompt, `[prompts, draws]`.
        last_rows: The row of each item, at which its next token is drawn, `[items]`.
        rows: The row of each prompt token; None where only last rows are read.
    """

    requests: tuple[ScoreRequest, ...]
    prompts: Prompts
    texts: tuple[str, ...] | None
    echo: bool
    logprobs: int | None
    choices: int
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    items: Int64[np.ndarray, "prompts draws"]
    last_rows: Int64[np.ndarray, " items"]
    rows: Int64[np.ndarray, " prompt_tokens"] | None


@dataclass(frozen=True, slots=True, eq=False)
class PromptLogprobs:
    """How probable each prompt's own tokens are. What is said of the first one of each means nothing.

    Attributes:
        logprobs: Log-probability of each token after those before it, `[prompt_tokens]`.
        top_ids: The most probable tokens there, best first, `[prompt_tokens, top_logprobs]`.
        top_logprobs: Their log-probabilities.
    """

    logprobs: Float32[np.ndarray, " prompt_tokens"]
    top_ids: Int32[np.ndarray, "prompt_tokens top_logprobs"]
    top_logprobs: Float32[np.ndarray, "prompt_tokens top_logprobs"]


@dataclass(frozen=True, slots=True, eq=False)
class CompletionResult:
    """What comes after each prompt: the answers to the first prompt, then those to the next.

    Log-probabilities are natural, of the model's own distribution: before temperature, bias and `top_p`.

    Attributes:
        token_ids: The new tokens of each answer, one or none, `[choices, written]`.
        token_logprobs: Their log-probabilities.
        top_ids: The most probable tokens in place of each, best first, `[choices, written, top_logprobs]`.
        top_logprobs: Their log-probabilities.
        prompt: Log-probabilities of the prompts' tokens, if they are wanted.
        usage: Token counts; a beginning counts in each prompt that has it.
        completion_tokens: Tokens drawn, including those of answers that were not the best.
    """

    token_ids: Int32[np.ndarray, "choices written"]
    token_logprobs: Float32[np.ndarray, "choices written"]
    top_ids: Int32[np.ndarray, "choices written top_logprobs"]
    top_logprobs: Float32[np.ndarray, "choices written top_logprobs"]
    prompt: PromptLogprobs | None
    usage: Usage
    completion_tokens: int


def parse_completion(
    fields: Mapping[str, object],
    tokenizer: Tokenizer | None,
    limits: Limits,
    served_models: tuple[str, ...] | None = None,
) -> ParsedCompletion:
    """Validate the fields of a completion and tokenise its prompts.

    Args:
        fields: The JSON object of `POST /v1/completions`.
        tokenizer: The model's; needed for texts.
        limits: What the request may ask for.
        served_models: Names that the field `model` may have; None allows every name.

    Raises:
        RequestError: the request breaks the contract; `code` and `param` say where.
    """
    check_names(fields, FIELDS)
    check_task("complete", tokenizer, limits)
    given = read_prompts(fields)
    check_model(fields, served_models)
    refuse_unsupported(fields, UNSUPPORTED)
    check_ignored(fields, IGNORED)
    echo = read_flag(fields, "echo")
    new_tokens = _read_max_tokens(fields, echo)
    choices, draws = _read_draws(fields, new_tokens)
    sampling, stop = read_sampling(fields, draws, limits.vocab_size), read_stop(fields)
    logprobs = read_whole(fields, "logprobs", range(MAX_TOP_TOKENS + 1))
    stream, include_usage = read_stream(fields)
    cache_salt = read_optional_text(fields, "cache_salt")
    special = fields.get("add_special_tokens") is None or read_bool(fields, "add_special_tokens")
    prompts = tokenize_prompts(given, tokenizer, limits, draws, special)
    reads_all = echo and logprobs is not None
    check_lengths(prompts, limits, values=choices * (1 + (logprobs or 0)) if echo else 0)
    groups = list(prompts.alone(draws)) if draws > 1 else prompts.group(cached=not reads_all)
    requests = tuple(
        prompts.request(
            group,
            reads_all=reads_all,
            top_tokens=logprobs or 0,
            sampling=sampling if new_tokens else None,
            cache_salt=cache_salt,
        )
        for group in groups
    )
    members = np.concatenate([group.members for group in groups])
    return ParsedCompletion(
        requests=requests,
        prompts=prompts,
        texts=None if isinstance(given, TokenRows) else tuple(given),
        echo=echo,
        logprobs=logprobs,
        choices=choices,
        stop=stop,
        stream=stream,
        include_usage=include_usage,
        items=np.argsort(members, kind="stable").reshape(len(prompts.lens), draws),
        last_rows=_last_rows(requests),
        rows=prompts.rows(groups) if reads_all else None,
    )


def finish_completion(parsed: ParsedCompletion, outputs: tuple[EngineOutput, ...]) -> CompletionResult:
    """Turn what the engine computed into log-probabilities.

    Raises:
        ValueError: the engine's outputs lack what the requests need.
        FloatingPointError: their values are not finite.
    """
    read = _Read.of(outputs, top_tokens=parsed.requests[0].top_tokens)
    chosen = parsed.items
    token_ids, token_logprobs = np.zeros((chosen.size, 0), np.int32), np.zeros((chosen.size, 0), np.float32)
    top_ids, top_logprobs = (np.zeros((chosen.size, 0, read.top_ids.shape[1]), of) for of in (np.int32, np.float32))
    if parsed.requests[0].sampling is not None:
        next_ids, next_logprobs = read.drawn(outputs, parsed.last_rows)
        if parsed.choices < chosen.shape[1]:  # the best of the draws, the first among equals
            best = np.argsort(-next_logprobs[chosen], axis=1, kind="stable")[:, : parsed.choices]
            chosen = np.take_along_axis(chosen, best, 1)
        rows = parsed.last_rows[chosen.reshape(-1, 1)]
        token_ids, token_logprobs = next_ids[chosen.reshape(-1, 1)], next_logprobs[chosen.reshape(-1, 1)]
        top_ids, top_logprobs = read.top_ids[rows], read.top_logprobs[rows]
    result = CompletionResult(
        token_ids=token_ids,
        token_logprobs=token_logprobs,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        prompt=None if parsed.rows is None else _prompt_logprobs(parsed.prompts, parsed.rows, read),
        usage=Usage(len(parsed.prompts.tokens), sum(output.cached_tokens for output in outputs)),
        completion_tokens=parsed.items.size if parsed.requests[0].sampling is not None else 0,
    )
    _check_finite(result)
    return result


def _has_text(fields: Mapping[str, object]) -> bool:
    prompt = fields.get("prompt")
    return isinstance(prompt, str) or (isinstance(prompt, (list, tuple)) and str in set(map(type, prompt)))


COMPLETE: Task[ParsedCompletion, CompletionResult] = Task("complete", _has_text, parse_completion, finish_completion)


def _read_max_tokens(fields: Mapping[str, object], echo: bool) -> int:
    """Read how many tokens are drawn; a missing field asks for 16."""
    count = read_whole(fields, "max_tokens", range(2**63))
    if count is None:
        message = (
            "Give max_tokens, 0 or 1: OpenAI's default is 16, and one new token is all that this server writes today."
        )
        raise RequestError("unsupported_parameter", message, "max_tokens")
    if count > 1:
        message = "max_tokens must be 0 or 1: one new token is all that this server writes today."
        raise RequestError("unsupported_parameter", message, "max_tokens")
    if not count and not echo:
        raise RequestError("invalid_max_tokens", "max_tokens 0 needs echo: true, or nothing is answered.", "max_tokens")
    return count


def _read_draws(fields: Mapping[str, object], new_tokens: int) -> tuple[int, int]:
    """Read how many answers each prompt gets, and of how many draws they are the best."""
    choices = read_draws(fields)
    best_of = read_whole(fields, "best_of", range(1, MAX_DRAWS + 1))
    if best_of is not None and best_of < choices:
        raise RequestError("invalid_best_of", "best_of must not be below n.", "best_of")
    draws = best_of or choices
    if draws > 1 and not new_tokens:
        name = "n" if choices > 1 else "best_of"
        raise RequestError(f"invalid_{name}", f"{name} above 1 needs max_tokens: 1.", name)
    return choices, draws


def _last_rows(requests: tuple[ScoreRequest, ...]) -> Int64[np.ndarray, " items"]:
    bases = offsets(np.array([request.num_reads for request in requests]))
    ends = [request.read_starts[1:] + int(base) for request, base in zip(requests, bases[:-1], strict=True)]
    return np.concatenate(ends).astype(np.int64) - 1


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """What was read at the rows of all requests, one after the other."""

    label_logprobs: Float32[np.ndarray, " rows"]
    log_sum_exp: Float32[np.ndarray, " rows"]
    top_ids: Int32[np.ndarray, "rows top_tokens"]
    top_logprobs: Float32[np.ndarray, "rows top_tokens"]

    @classmethod
    def of(cls, outputs: tuple[EngineOutput, ...], top_tokens: int) -> "_Read":
        log_sum_exp = _joined([output.log_sum_exp for output in outputs], "log_sum_exp")
        top_ids = np.zeros((len(log_sum_exp), 0), np.int32)
        top_logits = np.zeros((len(log_sum_exp), 0), np.float32)
        if top_tokens:
            top_ids = _joined([output.top_ids for output in outputs], "top_ids")
            top_logits = _joined([output.top_logits for output in outputs], "top_logits")
        logits = np.concatenate([output.logits for output in outputs])
        return cls(normalised(logits, log_sum_exp)[:, 0], log_sum_exp, top_ids, normalised(top_logits, log_sum_exp))

    def drawn(self, outputs: tuple[EngineOutput, ...], last_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the token drawn after each item and its log-probability."""
        logits = _joined([output.next_logits for output in outputs], "next_logits")
        logprobs = normalised(logits[:, None], self.log_sum_exp[last_rows])[:, 0]
        return _joined([output.next_ids for output in outputs], "next_ids"), logprobs


def _joined(parts: list[np.ndarray | None], name: str) -> np.ndarray:
    present = [part for part in parts if part is not None]
    if len(present) < len(parts):
        raise ValueError(f"The requests need {name}, and an engine's output has none.")
    return np.concatenate(present)


def _prompt_logprobs(prompts: Prompts, rows: np.ndarray, read: _Read) -> PromptLogprobs:
    """Return what the row before each token says of it; the first token of each prompt gets zeros."""
    before = np.roll(rows, 1)
    result = PromptLogprobs(read.label_logprobs[before], read.top_ids[before], read.top_logprobs[before])
    first = prompts.starts[:-1]
    for values in (result.logprobs, result.top_ids, result.top_logprobs):
        values[first] = 0
    return result


def _check_finite(result: CompletionResult) -> None:
    arrays = [result.token_logprobs, result.top_logprobs]
    if result.prompt is not None:
        arrays += [result.prompt.logprobs, result.prompt.top_logprobs]
    if not all(np.isfinite(values).all() for values in arrays):
        raise FloatingPointError("The engine returned log-probabilities that are not finite.")
