"""What is read at rows of a step, and the values that come back."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int32

from mis_core.requests import EngineOutput, NewToken, Sampling


@runtime_checkable
class Owner(Protocol):
    """Whoever waits for the values of a request.

    Attributes:
        id: The request's number.
        is_cancelled: Whether it waits no longer; values that still come are dropped.
    """

    id: int
    is_cancelled: bool

    def reading(self, rows: Int32[np.ndarray, " rows"], *, shard: int, first: int) -> "Reading":
        """Return what is read at some rows of its request, see `Reading`."""

    def store(self, reading: "Reading", values: "Values") -> EngineOutput | NewToken | None:
        """Take the values of a reading; return the answer or the token that they complete."""


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Next tokens to draw at some rows of a reading.

    Attributes:
        rows: Which of the reading's rows, `[draws]`.
        items: Items of the owner that the tokens follow, `[draws]`.
        keys: Two words of a random key for each, `[draws, 2]`.
        positions: Position of each token in its sequence, `[draws]`.
        sampling: How all of them are drawn.
        slots: Slots of the sequences that they belong to, `[draws]`; None: of none.
        written: Tokens that the one sequence has written before, whose slot is new to it; None: it has the slot
            already, or penalises nothing.
        top_tokens: How many of the most probable tokens are wanted besides each; see `Values.top_ids`.
    """

    rows: Int32[np.ndarray, " draws"]
    items: Int32[np.ndarray, " draws"]
    keys: Int32[np.ndarray, "draws words"]
    positions: Int32[np.ndarray, " draws"]
    sampling: Sampling
    slots: Int32[np.ndarray, " draws"] | None = None
    written: Int32[np.ndarray, " written"] | None = None
    top_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Some scored rows of a shard, and what is to be read there.

    Attributes:
        owner: Whoever waits for the values.
        rows: Rows that the owner reads, in its own numbering, `[rows]`.
        shard: Shard that holds them.
        first: Number of the first one among the shard's scored rows; the others follow it.
        label_ids: Labels of each row, -1 where there is none, `[rows, labels]`.
        normalise: Whether the log of the sum of the exponentials of all logits is wanted.
        top_tokens: How many of the most probable tokens are wanted of rows that are not only drawn from.
        draws: Where next tokens are drawn; None: nowhere.
    """

    owner: Owner
    rows: Int32[np.ndarray, " rows"]
    shard: int
    first: int
    label_ids: Int32[np.ndarray, "rows labels"]
    normalise: bool
    top_tokens: int = 0
    draws: Draws | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """What was read at the rows of one reading; None for what was not wanted.

    Attributes:
        logits: Head values of the labels, `[rows, labels]`.
        log_sum_exp: Normalisers, `[rows]`.
        top_ids: Most probable tokens, best first, `[rows, top_tokens]`; or of the draws that want some.
        top_logits: Their head values.
        next_ids: Tokens drawn, `[draws]`.
        next_logits: Their head values, before bias and temperature.
        next_log_sums: Log of the sum of the exponentials of all logits there, `[draws]`.
    """

    logits: Float32[np.ndarray, "rows labels"]
    log_sum_exp: Float32[np.ndarray, " rows"] | None = None
    top_ids: Int32[np.ndarray, "rows top_tokens"] | None = None
    top_logits: Float32[np.ndarray, "rows top_tokens"] | None = None
    next_ids: Int32[np.ndarray, " draws"] | None = None
    next_logits: Float32[np.ndarray, " draws"] | None = None
    next_log_sums: Float32[np.ndarray, " draws"] | None = None
