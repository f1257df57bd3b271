"""The runbook's thresholds, all of them."""

from dataclasses import dataclass
from typing import Literal

Dtype = Literal["bfloat16", "float32"]
"""Types to compute in for which there are thresholds."""

ISOLATION = 0.0
"""Scores of items that were left alone keep their bits."""

SPEEDUP = 3.0
"""Least speed-up over serial scoring, from `SPEEDUP_ITEMS` items on."""

SPEEDUP_ITEMS = 32


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest differences between two computations of the same scores.

    Attributes:
        max_abs_diff: Of any label softmax.
        mean_abs_diff: Of label softmaxes on average.
        max_logprob_diff: Of any full-vocabulary log-probability. A softmax over the labels hides a fault that
            moves all labels alike; this finds it.
    """

    max_abs_diff: float
    mean_abs_diff: float
    max_logprob_diff: float


# bfloat16 keeps 8 bits: logits between 16 and 32 come in steps of 0.125, and two steps may go wrong.
_HALF = Limits(max_abs_diff=0.02, mean_abs_diff=0.01, max_logprob_diff=0.25)

EQUIVALENCE: dict[str, Limits] = {
    "bfloat16": _HALF,
    "float32": Limits(max_abs_diff=1e-5, mean_abs_diff=1e-5, max_logprob_diff=1e-4),
}
"""By dtype: the target against its own pointwise scores."""

PARITY: dict[str, Limits] = {
    "bfloat16": _HALF,
    "float32": Limits(max_abs_diff=1e-4, mean_abs_diff=1e-4, max_logprob_diff=1e-3),
}
"""By dtype: the target against transformers on PyTorch."""
