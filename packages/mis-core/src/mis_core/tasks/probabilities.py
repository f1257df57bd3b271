"""From logits to probabilities, on the host, in float64: finite logits never make NaN or infinity."""

import msgspec
import numpy as np
from jaxtyping import Bool, Float32, Float64

from mis_core.calibration import Calibrations, Entry, log_softmax, softmax
from mis_core.requests import EngineOutput

LOWEST = float(np.finfo(np.float32).min)
"""Stands for the log-probability of what is impossible."""


def label_logprobs(output: EngineOutput) -> Float32[np.ndarray, "items labels"]:
    """Return full-vocabulary natural log-probabilities of the labels.

    Raises:
        ValueError: the output has no `log_sum_exp`.
    """
    if output.log_sum_exp is None:
        raise ValueError("The request needs log_sum_exp, and the engine's output has none.")
    return normalised(output.logits, output.log_sum_exp)


def normalised(
    logits: Float32[np.ndarray, "rows values"], log_sum_exp: Float32[np.ndarray, " rows"]
) -> Float32[np.ndarray, "rows values"]:
    """Return natural log-probabilities: finite, and at most 0."""
    logprobs = np.subtract(logits, log_sum_exp[:, None], dtype=np.float64)
    # The normaliser is rounded: the likeliest token must not come out above probability 1.
    return np.minimum(np.maximum(logprobs, LOWEST), 0.0).astype(np.float32)


def label_softmax(
    logits: Float32[np.ndarray, "items labels"],
    is_label: Bool[np.ndarray, "label_rows labels"],
    temperature: float | Float64[np.ndarray, "items 1"] = 1.0,
) -> Float32[np.ndarray, "items labels"]:
    """Return the softmax of each item's labels after division by the temperature; 0 where there is no label."""
    with np.errstate(over="ignore"):
        return softmax(_below_best(logits, is_label) / temperature).astype(np.float32)


def label_log_softmax(
    logits: Float32[np.ndarray, "items labels"],
    is_label: Bool[np.ndarray, "label_rows labels"],
    temperature: float | Float64[np.ndarray, "items 1"] = 1.0,
) -> Float64[np.ndarray, "items labels"]:
    """Return the logarithm of `label_softmax`, not rounded; minus infinity where there is no label."""
    with np.errstate(over="ignore"):
        return log_softmax(_below_best(logits, is_label) / temperature)


def sigmoid(values: Float64[np.ndarray, "*rows"]) -> Float64[np.ndarray, "*rows"]:
    """Return `1 / (1 + exp(-values))`."""
    with np.errstate(over="ignore"):  # of what is far below zero, whose sigmoid is 0
        return 1.0 / (1.0 + np.exp(-values))


def log_sigmoid(values: Float64[np.ndarray, "*rows"]) -> Float64[np.ndarray, "*rows"]:
    """Return the logarithm of `sigmoid`, which is finite."""
    return -np.logaddexp(0.0, -values)


def _below_best(
    logits: Float32[np.ndarray, "items labels"], is_label: Bool[np.ndarray, "label_rows labels"]
) -> Float64[np.ndarray, "items labels"]:
    values = np.where(is_label, logits.astype(np.float64), -np.inf)
    return values - values.max(axis=1, keepdims=True)  # first: a small temperature then overflows to -inf only


def check_finite(*values: np.ndarray, what: str = "values") -> None:
    """Refuse arrays of the engine's, of any shape, with numbers that are infinite or none.

    Raises:
        FloatingPointError: there are some.
    """
    if not all(np.isfinite(each).all() for each in values):
        raise FloatingPointError(f"The engine returned {what} that are not finite.")


def applied(calibrations: Calibrations | None, entry: Entry | None) -> str | msgspec.UnsetType | None:
    """Return what a result says of its calibration: the digest of an entry, or None; nothing where none is loaded."""
    if calibrations is None:
        return msgspec.UNSET
    return None if entry is None else entry.digest
