"""The result of a request for scores."""

from dataclasses import dataclass, field

import msgspec
import numpy as np
from jaxtyping import Float32, Int32

from mis_core.tasks.fields.item_errors import ItemError
from mis_core.tasks.usage import Usage


@dataclass(frozen=True, slots=True, eq=False)
class ScoreResult:
    """Scores in the order of the request's items and labels.

    Attributes:
        scores: `[items, labels]`; with per-item label lists of different lengths, rows end in NaN; the row of an item
            that was not scored is NaN.
        token_logprobs: Full-vocabulary natural log-probabilities, shaped like `scores`, or None.
        usage: Token counts.
        timings_ms: Milliseconds by stage: `tokenize`, `queue` (until the first step has room), `plan`
            (host time for layouts), `device` (from the first step to the last value), `finish`.
        algorithm: Layout that was used: `serial`, `packed` or `prefill_extend`.
        reason: Why, in one sentence.
        steps: Device calls that computed some part of the request.
        segments: Runs of new tokens behind the query.
        contexts: Different beginnings of the query that they see.
        query_tokens: Tokens of the longest of these.
        placements: As in `EngineOutput`, with items of the request as they were sent in place of segments.
        errors: Why items were not scored, for a request that wants the others.
        calibration: Digest of the calibration of the scores, None if they have none; absent where none is loaded.
    """

    scores: Float32[np.ndarray, "items labels"]
    token_logprobs: Float32[np.ndarray, "items labels"] | None
    usage: Usage
    timings_ms: dict[str, float] = field(default_factory=dict)
    algorithm: str = ""
    reason: str = ""
    steps: int = 0
    segments: int = 0
    contexts: int = 0
    query_tokens: int = 0
    placements: Int32[np.ndarray, "placements 6"] | None = None
    errors: tuple[ItemError, ...] = ()
    calibration: str | msgspec.UnsetType | None = msgspec.UNSET
