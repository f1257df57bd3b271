"""Which shards a request gets: one or, if it is alone and large, all; by a cost anyone can follow.

The cost is in *token equivalents*, as in `algorithm`: how many tokens pass through a shard until the request is done.

    one shard  = tokens that wait there + query tokens that are not cached there + item tokens
    all shards = (query tokens that are not cached on every shard + item tokens) / shards + EXCHANGE

Where layers are recurrent one shard computes the query, so its tokens are not divided.

So a request goes where its query is cached, unless it would wait there longer than the query takes to compute again.
Other requests would leave no chip idle; so one is spread only if there are none, neither running nor waiting.
"""

from collections.abc import Sequence
from dataclasses import dataclass

EXCHANGE = 512.0
"""What spreading costs besides: what shards send each other, and steps too small to fill them; not measured."""


@dataclass(frozen=True, slots=True)
class ShardState:
    """What the choice depends on.

    Attributes:
        waiting_tokens: Tokens that requests of this shard still have to compute.
        cached_tokens: Query tokens found in its prefix cache.
        free_pages: Its pages that hold nothing.
    """

    waiting_tokens: float
    cached_tokens: int
    free_pages: int


def rank_homes(
    query_tokens: int, item_tokens: int, shards: Sequence[ShardState], *, is_alone: bool, divides_query: bool = True
) -> list[tuple[int, ...]]:
    """Return the sets of shards that a request may get, the cheapest first; among equals, more free pages first.

    Args:
        query_tokens: Tokens of its query.
        item_tokens: Tokens of all its items.
        shards: State of each shard.
        is_alone: Whether no other request runs or waits.
        divides_query: Whether the shards of a spread request share the computing of its query.
    """
    rest = [query_tokens - shard.cached_tokens + item_tokens for shard in shards]
    costs: dict[tuple[int, ...], float] = {
        (n,): shard.waiting_tokens + tokens for n, (shard, tokens) in enumerate(zip(shards, rest, strict=True))
    }
    if is_alone and len(shards) > 1:
        alone = 0 if divides_query else max(rest) - item_tokens
        costs[tuple(range(len(shards)))] = alone + (max(rest) - alone) / len(shards) + EXCHANGE
    return sorted(costs, key=lambda homes: (costs[homes], -shards[homes[0]].free_pages))
