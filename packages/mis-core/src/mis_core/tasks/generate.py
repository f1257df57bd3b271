"""Generation: the fields of a request, and the text of its tokens as they come."""

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from jaxtyping import Float32, Int32

from mis_core.errors import RequestError
from mis_core.generation.request import FinishReason, GenerateRequest, NewToken
from mis_core.scoring.fields import read_bool, read_optional_text
from mis_core.scoring.limits import Limits
from mis_core.scoring.request import MAX_TOP_TOKENS, Usage
from mis_core.scoring.token_rows import ROW_TYPES, TokenRows, read_row
from mis_core.scoring.validation import check_names
from mis_core.tasks.openai_fields import read_flag, read_whole
from mis_core.tasks.prompt_field import read_prompts, tokenize_prompts
from mis_core.tasks.sampling import SAMPLING_FIELDS, read_draws, read_limits, read_sampling, read_stop
from mis_core.tasks.served import check_task
from mis_core.tokenization import Tokenizer

FIELDS = (
    "prompt", "max_new_tokens", *SAMPLING_FIELDS, "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "stop_token_ids", "ignore_eos", "logprobs", "cache_salt", "add_special_tokens",
)  # fmt: skip
"""Every field of a request."""

NEW_TOKENS = 16
"""Most tokens that are written where a request does not say, as in OpenAI's completions."""

MAX_STOP_IDS = 256


@dataclass(frozen=True, slots=True, eq=False)
class ParsedGeneration:
    """A prompt with its choices as the engine writes them.

    Attributes:
        requests: One sequence for each choice.
        stop: Texts before which a choice ends.
        logprobs: How many of the most probable tokens are told with each; None: no log-probabilities at all.
    """

    requests: tuple[GenerateRequest, ...]
    stop: tuple[str, ...]
    logprobs: int | None


@dataclass(frozen=True, slots=True, eq=False)
class GenerateChunk:
    """What one new token adds to a choice.

    Attributes:
        index: Number of the choice.
        text: Text that is certain now; what may be part of a character, or of a text that ends the choice, comes later.
        token_id: The token.
        logprob: Its natural log-probability, of the model's own distribution.
        top_ids: The most probable tokens in its place, best first, `[logprobs]`.
        top_logprobs: Their log-probabilities.
        finish_reason: `stop` or `length` with the last token.
    """

    index: int
    text: str
    token_id: int
    logprob: float
    top_ids: Int32[np.ndarray, " top_logprobs"]
    top_logprobs: Float32[np.ndarray, " top_logprobs"]
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True, eq=False)
class GeneratedChoice:
    """One answer.

    Attributes:
        index: Its number.
        text: Its text, up to what ended it.
        token_ids: Its tokens, the one that ended it included.
        token_logprobs: Their natural log-probabilities, of the model's own distribution.
        top_ids: The most probable tokens in place of each, best first, `[tokens, logprobs]`.
        top_logprobs: Their log-probabilities.
        finish_reason: `stop`: by a token or text that ends it; `length`: it may not be longer.
    """

    index: int
    text: str
    token_ids: Int32[np.ndarray, " tokens"]
    token_logprobs: Float32[np.ndarray, " tokens"]
    top_ids: Int32[np.ndarray, "tokens top_logprobs"]
    top_logprobs: Float32[np.ndarray, "tokens top_logprobs"]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, eq=False)
class GenerateResult:
    """What comes after a prompt.

    Attributes:
        choices: The answers.
        usage: Tokens of the prompt, once.
        completion_tokens: Tokens of all answers.
    """

    choices: tuple[GeneratedChoice, ...]
    usage: Usage
    completion_tokens: int


def parse_generation(fields: Mapping[str, object], tokenizer: Tokenizer, limits: Limits) -> ParsedGeneration:
    """Validate the fields of a generation and tokenise its prompt.

    Args:
        fields: `prompt`, a text or token ids, and the others of `FIELDS`; None is as good as missing.
        tokenizer: The model's, which also says where answers end.
        limits: What the request may ask for.

    Raises:
        RequestError: the request breaks the contract; `code` and `param` say where.
    """
    check_names(fields, FIELDS)
    check_task("complete", tokenizer, limits)
    given = read_prompts(fields)
    if len(given.lens if isinstance(given, TokenRows) else given) != 1:
        raise RequestError("invalid_prompt", "prompt must be one text, or one list of token ids.", "prompt")
    choices = read_draws(fields)
    count = read_whole(fields, "max_new_tokens", range(1, 2**31)) or NEW_TOKENS
    sampling = read_limits(fields, read_sampling(fields, choices, limits.vocab_size))
    logprobs, salt = read_whole(fields, "logprobs", range(MAX_TOP_TOKENS + 1)), read_optional_text(fields, "cache_salt")
    special = fields.get("add_special_tokens") is None or read_bool(fields, "add_special_tokens")
    prompt = tokenize_prompts(given, tokenizer, limits, 1, special).tokens
    if len(prompt) + count > limits.context_length:
        message = (
            f"The prompt's {len(prompt)} tokens and {count} new ones are more than the context holds, "
            f"{limits.context_length}; shorten the prompt or lower max_new_tokens."
        )
        raise RequestError("context_length_exceeded", message, "prompt")
    end_ids = frozenset() if read_flag(fields, "ignore_eos") else tokenizer.end_ids
    end_ids |= _read_stop_ids(fields, limits.vocab_size)
    requests = tuple(
        GenerateRequest(
            prompt, count, replace(sampling, keys=sampling.keys[each : each + 1]), end_ids, logprobs or 0, salt
        )
        for each in range(choices)
    )
    return ParsedGeneration(requests, read_stop(fields), logprobs)


class Writing:
    """The choices of one generation as their tokens come."""

    def __init__(self, parsed: ParsedGeneration, tokenizer: Tokenizer) -> None:
        self.parsed = parsed
        self._choices = [_Choice(tokenizer, request, parsed.stop) for request in parsed.requests]

    @property
    def is_complete(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.finish_reason for choice in self._choices)

    def add(self, index: int, token: NewToken) -> GenerateChunk | None:
        """Take a choice's next token; return what it adds, or None if the choice has ended before."""
        choice = self._choices[index]
        if choice.finish_reason:
            return None
        text = choice.add(token)
        values = token.token_id, token.logprob, token.top_ids, token.top_logprobs
        return GenerateChunk(index, text, *values, choice.finish_reason)

    def result(self) -> GenerateResult:
        """Return the choices, which are complete."""
        tokens = [token for choice in self._choices for token in choice.tokens]
        cached = self._choices[0].tokens[0].cached_tokens
        choices = tuple(choice.result(index) for index, choice in enumerate(self._choices))
        return GenerateResult(choices, Usage(len(self.parsed.requests[0].prompt), cached), len(tokens))


class _Choice:
    """One choice. Bytes of tokens become text as soon as characters are whole and cannot begin a stop text."""

    def __init__(self, tokenizer: Tokenizer, request: GenerateRequest, stop: tuple[str, ...]) -> None:
        self.tokens: list[NewToken] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self._tokenizer = tokenizer
        self._end_ids = request.end_ids
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def add(self, token: NewToken) -> str:
        """Take the next token; return the text that is certain now."""
        self.tokens.append(token)
        self.finish_reason = token.finish_reason
        spelled = b"" if token.token_id in self._end_ids else self._tokenizer.token_bytes(token.token_id)
        self._held += self._decoder.decode(spelled, final=token.finish_reason is not None)
        places = [place for place in map(self._held.find, self._stop) if place >= 0]
        if places:
            self.finish_reason, sure = "stop", min(places)
        else:
            sure = len(self._held) if self.finish_reason else self._unsuspicious()
        text, self._held = self._held[:sure], self._held[sure:]
        self.text += text
        return text

    def result(self, index: int) -> GeneratedChoice:
        assert self.finish_reason is not None
        tokens = self.tokens
        return GeneratedChoice(
            index=index,
            text=self.text,
            token_ids=np.array([token.token_id for token in tokens], np.int32),
            token_logprobs=np.array([token.logprob for token in tokens], np.float32),
            top_ids=np.stack([token.top_ids for token in tokens]),
            top_logprobs=np.stack([token.top_logprobs for token in tokens]),
            finish_reason=self.finish_reason,
        )

    def _unsuspicious(self) -> int:
        """Return how much of the text held no stop text can begin in."""
        longest = max(map(len, self._stop), default=1) - 1
        for begin in range(max(len(self._held) - longest, 0), len(self._held)):
            if any(stop.startswith(self._held[begin:]) for stop in self._stop):
                return begin
        return len(self._held)


def _read_stop_ids(fields: Mapping[str, object], vocab_size: int) -> frozenset[int]:
    name = "stop_token_ids"
    given = fields.get(name)
    if given is None:
        return frozenset()
    if not isinstance(given, ROW_TYPES) or len(given) > MAX_STOP_IDS:
        message = f"{name} must be a list of at most {MAX_STOP_IDS} token ids."
        raise RequestError(f"invalid_{name}", message, name)
    if len(given) == 0:
        return frozenset()
    rows = read_row(name, cast(Sequence[object], given))
    rows.check_below(vocab_size)
    return frozenset(rows.values.tolist())
