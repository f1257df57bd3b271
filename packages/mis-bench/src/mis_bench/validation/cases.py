"""What is scored, the runbook's fixed request and random ones, alike on every machine; and how targets are asked."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from mis_bench.measuring.loop import DueRequest, drive
from mis_bench.targets.target import CallFailed, Layout, Scores, Target
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
        vocab_size: Tokens are folded into so many ids; None: they are not.
    """

    isolated: tuple[Workload, ...]
    compared: tuple[Workload, ...]
    free_token: int
    vocab_size: int | None

    def to_time(self, items: int, number: int) -> Workload:
        """Return a request of so many items of 20 tokens behind a query of 300; another number is another request."""
        return build_workload(f"speed-300-{items}-20").another(number).within(self.vocab_size)


def build_cases(vocab_size: int | None = None, preferred: int | None = None) -> Cases:
    """Return the cases.

    Args:
        vocab_size: Every token is folded into so many ids; None leaves them, for vocabularies of 100,000 and more.
        preferred: The token to take for the delimiter, if it is free; an end-of-text token is natural.
    """
    items = tuple(np.array(item, np.int32) for item in _ITEMS)
    fixed = Workload("runbook", np.array(_QUERY, np.int32), items, np.array(_LABELS, np.int32))
    others = map(build_workload, ("ragged-300-32-40", "even-64-16-20", "steps-700-120-20"))
    fixed, ragged, even, steps = (case.within(vocab_size) for case in (fixed, *others))
    used = {int(token) for case in (fixed, ragged, even, steps) for part in (case.query, *case.items) for token in part}
    free = [token for token in (preferred, *range(len(used) + 1)) if token is not None and token not in used]
    softmaxes = (replace(case, apply_softmax=True) for case in (fixed, ragged))
    return Cases((fixed, ragged, steps, *softmaxes), (fixed, ragged, even), free[0], vocab_size)


class ScoredCase(NamedTuple):
    """Scores, and the milliseconds that they took."""

    scores: Scores
    ms: float


@dataclass(frozen=True, slots=True)
class CaseScorer:
    """A way to ask a target.

    Attributes:
        target: Whom.
        timeout_s: Seconds that a request may take.
        layout: Fields of every request.
        splits: Whether a request is sent for each item, and the query forgotten before each.
    """

    target: Target
    timeout_s: float
    layout: Layout = field(default_factory=dict)
    splits: bool = False

    async def ask(self, workload: Workload, *, anew: bool = False) -> ScoredCase:
        """Ask; if `anew`, the query is forgotten before, which is not timed. Raises `CallFailed`."""
        parts = [replace(workload, items=(item,)) for item in workload.items] if self.splits else [workload]
        found: list[ScoredCase] = []
        for part in parts:
            if anew or self.splits:
                await self.target.forget()
            found += await self.at_once([part])
        return ScoredCase(np.concatenate([each.scores for each in found]), sum(each.ms for each in found))

    async def at_once(self, workloads: Sequence[Workload], callers: int = 1) -> list[ScoredCase]:
        """Ask several requests, so many under way at a time; raises `CallFailed`."""
        requests = [
            DueRequest(number, each.num_items, each.num_tokens, [self.target.prepare(each, self.layout)])
            for number, each in enumerate(workloads)
        ]
        sent, _ = await drive(self.target, requests, max_concurrency=callers, timeout_s=self.timeout_s)
        found = []
        for each in sent:
            if each.scores is None:
                raise CallFailed(each.error or "error", each.message)
            found.append(ScoredCase(each.scores, 1e3 * (each.done_s - each.sent_s)))
        return found
