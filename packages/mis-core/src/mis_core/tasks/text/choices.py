"""The text of answers as their tokens come."""

import codecs
import math
from array import array
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32

from mis_core.requests import FinishReason, NewToken
from mis_core.tasks.text.sampling import Stops
from mis_core.tokenization import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class GenerateChunk:
    """What one new token adds to a choice.

    Attributes:
        index: Number of the choice.
        text: Text that is certain now; what may be part of a character, or of a text that ends the choice, comes later.
        token_id: The token.
        logprob: Its natural log-probability, of the model's own distribution.
        top_ids: The most probable tokens at its position, best first, `[logprobs]`.
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
        top_ids: The most probable tokens at each position, best first, `[tokens, logprobs]`.
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


class GeneratedChoices:
    """The choices of one request as their tokens come. Of each token only its id and its values are kept."""

    def __init__(self, tokenizer: Tokenizer, stops: Stops, choices: int) -> None:
        """Begin with choices that have no tokens.

        Args:
            tokenizer: Spells tokens.
            stops: What ends each choice.
            choices: How many there are.
        """
        self._tokenizer = tokenizer
        self._stops = stops
        self._end_ids = stops.end_ids(tokenizer)
        self._num_choices = choices
        self._open: dict[int, _Choice] = {}
        self._ended: set[int] = set()
        self._results: dict[int, GeneratedChoice] = {}
        self._cached: dict[int, int] = {}
        self._num_tokens = 0

    @property
    def is_complete(self) -> bool:
        """Whether every choice has ended."""
        return len(self._ended) == self._num_choices

    def add(self, index: int, token: NewToken) -> GenerateChunk | None:
        """Take a choice's next token; return what it adds, or None if the choice has ended before.

        Raises:
            FloatingPointError: the token's log-probabilities are not finite.
        """
        if index in self._ended:
            return None
        if not math.isfinite(token.logprob) or not np.isfinite(token.top_logprobs).all():
            raise FloatingPointError("The engine returned log-probabilities that are not finite.")
        choice = self._open.get(index)
        if choice is None:
            choice = self._open[index] = _Choice(self._tokenizer, self._end_ids, self._stops.texts)
            self._cached[index] = token.cached_tokens
        self._num_tokens += 1
        text = choice.add(token)
        if choice.finish_reason is not None:
            self._ended.add(index)
            self._results[index] = self._open.pop(index).result(index)
        values = token.token_id, token.logprob, token.top_ids, token.top_logprobs
        return GenerateChunk(index, text, *values, choice.finish_reason)

    @property
    def cached_tokens(self) -> list[int]:
        """For each choice that has a token, how many tokens of its prompt came from the prefix cache."""
        return [self._cached[index] for index in sorted(self._cached)]

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices."""
        return self._num_tokens

    def pop(self, index: int) -> GeneratedChoice:
        """Hand over a choice that has ended, once: it is not kept here any more."""
        return self._results.pop(index)

    def results(self) -> tuple[GeneratedChoice, ...]:
        """Hand over all choices, which are complete."""
        return tuple(self.pop(index) for index in range(self._num_choices))


class _Choice:
    """One choice. Bytes of tokens become text as soon as characters are whole and cannot begin a stop text."""

    def __init__(self, tokenizer: Tokenizer, end_ids: frozenset[int], stop: tuple[str, ...]) -> None:
        self.finish_reason: FinishReason | None = None
        self._token_ids, self._logprobs = array("i"), array("f")
        self._top_ids, self._top_logprobs = array("i"), array("f")
        self._texts: list[str] = []
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def add(self, token: NewToken) -> str:
        """Take the next token; return the text that is certain now."""
        self._token_ids.append(token.token_id)
        self._logprobs.append(token.logprob)
        self._top_ids.extend(token.top_ids.tolist())
        self._top_logprobs.extend(token.top_logprobs.tolist())
        is_end = token.token_id in self._end_ids
        self.finish_reason = "stop" if is_end else token.finish_reason
        spelled = b"" if is_end else self._tokenizer.token_bytes(token.token_id)
        self._held += self._decoder.decode(spelled, final=self.finish_reason is not None)
        stops = [at for at in map(self._held.find, self._stop) if at >= 0]
        if stops:
            self.finish_reason, sure = "stop", min(stops)
        else:
            sure = len(self._held) if self.finish_reason else self._safe_prefix_len()
        text, self._held = self._held[:sure], self._held[sure:]
        if text:
            self._texts.append(text)
        return text

    def result(self, index: int) -> GeneratedChoice:
        assert self.finish_reason is not None
        tokens = len(self._token_ids)
        return GeneratedChoice(
            index=index,
            text="".join(self._texts),
            token_ids=np.array(self._token_ids, np.int32),
            token_logprobs=np.array(self._logprobs, np.float32),
            top_ids=np.array(self._top_ids, np.int32).reshape(tokens, len(self._top_ids) // tokens),
            top_logprobs=np.array(self._top_logprobs, np.float32).reshape(tokens, len(self._top_logprobs) // tokens),
            finish_reason=self.finish_reason,
        )

    def _safe_prefix_len(self) -> int:
        """Return how much of the text held no stop text can begin in."""
        longest = max(map(len, self._stop), default=1) - 1
        for begin in range(max(len(self._held) - longest, 0), len(self._held)):
            if any(stop.startswith(self._held[begin:]) for stop in self._stop):
                return begin
        return len(self._held)
