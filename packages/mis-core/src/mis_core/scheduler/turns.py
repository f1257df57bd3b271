"""How the tokens of a step are dealt to the requests that take turns.

Each has an equal share of a step, but at least a quarter. Smaller parts would put more contexts into every step, and
end no request sooner. So where more than four run, some wait for the next step. A request that has had its share goes
behind them. One that needs at most half a step gets it at once, and keeps its turn until it is computed.

Among hundreds of small requests, a large one would have its turn once in many steps. So the oldest is served first in
every step. It gets a third, and then what the others leave.
"""

from collections.abc import Sequence
from typing import TypeVar

from mis_core.scheduler.plan import PAGE_SIZE

Run = TypeVar("Run")


def is_small(tokens: int, remaining: int) -> bool:
    """Return whether a request that needs so many more tokens gets them at once in a step of `tokens`."""
    return remaining <= tokens // 2


def share(tokens: int, running: int, remaining: int, *, least: int, alignment: int, is_oldest: bool) -> int:
    """Return how many tokens of a step a request gets, before what the others leave.

    Args:
        tokens: Most new tokens of the step.
        running: Requests that take turns.
        remaining: Tokens that the request still needs.
        least: The fewest that a part may have: what the longest item takes that is computed whole.
        alignment: Rows of one context that lie together; a part of a run would be padded to all of it.
        is_oldest: Whether no other has come before it.
    """
    if is_small(tokens, remaining):
        return max(remaining, alignment)
    part, unit = max(tokens // running, tokens // (3 if is_oldest else 4)), max(alignment, PAGE_SIZE)
    return max(-(-part // unit) * unit, least)


def oldest_first(runs: Sequence[Run], oldest: Run, *, tokens: int, least: int) -> list[Run]:
    """Return runs in the order in which a step of `tokens` serves them: the oldest, then the others in their turn.

    Where a share is a whole step, the oldest waits for its turn: it would leave nothing to the others.
    """
    if tokens < 2 * least:
        return list(runs)
    return [oldest, *(run for run in runs if run is not oldest)]
