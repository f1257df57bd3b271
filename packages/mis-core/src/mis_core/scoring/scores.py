"""From label logits to scores, on the host, in float64."""

import time

import numpy as np
from jaxtyping import Float32, Int32
from scipy.special import softmax

from mis_core.scoring.request import EngineOutput, ScoreRequest, ScoreResult, Usage

_LOWEST = float(np.finfo(np.float32).min)


def finish(request: ScoreRequest, logits: EngineOutput) -> ScoreResult:
    """Turn what the device answered into the request's scores.

    Without `apply_softmax` a score is the label's probability over the full vocabulary, the
    exponential of its log-probability. With it, a score is the softmax over the item's labels, in
    which the full-vocabulary normaliser cancels. Finite logits never make NaN or infinity.

    Args:
        request: The request.
        logits: The device's answer to it, with `log_sum_exp` if `request.needs_log_sum_exp`.

    Raises:
        ValueError: `log_sum_exp` is missing though the request needs it.
    """
    began = time.perf_counter()
    logprobs = _logprobs(logits.logits, logits.log_sum_exp) if request.needs_log_sum_exp else None
    if request.apply_softmax:
        scores = _label_softmax(logits.logits, request.label_ids, request.temperature)
    else:
        assert logprobs is not None, "without softmax, needs_log_sum_exp is true"
        scores = np.exp(logprobs)
    if len(request.label_ids) > 1:  # rows of different lengths
        for values in (scores, logprobs):
            if values is not None:
                values[request.label_ids < 0] = np.nan
    return ScoreResult(
        scores=scores,
        token_logprobs=logprobs if request.return_token_logprobs else None,
        usage=Usage(request.prompt_tokens, logits.cached_tokens),
        timings_ms={**logits.timings_ms, "finish": (time.perf_counter() - began) * 1e3},
        algorithm=logits.algorithm,
        reason=logits.reason,
        steps=logits.steps,
    )


def _logprobs(
    logits: Float32[np.ndarray, "items labels"], log_sum_exp: Float32[np.ndarray, " items"] | None
) -> Float32[np.ndarray, "items labels"]:
    """Full-vocabulary natural log-probabilities."""
    if log_sum_exp is None:
        raise ValueError("The request needs log_sum_exp, and the device's answer has none.")
    logprobs = np.subtract(logits, log_sum_exp[:, None], dtype=np.float64)
    # The normaliser is rounded: the likeliest token must not come out above probability 1.
    return np.minimum(np.maximum(logprobs, _LOWEST), 0.0).astype(np.float32)


def _label_softmax(
    logits: Float32[np.ndarray, "items labels"], label_ids: Int32[np.ndarray, "label_rows labels"], temperature: float
) -> Float32[np.ndarray, "items labels"]:
    """Softmax of each item's labels after division by the temperature; 0 where there is no label."""
    values = np.where(label_ids >= 0, logits.astype(np.float64), -np.inf)
    below_best = values - values.max(axis=1, keepdims=True)  # first: a small temperature then overflows to -inf only
    with np.errstate(over="ignore"):
        return softmax(below_best / temperature, axis=1).astype(np.float32)
