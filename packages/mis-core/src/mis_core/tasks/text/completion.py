"""Completions: log-probabilities of prompts' own tokens, and what follows them.

What is read of prompts and an answer of one token are scores, so that many prompts are computed together; where an
answer may have more tokens, all of it is written as a sequence.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32

from mis_core.calibration import Calibrations
from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, NewToken
from mis_core.tasks.fields.body import check_model, read_body
from mis_core.tasks.fields.token_rows import TokenRows
from mis_core.tasks.fields.values import has_text
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Fields, ServedModels, Task
from mis_core.tasks.probabilities import check_finite
from mis_core.tasks.served import check_task
from mis_core.tasks.text.bodies import NEW_TOKENS, CompletionBody, stream_of
from mis_core.tasks.text.parsed import ParsedText, TextResult
from mis_core.tasks.text.prompt_field import check_lengths, read_prompts, tokenize_prompts
from mis_core.tasks.text.prompt_groups import Group, Prompts
from mis_core.tasks.text.row_logprobs import RowLogprobs, best_choices
from mis_core.tasks.text.sampling import sampling_of, stops_of
from mis_core.tasks.text.sequences import NO_SEQUENCES, AnswerOptions, check_sequences, sequences_after
from mis_core.tasks.usage import Usage
from mis_core.tokenization import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class ParsedCompletion(ParsedText):
    """Prompts as the engine computes them, and how they are to be answered.

    Attributes:
        prompts: Token ids.
        texts: The prompts as they were given; None where they were ids.
        text_starts: Characters of its prompt before each prompt token; None where they are not told, or of ids.
        echo: Whether prompts are in the answer.
        choices: Answers to each prompt: the best of its draws.
        groups: The prompts of each of `requests`.
    """

    prompts: Prompts
    texts: tuple[str, ...] | None
    text_starts: Int32[np.ndarray, " prompt_tokens"] | None
    echo: bool
    choices: int
    groups: list[Group]


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
class CompletionResult(TextResult):
    """What scores say of prompts and of answers of one token.

    Attributes:
        prompt: Log-probabilities of the prompts' tokens, if they are wanted.
        completion_tokens: Tokens drawn by scores, including those of answers that were not the best.
    """

    prompt: PromptLogprobs | None
    completion_tokens: int


def parse_completion(
    fields: Fields, tokenizer: Tokenizer | None, limits: Limits, served_models: ServedModels = None
) -> ParsedCompletion:
    """Validate the fields of a completion and tokenise its prompts; see `Task.parse`."""
    body = read_body(CompletionBody, fields)
    check_task("complete", tokenizer, limits)
    check_model(body.model, served_models)
    given = read_prompts(body.prompt)
    count, echo, special = body.max_tokens, body.echo, body.add_special_tokens
    if count == 0 and not echo:
        raise RequestError(
            "invalid_max_tokens", "max_tokens 0 needs echo: true; otherwise there is nothing to answer.", "max_tokens"
        )
    choices, draws = body.n, _draws(body)
    options = AnswerOptions(
        sampling_of(body, draws, limits.vocab_size),
        stops_of(body, limits.vocab_size),
        body.logprobs,
        *stream_of(body),
        body.cache_salt,
    )
    if draws > 1 or count is None or count > 1:
        check_sequences(len(given), draws, limits, _multiplier(fields))
    prompts = tokenize_prompts(given, tokenizer, limits, draws, special)
    check_lengths(prompts, limits, values=choices * (1 + options.top_tokens) if echo else 0)
    if count is None:
        count = max(min(NEW_TOKENS, limits.context_length - int(prompts.lens.max())), 1)
    if count > 1 and options.stream and draws > choices:
        raise RequestError("invalid_best_of", "best_of above n cannot be streamed.", "best_of")
    sequences = NO_SEQUENCES
    if count > 1:
        sequences = sequences_after(prompts, count, options, tokenizer, limits, "max_tokens")
    reads_prompts = echo and options.logprobs is not None
    groups = _group(prompts, draws, count, reads_prompts)
    sampling = options.sampling if count == 1 else None
    requests = tuple(
        prompts.request(group, reads_prompts, options.top_tokens, sampling, options.cache_salt) for group in groups
    )
    texts, text_starts = (None, None) if isinstance(given, TokenRows) else (tuple(given), None)
    if texts is not None and tokenizer is not None and reads_prompts:
        text_starts = np.concatenate([tokenizer.starts(text, special) for text in texts])
    return ParsedCompletion(options, requests, sequences, prompts, texts, text_starts, echo, choices, groups)


def finish_completion(
    parsed: ParsedCompletion, outputs: tuple[EngineOutput, ...], _: Calibrations | None = None
) -> CompletionResult:
    """Turn what the engine computed into log-probabilities; see `Task.finish`."""
    usage = Usage(len(parsed.prompts.tokens), sum(output.cached_tokens for output in outputs))
    if not parsed.requests:
        return CompletionResult([], usage, None, 0)
    reads = RowLogprobs.of(parsed.requests, outputs)
    drawn: list[list[NewToken]] = [[] for _ in parsed.prompts.lens]
    members = np.concatenate([group.members for group in parsed.groups]).tolist()
    for prompt, token in zip(members, reads.tokens, strict=bool(reads.tokens)):
        drawn[prompt].append(token)
    best = [token for each in drawn for token in best_choices(each, parsed.choices, lambda token: token.logprob)]
    reads_prompts = parsed.echo and parsed.options.logprobs is not None
    return CompletionResult(best, usage, _prompt_logprobs(parsed, reads) if reads_prompts else None, len(reads.tokens))


def _needs_tokenizer(fields: Fields) -> bool:
    return has_text(fields.get("prompt")) or fields.get("max_tokens") not in (0, 1)


COMPLETE: Task[ParsedCompletion, CompletionResult] = Task(
    "complete", parse_completion, finish_completion, _needs_tokenizer
)


def _draws(body: CompletionBody) -> int:
    """Return of how many draws the answers to a prompt are the best."""
    if body.best_of is not None and body.best_of < body.n:
        raise RequestError("invalid_best_of", "best_of must not be below n.", "best_of")
    draws = body.best_of or body.n
    if draws > 1 and body.max_tokens == 0:
        name = "n" if body.n > 1 else "best_of"
        raise RequestError(f"invalid_{name}", f"{name} above 1 needs max_tokens above 0.", name)
    return draws


def _multiplier(fields: Fields) -> str:
    """Return the name of the field that says how many answers each prompt gets, or of the prompts if none does."""
    return next((name for name in ("best_of", "n") if fields.get(name) is not None), "prompt")


def _group(prompts: Prompts, draws: int, count: int, reads_prompts: bool) -> list[Group]:
    """Return which prompts are scored together: for answers of at most one token, and where their own are read."""
    if draws > 1 and count == 1:
        return prompts.alone(draws)
    return prompts.group(cached=not reads_prompts) if count <= 1 or reads_prompts else []


def _prompt_logprobs(parsed: ParsedCompletion, reads: RowLogprobs) -> PromptLogprobs:
    """Return what the row before each token says of it; the first token of each prompt gets zeros."""
    before = np.roll(parsed.prompts.rows(parsed.groups), 1)
    result = PromptLogprobs(reads.label_logprobs[before, 0], reads.top_ids[before], reads.top_logprobs[before])
    for values in (result.logprobs, result.top_ids, result.top_logprobs):
        values[parsed.prompts.starts[:-1]] = 0
    check_finite(result.logprobs, result.top_logprobs, what="log-probabilities")
    return result
