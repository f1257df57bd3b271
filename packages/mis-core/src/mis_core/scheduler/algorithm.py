"""Which layout a request gets: `serial`, `packed` or `prefill_extend`, by a cost model anyone can follow.

A step costs what its padded tokens cost, plus a fixed part for its launch; a token costs its products
with the weights, plus its products with the context it sees. Everything is counted in *token
equivalents*: the cost of one new token's products with the weights.

    step    = LAUNCH + padded tokens + attended keys / KEYS_PER_TOKEN
    request = the sum over its steps

`packed` starts items in the step that ends the query, `prefill_extend` in the next one, `serial` computes
query and item again for every item. Equal costs go to `prefill_extend`, whose query steps serve other
requests of the same query soonest. The constants are those of a 0.6B model; the choice depends on them
only where the candidates are within a few percent. Memory does not enter: all three hold one sequence's
pages at a time, and the scheduler lets a request begin only when these can be had.
"""

from dataclasses import dataclass

LAUNCH = 32.0
KEYS_PER_TOKEN = 4096.0


@dataclass(frozen=True, slots=True)
class RequestSize:
    """What the choice depends on.

    Attributes:
        query_tokens: Query tokens that have to be computed.
        cached_tokens: Query tokens found in the prefix cache.
        num_items: Distinct items.
        num_item_tokens: Tokens of all of them.
        token_budget: Most new tokens of a step.
    """

    query_tokens: int
    cached_tokens: int
    num_items: int
    num_item_tokens: int
    token_budget: int


@dataclass(frozen=True, slots=True)
class AlgorithmChoice:
    """The layout of a request.

    Attributes:
        algorithm: `serial`, `packed` or `prefill_extend`.
        dense_mask: Whether masks are materialised.
        reason: One sentence for people.
    """

    algorithm: str
    dense_mask: bool
    reason: str


def choose(algorithm: str, mask: str, size: RequestSize) -> AlgorithmChoice:
    """Choose a layout.

    Args:
        algorithm: One of `mis_core.config.ALGORITHMS`; anything but `auto` is obeyed.
        mask: One of `mis_core.config.MASKS`; `auto` is `segment`, which holds no array of new tokens x all
            tokens.
        size: The request.
    """
    dense = mask == "dense"
    if algorithm != "auto":
        return AlgorithmChoice(algorithm, dense and algorithm == "packed", "asked for")
    costs = {name: cost(name, size) for name in ("prefill_extend", "packed", "serial")}
    best = min(costs, key=lambda name: (round(costs[name]), list(costs).index(name)))
    if dense:
        return AlgorithmChoice("packed", True, "a dense mask was asked for, which only packed has")
    listed = ", ".join(f"{name} {value:.0f}" for name, value in costs.items())
    reason = (
        f"estimated cost in token equivalents: {listed} "
        f"(query {size.query_tokens} to compute and {size.cached_tokens} cached, {size.num_items} items of "
        f"{size.num_item_tokens / max(size.num_items, 1):.0f} tokens, budget {size.token_budget})"
    )
    return AlgorithmChoice(best, False, reason)


def cost(algorithm: str, size: RequestSize) -> float:
    """Return the estimated cost of a request in token equivalents, 0 or more."""
    context = size.query_tokens + size.cached_tokens
    if algorithm == "serial":
        length = context + size.num_item_tokens / max(size.num_items, 1)
        return size.num_items * _steps(length, size.token_budget, length / 2)
    attended = size.query_tokens * (size.cached_tokens + size.query_tokens / 2) + size.num_item_tokens * context
    tokens = size.query_tokens + size.num_item_tokens
    keys = attended / max(tokens, 1)
    if algorithm == "packed":
        return _steps(tokens, size.token_budget, keys)
    query = (
        _steps(size.query_tokens, size.token_budget, size.cached_tokens + size.query_tokens / 2)
        if size.query_tokens
        else 0.0
    )
    return query + _steps(size.num_item_tokens, size.token_budget, context)


def _steps(tokens: float, budget: int, keys: float) -> float:
    """Cost of so many tokens that see so many keys each, in steps of the budget."""
    whole, rest = divmod(tokens, budget)
    return (whole + (rest > 0)) * LAUNCH + tokens + tokens * keys / KEYS_PER_TOKEN


def largest_safe_budget(candidates: list[int], bytes_per_token: float, free_bytes: float) -> int:
    """Return the largest token budget whose step needs less than 0.9 of the free memory.

    Args:
        candidates: Token budgets, rising.
        bytes_per_token: Temporary memory of a step per new token.
        free_bytes: Memory left for temporaries.

    Returns:
        The smallest candidate where none fits.
    """
    fitting = [budget for budget in candidates if budget * bytes_per_token < 0.9 * free_bytes]
    return max(fitting, default=candidates[0])
