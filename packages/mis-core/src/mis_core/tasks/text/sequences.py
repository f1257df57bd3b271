"""What the engine writes behind prompts, and how much of it a request may ask for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from mis_core.errors import RequestError
from mis_core.requests import GenerateRequest, Sampling
from mis_core.tasks.limits import Limits
from mis_core.tasks.text.prompt_groups import Prompts


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


def check_new_tokens(
    prompts: Prompts,
    choices: int,
    count: int,
    top_tokens: int,
    limits: Limits,
    param: str,
    prompt_param: str = "prompt",
) -> None:
    """Refuse to write more than fits the context, or than a request may hold.

    Args:
        prompts: The prompts.
        choices: Answers to each.
        count: Most tokens of an answer.
        top_tokens: Most probable tokens that are told with each.
        limits: What the request may ask for.
        param: The field that has `count`.
        prompt_param: The field that has the prompts.

    Raises:
        RequestError: `context_length_exceeded` or `too_many_tokens`.
    """
    longest = int(prompts.lens.max())
    if longest + count > limits.context_length:
        message = (
            f"The prompt's {longest} tokens and {count} new ones are more than the context holds, "
            f"{limits.context_length}; shorten the prompt or lower {param}."
        )
        raise RequestError("context_length_exceeded", message, prompt_param)
    answers = len(prompts.lens) * choices
    tokens, values = len(prompts.tokens) + answers * count, answers * count * (1 + top_tokens)
    if tokens > limits.max_request_tokens:
        message = f"Prompts and {answers} answers may have {tokens} tokens; at most {limits.max_request_tokens} may be."
        raise RequestError("too_many_tokens", message, param)
    if values > limits.max_scores:
        message = (
            f"{answers * count} new tokens may have {values} log-probabilities; at most {limits.max_scores} may be."
        )
        raise RequestError("too_many_tokens", message, param)


@dataclass(frozen=True, slots=True, eq=False)
class Sequences(Sequence[GenerateRequest]):
    """What the engine writes behind prompts: of the first prompt one sequence for each key, then of the next.

    Each is made when it is asked for, so that thousands that wait take no more memory than their prompts.

    Attributes:
        prompts: The prompts.
        max_new_tokens: Most tokens of a sequence.
        sampling: How tokens are drawn; each of its keys is that of one answer to every prompt.
        end_ids: Tokens that end a sequence.
        top_tokens: Most probable tokens that are told with each.
        cache_salt: The salt of cached prefixes.
    """

    prompts: Prompts
    max_new_tokens: int
    sampling: Sampling
    end_ids: frozenset[int]
    top_tokens: int
    cache_salt: str | None

    @property
    def draws(self) -> int:
        """Answers to each prompt."""
        return len(self.sampling.keys)

    @property
    def most_tokens(self) -> int:
        """The most tokens that are computed; a prompt counts in each sequence behind it."""
        return len(self.prompts.tokens) * self.draws + len(self) * self.max_new_tokens

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.prompts.lens) * self.draws

    @overload
    def __getitem__(self, index: int) -> GenerateRequest: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[GenerateRequest]: ...
    def __getitem__(self, index: int | slice) -> GenerateRequest | Sequence[GenerateRequest]:
        """Return one of them, or several; raises IndexError."""
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        prompt, draw = divmod(range(len(self))[index], self.draws)
        begin, end = self.prompts.starts[prompt : prompt + 2].tolist()
        sampling = replace(self.sampling, keys=self.sampling.keys[draw : draw + 1])
        tokens = self.prompts.tokens[begin:end]
        return GenerateRequest(tokens, self.max_new_tokens, sampling, self.end_ids, self.top_tokens, self.cache_salt)


def no_sequences() -> Sequences:
    """Return what is written where scores say all."""
    nothing = Prompts(np.zeros(0, np.int32), np.zeros(0, np.int64))
    return Sequences(nothing, 0, Sampling(np.zeros((0, 2), np.int32)), frozenset(), 0, None)
