"""How the tokens of a step are dealt to the requests that take turns.

Each has an equal share of a step, but no less than a quarter: smaller parts would put more contexts into every step,
and end no request sooner. So where more than four run, some wait for the next step; those that had their share go
behind them. A request that needs at most half a step gets it at once, and keeps its turn until it has it.

With hundreds of small requests a turn takes many steps, and a large one would get a quarter of a step in each. So the
oldest is served in every step, before all others, and has a third of it; and what the others leave.
"""

from mis_core.scheduler.plan import PAGE_SIZE


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


def oldest_is_first(tokens: int, least: int) -> bool:
    """Return whether the oldest is served in every step: not where a share is a whole step, which it would keep."""
    return tokens >= 2 * least
