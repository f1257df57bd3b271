"""What is scored: the runbook's fixed request, and random ones that any machine makes alike."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mis_bench.workload import Workload, build_workload

_QUERY = (1957, 1437, 25975, 25)
_ITEMS = ((3838, 374), (12095, 11, 264), (1207,), (791, 1850, 198, 40), (2980, 13089, 9))
_LABELS = (9834, 902)


@dataclass(frozen=True, slots=True)
class Cases:
    """Requests for the gates.

    Attributes:
        isolated: What isolation is tested on: probabilities and label softmaxes, one step and several.
        compared: What is compared with serial scores and with PyTorch; probabilities, from which label softmaxes
            follow.
        free_token: A token in none of them, for a delimiter.
    """

    isolated: tuple[Workload, ...]
    compared: tuple[Workload, ...]
    free_token: int


def build_cases(vocab_size: int | None = None, preferred: int | None = None) -> Cases:
    """Return the cases.

    Args:
        vocab_size: Every token is folded into so many ids; None leaves them, for vocabularies of 100,000 and more.
        preferred: The token to take for the delimiter, if it is free; an end-of-text token is natural.
    """
    fixed = Workload(
        "runbook",
        np.array(_QUERY, np.int32),
        tuple(np.array(item, np.int32) for item in _ITEMS),
        np.array(_LABELS, np.int32),
    )
    compared = fixed, build_workload("ragged-300-32-40"), build_workload("even-64-16-20")
    isolated = *compared[:2], build_workload("steps-700-120-20")
    if vocab_size is not None:
        compared = tuple(case.within(vocab_size) for case in compared)
        isolated = tuple(case.within(vocab_size) for case in isolated)
    return Cases(
        isolated=(*isolated, *(replace(case, apply_softmax=True) for case in isolated[:2])),
        compared=compared,
        free_token=_free_token((*isolated, *compared), preferred),
    )


def with_items(case: Workload, items: Sequence[np.ndarray | str]) -> Workload:
    """Return the request with other items."""
    return replace(case, items=tuple(items))


def _free_token(cases: Sequence[Workload], preferred: int | None) -> int:
    used = set(np.concatenate([np.concatenate([case.query, *case.items]) for case in cases]).tolist())
    candidates = [] if preferred is None else [preferred]
    return next(token for token in (*candidates, *range(len(used) + 1)) if token not in used)
