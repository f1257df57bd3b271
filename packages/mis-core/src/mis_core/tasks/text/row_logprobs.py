"""What scores say of prompts and of answers of one token: from the engine's outputs to log-probabilities."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from jaxtyping import Float32, Int32

from mis_core.ragged import offsets
from mis_core.requests import EngineOutput, NewToken, ScoreRequest
from mis_core.tasks.probabilities import check_finite, normalised

Draw = TypeVar("Draw")


@dataclass(frozen=True, slots=True, eq=False)
class RowLogprobs:
    """What was read for requests that differ in their prompts only: the rows of the first, then those of the next.

    Attributes:
        label_logprobs: Natural log-probabilities of the labels at each row, `[rows, labels]`.
        top_ids: The most probable tokens there, best first, `[rows, top_tokens]`.
        top_logprobs: Their log-probabilities.
        tokens: The token drawn after each item, all of an answer; none where none are drawn.
    """

    label_logprobs: Float32[np.ndarray, "rows labels"]
    top_ids: Int32[np.ndarray, "rows top_tokens"]
    top_logprobs: Float32[np.ndarray, "rows top_tokens"]
    tokens: list[NewToken]

    @classmethod
    def of(cls, requests: tuple[ScoreRequest, ...], outputs: tuple[EngineOutput, ...]) -> Self:
        """Join the outputs of requests, at least one.

        Raises:
            ValueError: an output lacks what the requests need.
            FloatingPointError: what was drawn has values that are not finite.
        """

        def joined(name: str) -> np.ndarray:
            parts = [getattr(output, name) for output in outputs]
            if any(part is None for part in parts):
                raise ValueError(f"The requests need {name}, and an engine's output has none.")
            return np.concatenate(parts)

        log_sum_exp = joined("log_sum_exp")
        top_ids, top_logprobs = (np.zeros((len(log_sum_exp), 0), kind) for kind in (np.int32, np.float32))
        if requests[0].top_tokens:
            top_ids, top_logprobs = joined("top_ids"), normalised(joined("top_logits"), log_sum_exp)
        tokens: list[NewToken] = []
        if requests[0].sampling is not None:
            ids, last = joined("next_ids"), _last_rows(requests)
            logprobs = normalised(joined("next_logits")[:, None], log_sum_exp[last])[:, 0]
            check_finite(logprobs, top_logprobs[last], what="log-probabilities")
            rows = zip(ids.tolist(), logprobs.tolist(), top_ids[last], top_logprobs[last], strict=True)
            tokens = [NewToken(*row, "length") for row in rows]
        return cls(normalised(joined("logits"), log_sum_exp), top_ids, top_logprobs, tokens)


def best_choices(drawn: list[Draw], count: int, logprob: Callable[[Draw], float]) -> list[Draw]:
    """Return of the draws from one prompt those with the highest mean log-probability, the best first.

    Args:
        drawn: All draws.
        count: How many are wanted; if these are all, they stay in order.
        logprob: Returns the mean log-probability of a draw's tokens.
    """
    return drawn if len(drawn) <= count else sorted(drawn, key=logprob, reverse=True)[:count]


def _last_rows(requests: tuple[ScoreRequest, ...]) -> Int32[np.ndarray, " items"]:
    """Return the row of each item after which its next token is drawn."""
    bases = offsets(np.array([request.num_reads for request in requests]))
    ends = [request.read_starts[1:] + base for request, base in zip(requests, bases[:-1], strict=True)]
    return np.concatenate(ends) - np.int32(1)
