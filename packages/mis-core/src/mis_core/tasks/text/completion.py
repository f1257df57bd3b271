"""Completions: log-probabilities of prompts' own tokens, and what follows them.

What is read of prompts and the first new token are scores, so that many prompts are computed together; where an answer
may have more tokens, all of it is written as a sequence.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32, Int64

from mis_core.errors import RequestError
from mis_core.ragged import offsets
from mis_core.requests import MAX_TOP_TOKENS, EngineOutput, NewToken, ScoreRequest
from mis_core.tasks.fields.openai import (
    check_ignored,
    check_model,
    read_flag,
    read_stream,
    read_whole,
    refuse_unsupported,
)
from mis_core.tasks.fields.token_rows import TokenRows
from mis_core.tasks.fields.values import check_names, read_bool, read_optional_text
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Task
from mis_core.tasks.probabilities import normalised
from mis_core.tasks.served import check_task
from mis_core.tasks.text.choices import GeneratedChoice
from mis_core.tasks.text.prompt_field import check_lengths, read_prompts, tokenize_prompts
from mis_core.tasks.text.prompt_groups import Group, Prompts
from mis_core.tasks.text.sampling import MAX_DRAWS, SAMPLING_FIELDS, Stops, read_draws, read_sampling, read_stops
from mis_core.tasks.text.sequences import Sequences, check_new_tokens, check_sequences, no_sequences
from mis_core.tasks.usage import Usage
from mis_core.tokenization import Tokenizer

NEW_TOKENS = 16
"""Most tokens of an answer where a request does not say and the context has room, as in OpenAI's API."""

IGNORED = ("user",)
"""Fields that change nothing here."""

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
        sequences: What the engine writes: each prompt's draws, then those of the next. None where an answer has at most
            one token, which `requests` draw.
        prompts: Token ids.
        texts: The prompts as they were given; None where they were ids.
        text_starts: Characters of its prompt before each prompt token; None where they are not told, or of ids.
        echo: Whether prompts are in the answer.
        logprobs: How many of the most probable tokens are in the answer; None for no log-probabilities at all.
        choices: Answers to each prompt.
        stops: What ends an answer.
        stream: Whether answers are sent as events.
        include_usage: Whether an event at the end says the usage.
        items: The requests' item of each draw from each prompt, `[prompts, draws]`.
        last_rows: The row of each item, at which its next token is drawn, `[items]`.
        rows: The row of each prompt token; None where only last rows are read.
    """

    requests: tuple[ScoreRequest, ...]
    sequences: Sequences
    prompts: Prompts
    texts: tuple[str, ...] | None
    text_starts: Int32[np.ndarray, " prompt_tokens"] | None
    echo: bool
    logprobs: int | None
    choices: int
    stops: Stops
    stream: bool
    include_usage: bool
    items: Int64[np.ndarray, "prompts draws"]
    last_rows: Int64[np.ndarray, " items"]
    rows: Int64[np.ndarray, " prompt_tokens"] | None

    @property
    def num_sequences(self) -> int:
        """Answers that are written, or drawn several to a prompt."""
        return len(self.sequences) or (self.items.size if self.items.shape[1] > 1 else 0)


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
    """What scores say of prompts and of answers of one token: those to the first prompt, then those to the next.

    Log-probabilities are natural, of the model's own distribution: before temperature, bias and `top_p`.

    Attributes:
        token_ids: The new tokens of each answer, one or none, `[choices, written]`.
        token_logprobs: Their log-probabilities.
        top_ids: The most probable tokens in place of each, best first, `[choices, written, top_logprobs]`.
        top_logprobs: Their log-probabilities.
        prompt: Log-probabilities of the prompts' tokens, if they are wanted.
        usage: Token counts; a beginning counts in each prompt that has it.
        completion_tokens: Tokens drawn by scores, including those of answers that were not the best.
    """

    token_ids: Int32[np.ndarray, "choices written"]
    token_logprobs: Float32[np.ndarray, "choices written"]
    top_ids: Int32[np.ndarray, "choices written top_logprobs"]
    top_logprobs: Float32[np.ndarray, "choices written top_logprobs"]
    prompt: PromptLogprobs | None
    usage: Usage
    completion_tokens: int

    @property
    def tokens(self) -> list[NewToken]:
        """The token of each answer, if it has one."""
        rows = (self.token_ids, self.token_logprobs, self.top_ids, self.top_logprobs)
        return [
            NewToken(int(token[0]), float(logprob[0]), ids[0], logprobs[0], "length")
            for token, logprob, ids, logprobs in zip(*rows, strict=True)
            if len(token)
        ]


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
    echo, count = read_flag(fields, "echo"), read_whole(fields, "max_tokens", range(2**31))
    if count == 0 and not echo:
        raise RequestError("invalid_max_tokens", "max_tokens 0 needs echo: true, or nothing is answered.", "max_tokens")
    choices, draws = _read_draws(fields, count)
    sampling, stops = read_sampling(fields, draws, limits.vocab_size), read_stops(fields, limits.vocab_size)
    logprobs = read_whole(fields, "logprobs", range(MAX_TOP_TOKENS + 1))
    stream, include_usage = read_stream(fields)
    cache_salt = read_optional_text(fields, "cache_salt")
    special = fields.get("add_special_tokens") is None or read_bool(fields, "add_special_tokens")
    if draws > 1 or count is None or count > 1:
        check_sequences(len(given.lens if isinstance(given, TokenRows) else given), draws, limits, _multiplier(fields))
    prompts = tokenize_prompts(given, tokenizer, limits, draws, special)
    reads_all = echo and logprobs is not None
    check_lengths(prompts, limits, values=choices * (1 + (logprobs or 0)) if echo else 0)
    if count is None:
        count = max(min(NEW_TOKENS, limits.context_length - int(prompts.lens.max())), 1)
    sequences = no_sequences()
    if count > 1:
        if stream and draws > choices:
            raise RequestError("invalid_best_of", "best_of above n cannot be streamed.", "best_of")
        if tokenizer is None:
            raise RequestError("task_not_supported", "This engine has no tokenizer, and writes no texts.", "max_tokens")
        check_new_tokens(prompts, draws, count, logprobs or 0, limits, "max_tokens")
        sequences = Sequences(prompts, count, sampling, stops.end_ids(tokenizer), logprobs or 0, cache_salt)
    groups: list[Group] = []
    if draws > 1 and count == 1:
        groups = list(prompts.alone(draws))
    elif count <= 1 or reads_all:
        groups = prompts.group(cached=not reads_all)
    requests = tuple(
        prompts.request(
            group,
            reads_all=reads_all,
            top_tokens=logprobs or 0,
            sampling=sampling if count == 1 else None,
            cache_salt=cache_salt,
        )
        for group in groups
    )
    texts, text_starts = (None, None) if isinstance(given, TokenRows) else (tuple(given), None)
    if texts is not None and tokenizer is not None and reads_all:
        text_starts = np.concatenate([tokenizer.starts(text, special) for text in texts])
    members = np.concatenate([np.zeros(0, np.int64), *(group.members for group in groups)])
    return ParsedCompletion(
        requests=requests,
        sequences=sequences,
        prompts=prompts,
        texts=texts,
        text_starts=text_starts,
        echo=echo,
        logprobs=logprobs,
        choices=choices,
        stops=stops,
        stream=stream,
        include_usage=include_usage,
        items=np.argsort(members, kind="stable").reshape(len(prompts.lens), -1),
        last_rows=_last_rows(requests),
        rows=prompts.rows(groups) if reads_all else None,
    )


def finish_completion(parsed: ParsedCompletion, outputs: tuple[EngineOutput, ...]) -> CompletionResult:
    """Turn what the engine computed into log-probabilities.

    Raises:
        ValueError: the engine's outputs lack what the requests need.
        FloatingPointError: their values are not finite.
    """
    top_tokens, answers = parsed.logprobs or 0, len(parsed.prompts.lens) * parsed.choices
    token_ids, token_logprobs = np.zeros((answers, 0), np.int32), np.zeros((answers, 0), np.float32)
    top_ids, top_logprobs = (np.zeros((answers, 0, top_tokens), of) for of in (np.int32, np.float32))
    prompt, draws = None, 0
    if parsed.requests:
        read = _Read.of(outputs, top_tokens)
        if parsed.rows is not None:
            prompt = _prompt_logprobs(parsed.prompts, parsed.rows, read)
        if parsed.requests[0].sampling is not None:
            chosen, draws = parsed.items, parsed.items.size
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
        prompt=prompt,
        usage=Usage(len(parsed.prompts.tokens), sum(output.cached_tokens for output in outputs)),
        completion_tokens=draws,
    )
    _check_finite(result)
    return result


def best_choices(drawn: list[GeneratedChoice], count: int) -> list[GeneratedChoice]:
    """Return of the draws from one prompt those with the highest mean log-probability, the best first.

    Args:
        drawn: All draws.
        count: How many are wanted; if these are all, they stay in order.
    """
    if len(drawn) <= count:
        return drawn
    return sorted(drawn, key=lambda choice: -choice.token_logprobs.mean())[:count]


def _needs_tokenizer(fields: Mapping[str, object]) -> bool:
    return _has_text(fields) or fields.get("max_tokens") not in (0, 1)


def _has_text(fields: Mapping[str, object]) -> bool:
    prompt = fields.get("prompt")
    return isinstance(prompt, str) or (isinstance(prompt, (list, tuple)) and str in set(map(type, prompt)))


COMPLETE: Task[ParsedCompletion, CompletionResult] = Task(
    "complete", parse_completion, finish_completion, _needs_tokenizer
)


def _read_draws(fields: Mapping[str, object], count: int | None) -> tuple[int, int]:
    """Read how many answers each prompt gets, and of how many draws they are the best."""
    choices = read_draws(fields)
    best_of = read_whole(fields, "best_of", range(1, MAX_DRAWS + 1))
    if best_of is not None and best_of < choices:
        raise RequestError("invalid_best_of", "best_of must not be below n.", "best_of")
    draws = best_of or choices
    if draws > 1 and count == 0:
        name = "n" if choices > 1 else "best_of"
        raise RequestError(f"invalid_{name}", f"{name} above 1 needs max_tokens above 0.", name)
    return choices, draws


def _multiplier(fields: Mapping[str, object]) -> str:
    """Return the name of the field that says how many answers each prompt gets, or of the prompts if none does."""
    return next((name for name in ("best_of", "n") if fields.get(name) is not None), "prompt")


def _last_rows(requests: tuple[ScoreRequest, ...]) -> Int64[np.ndarray, " items"]:
    bases = offsets(np.array([request.num_reads for request in requests], np.int64))
    ends = [request.read_starts[1:] + int(base) for request, base in zip(requests, bases[:-1], strict=True)]
    return np.concatenate([np.zeros(0, np.int64), *ends]).astype(np.int64) - 1


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
