"""One sequence to be written, and the tokens as they come."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float32, Int32

from mis_core.scoring.request import Sampling

FinishReason = Literal["stop", "length"]
"""Why a sequence ended: by a token or text that ends it, or because it may not be longer."""


@dataclass(frozen=True, slots=True, eq=False)
class GenerateRequest:
    """A prompt, and how it goes on. Valid by construction: prompt and new tokens fit the context.

    Attributes:
        prompt: At least one token, `[prompt_tokens]`.
        max_new_tokens: Most tokens that are written, at least 1.
        sampling: How each is drawn; its keys are one, `[1, 2]`.
        end_ids: Tokens that end the sequence; they are its last.
        top_tokens: How many of the most probable tokens are wanted in place of each, at most `MAX_TOP_TOKENS`.
        cache_salt: Requests share cached prefixes only with requests of the same salt.
    """

    prompt: Int32[np.ndarray, " prompt_tokens"]
    max_new_tokens: int
    sampling: Sampling
    end_ids: frozenset[int] = frozenset()
    top_tokens: int = 0
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class NewToken:
    """One token of a sequence. Log-probabilities are natural, of the model's own distribution.

    Attributes:
        token_id: The token.
        logprob: Its log-probability, before bias, penalties and temperature.
        top_ids: The most probable tokens in its place, best first, `[top_tokens]`.
        top_logprobs: Their log-probabilities.
        finish_reason: Why it is the last one; None: more follow.
        cached_tokens: Tokens of the prompt that were found in the prefix cache when the sequence began.
    """

    token_id: int
    logprob: float
    top_ids: Int32[np.ndarray, " top_tokens"]
    top_logprobs: Float32[np.ndarray, " top_tokens"]
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
