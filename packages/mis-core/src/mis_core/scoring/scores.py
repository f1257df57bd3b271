"""From label logits to scores, on the host, in float64."""

import time

import numpy as np
from jaxtyping import Float32, Int32
from scipy.special import softmax

from mis_core.scoring.request import EngineOutput, ScoreRequest, ScoreResult, Usage

_LOWEST = float(np.finfo(np.float32).min)


def finish_score(request: ScoreRequest, outputs: tuple[EngineOutput, ...]) -> ScoreResult:
    """Turn what the engine computed into the request's scores.

    Without `apply_softmax` a score is the label's probability over the full vocabulary, the
    exponential of its log-probability. With it, a score is the softmax over the item's labels, in
    which the full-vocabulary normaliser cancels. Finite logits never make NaN or infinity.

    Of a model with a classification head, the vocabulary are the rows of its head; of a head with one row the
    probability is the sigmoid of its logit, because its normaliser (`runner.head`) counts the other class.

    Args:
        request: The request.
        outputs: Its one output, with `log_sum_exp` if `request.needs_log_sum_exp`.

    Raises:
        ValueError: `log_sum_exp` is missing though the request needs it.
    """
    began = time.perf_counter()
    (output,) = outputs
    logprobs = label_logprobs(output) if request.needs_log_sum_exp else None
    if request.apply_softmax:
        scores = label_softmax(output.logits, request.label_ids, request.temperature)
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
        usage=Usage(request.prompt_tokens, output.cached_tokens),
        timings_ms={**output.timings_ms, "finish": (time.perf_counter() - began) * 1e3},
        algorithm=output.algorithm,
        reason=output.reason,
        steps=output.steps,
    )


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
    return np.minimum(np.maximum(logprobs, _LOWEST), 0.0).astype(np.float32)


def label_softmax(
    logits: Float32[np.ndarray, "items labels"],
    label_ids: Int32[np.ndarray, "label_rows labels"],
    temperature: float = 1.0,
) -> Float32[np.ndarray, "items labels"]:
    """Return the softmax of each item's labels after division by the temperature; 0 where there is no label."""
    values = np.where(label_ids >= 0, logits.astype(np.float64), -np.inf)
    below_best = values - values.max(axis=1, keepdims=True)  # first: a small temperature then overflows to -inf only
    with np.errstate(over="ignore"):
        return softmax(below_best / temperature, axis=1).astype(np.float32)
