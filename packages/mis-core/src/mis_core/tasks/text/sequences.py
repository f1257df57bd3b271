"""How answers are asked for, what the engine writes behind prompts, and how much of it a request may ask for."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from mis_core.errors import RequestError
from mis_core.requests import GenerateRequest, Sampling
from mis_core.tasks.limits import Limits
from mis_core.tasks.text.prompt_groups import Prompts
from mis_core.tasks.text.sampling import Stops
from mis_core.tokenization import Tokenizer


def check_sequences(prompts: int, draws: int, limits: Limits, param: str = "n") -> None:
    """Refuse to write more answers than a request may have. Nothing is tokenised before that is known.

    Args:
        prompts: How many prompts there are.
        draws: Answers to each.
        limits: What the request may ask for.
        param: The field that has the larger share of them.

    Raises:
        RequestError: `too_many_sequences`.
    """
    if prompts * draws > limits.max_sequences:
        message = (
            f"{prompts} prompts with {draws} answers each are {prompts * draws} sequences; at most "
            f"{limits.max_sequences} are allowed. Ask for fewer answers, or split the prompts over several requests."
        )
        raise RequestError("too_many_sequences", message, param)


@dataclass(frozen=True, slots=True, eq=False)
class AnswerOptions:
    """How a request wants its answers.

    Attributes:
        sampling: How tokens are drawn; each of its keys is that of one draw from every prompt.
        stops: What ends an answer.
        logprobs: How many of the most probable tokens are told with each; None: no log-probabilities at all.
        stream: Whether answers are sent as events.
        include_usage: Whether an event at the end says the usage.
        cache_salt: The salt of cached prefixes.
    """

    sampling: Sampling
    stops: Stops
    logprobs: int | None = None
    stream: bool = False
    include_usage: bool = False
    cache_salt: str | None = None

    @property
    def draws(self) -> int:
        """Answers that are drawn from each prompt."""
        return len(self.sampling.keys)

    @property
    def top_tokens(self) -> int:
        """Most probable tokens that are read with each."""
        return self.logprobs or 0


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """What the engine writes behind prompts: of the first prompt one sequence for each draw, then of the next.

    Each is made when its turn comes, so that thousands that wait take no more memory than their prompts.

    Attributes:
        prompts: The prompts.
        max_new_tokens: Most tokens of a sequence.
        options: How they are asked for.
        end_ids: Tokens that end a sequence.
    """

    prompts: Prompts
    max_new_tokens: int
    options: AnswerOptions
    end_ids: frozenset[int]

    @property
    def most_tokens(self) -> int:
        """The most tokens that are computed; a prompt counts in each sequence behind it."""
        return len(self.prompts.tokens) * self.options.draws + len(self) * self.max_new_tokens

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.prompts.lens) * self.options.draws

    def __iter__(self) -> Iterator[GenerateRequest]:
        """Make one after the other."""
        options, keys = self.options, self.options.sampling.keys
        for begin, end in pairwise(self.prompts.starts.tolist()):
            for draw in range(options.draws):
                yield GenerateRequest(
                    self.prompts.tokens[begin:end],
                    self.max_new_tokens,
                    replace(options.sampling, keys=keys[draw : draw + 1]),
                    self.end_ids,
                    options.top_tokens,
                    options.cache_salt,
                )


NO_SEQUENCES = Sequences(
    Prompts(np.zeros(0, np.int32), np.zeros(0, np.int64)),
    0,
    AnswerOptions(Sampling(np.zeros((0, 2), np.int32)), Stops()),
    frozenset(),
)
"""What is written where scores say all."""


def sequences_after(
    prompts: Prompts,
    max_new_tokens: int,
    options: AnswerOptions,
    tokenizer: Tokenizer | None,
    limits: Limits,
    param: str,
    prompt_param: str = "prompt",
) -> Sequences:
    """Return what is written; refuse more than fits the context, or than a request may hold.

    Args:
        prompts: The prompts.
        max_new_tokens: Most tokens of an answer.
        options: How answers are asked for.
        tokenizer: Says where they end; needed.
        limits: What the request may ask for.
        param: The field that has `max_new_tokens`.
        prompt_param: The field that has the prompts.

    Raises:
        RequestError: `task_not_supported`, `context_length_exceeded` or `too_many_tokens`.
    """
    if tokenizer is None:
        raise RequestError("task_not_supported", "This engine has no tokenizer, so it cannot generate text.", param)
    longest, answers = int(prompts.lens.max()), len(prompts.lens) * options.draws
    if longest + max_new_tokens > limits.context_length:
        message = (
            f"The prompt's {longest} tokens and {max_new_tokens} new ones exceed the context of "
            f"{limits.context_length} tokens; shorten the prompt or lower {param}."
        )
        raise RequestError("context_length_exceeded", message, prompt_param)
    new = answers * max_new_tokens
    tokens, values = len(prompts.tokens) + new, new * (1 + options.top_tokens)
    if tokens > limits.max_request_tokens:
        message = (
            f"Prompts and {answers} answers may have {tokens} tokens; at most {limits.max_request_tokens} are allowed."
        )
        raise RequestError("too_many_tokens", message, param)
    if values > limits.max_scores:
        message = f"{new} new tokens may have {values} log-probabilities; at most {limits.max_scores} are allowed."
        raise RequestError("too_many_tokens", message, param)
    return Sequences(prompts, max_new_tokens, options, options.stops.end_ids(tokenizer))
