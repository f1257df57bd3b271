"""What a request may begin on, and which shards suit it best."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from mis_core.requests import Layout
from mis_core.scheduler.homes import Home
from mis_core.scheduler.plan import StepShape
from mis_core.scheduler.spreading import ShardState, rank_homes


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """What a request may begin on.

    Attributes:
        homes: All shards.
        shape: What a step has room for.
        layout: How requests are laid out unless they say otherwise.
        waiting_tokens: By shard, the tokens that requests still have to compute there.
        is_alone: Whether no other request runs or waits.
    """

    homes: Sequence[Home]
    shape: StepShape
    layout: Layout
    waiting_tokens: list[float]
    is_alone: bool

    def rank(
        self,
        query: Int32[np.ndarray, " tokens"],
        more_tokens: int,
        salt: str | None,
        *,
        anew: bool = False,
        may_be_cut: bool = False,
    ) -> list[list[Home]]:
        """Return the sets of shards that a request may get, the cheapest first; see `rank_homes`.

        Args:
            query: Tokens that may be cached.
            more_tokens: How many more it computes.
            salt: Of its cache entries.
            anew: Whether its query is computed even where it is cached.
            may_be_cut: Whether it may get all shards, if it is alone.
        """
        if len(self.homes) == 1:
            return [[*self.homes]]
        states = []
        for home, tokens in zip(self.homes, self.waiting_tokens, strict=True):
            cached = home.cache.count_cached(home.cache.lock(query, salt, anew=anew))
            states.append(ShardState(tokens, cached, home.cache.statistics.free_pages))
        ranked = rank_homes(len(query), more_tokens, states, is_alone=self.is_alone and may_be_cut)
        return [[self.homes[shard] for shard in shards] for shards in ranked]
