"""From label logits to scores."""

import time

import numpy as np
from jaxtyping import Int32

from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.probabilities import label_logprobs, label_softmax
from mis_core.tasks.score.parsed import ParsedScore
from mis_core.tasks.score.result import ScoreResult
from mis_core.tasks.usage import Usage


def finish_score(parsed: ParsedScore, outputs: tuple[EngineOutput, ...]) -> ScoreResult:
    """Turn what the engine computed into the request's scores; see `Task.finish`.

    Without `apply_softmax` a score is the label's probability over the full vocabulary, the
    exponential of its log-probability. With it, a score is the softmax over the item's labels, in
    which the full-vocabulary normaliser cancels. A label of several tokens has the probability of its whole sequence,
    and the softmax is over these. Finite logits never make NaN or infinity.

    Of a model with a classification head, the vocabulary are the rows of its head; of a head with one row the
    probability is the sigmoid of its logit, because its normaliser (`runner.head`) counts the other class.
    """
    began = time.perf_counter()
    request, items = parsed.request, parsed.items
    output = outputs[0] if outputs else _nothing(request)
    logprobs = label_logprobs(output) if output.log_sum_exp is not None or request.needs_log_sum_exp else None
    logits = output.logits
    if parsed.sequences is not None:
        assert logprobs is not None, "sequences need log_sum_exp"
        logits = logprobs = parsed.sequences.logprobs(logprobs)
    if request.apply_softmax:
        scores = label_softmax(logits, request.label_ids, request.temperature)
    else:
        assert logprobs is not None, "without softmax, needs_log_sum_exp is true"
        scores = np.exp(logprobs)
    if len(request.label_ids) == request.num_items:  # perhaps rows of different lengths
        for values in (scores, logprobs):
            if values is not None:
                values[request.label_ids < 0] = np.nan
    return ScoreResult(
        scores=items.spread(scores),
        token_logprobs=items.spread(logprobs) if logprobs is not None and request.return_token_logprobs else None,
        usage=Usage(request.prompt_tokens, output.cached_tokens),
        timings_ms={**output.timings_ms, "finish": (time.perf_counter() - began) * 1e3},
        algorithm=output.algorithm,
        reason=output.reason,
        steps=output.steps,
        segments=sum(each.num_items for each in parsed.requests),
        contexts=len(np.unique(request.context_lens[request.context_lens > 0])),
        query_tokens=int(request.context_lens.max(initial=0)),
        placements=None if output.placements is None else _of_items(output.placements, parsed),
        errors=items.errors,
    )


def _of_items(placements: Int32[np.ndarray, "placements 6"], parsed: ParsedScore) -> Int32[np.ndarray, "placements 6"]:
    """Return placements with the items that were sent in place of segments: several labels have several segments."""
    (computed,) = parsed.requests
    segments = placements[:, 3]
    items = parsed.items.kept[segments // (computed.num_items // parsed.request.num_items)]
    placed = placements.copy()
    placed[:, 3] = np.where(segments < 0, segments, items)
    return placed


def _nothing(request: ScoreRequest) -> EngineOutput:
    """Return the output of a request without items."""
    return EngineOutput(np.empty((0, request.label_ids.shape[1]), np.float32), np.empty(0, np.float32))
