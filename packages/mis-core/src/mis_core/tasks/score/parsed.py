"""A score request as its task has parsed it: what the engine computes, and what its result needs besides."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from mis_core.calibration import Identity
from mis_core.requests import ScoreRequest
from mis_core.tasks.fields.item_errors import ItemErrors
from mis_core.tasks.score.label_sequences import LabelSequences


@dataclass(frozen=True, slots=True, eq=False)
class ParsedScore:
    """A score request.

    Attributes:
        request: The items that are scored, perhaps none.
        requests: What the engine computes for them: one request, or nothing if no item can be scored.
        items: Which of the request's items these are, and why the others are not scored.
        sequences: Its labels, if some have several tokens; `request.label_ids` are their first tokens then.
        identity: What a calibration of it belongs to, where it may have one.
        begins: Tokens with which its query begins, where it has an identity: all of them that no item changes.
    """

    request: ScoreRequest
    requests: tuple[ScoreRequest, ...]
    items: ItemErrors
    sequences: LabelSequences | None = None
    identity: Identity | None = None
    begins: Int32[np.ndarray, " tokens"] | None = None
