"""What the scheduler holds of a request, whatever it asks: an entry while it waits, and a run once it has begun."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

from mis_core.scheduler.homes import Home, NeedsPages, Opening, Vacancy
from mis_core.scheduler.packing import StepBuilder
from mis_core.scheduler.reading import Owner


@dataclass(slots=True, eq=False)
class Waiting(ABC):
    """A request that waits.

    Attributes:
        can_be_passed: Whether later ones may begin before it, where it finds no pages.
        id: Its number.
        order: Rises from one arrival to the next; lower for those that lost their pages.
        tried: What the shards had left when it last found too little.
        passes: Requests that came later and began while it waited for pages, as far as they are counted.
        counted: Requests that had begun when they were.
    """

    can_be_passed: ClassVar[bool]

    id: int
    order: int = field(default=0, kw_only=True)
    tried: list[Vacancy] | None = field(default=None, kw_only=True)
    passes: int = field(default=0, kw_only=True)
    counted: int = field(default=0, kw_only=True)

    @abstractmethod
    def begin(self, opening: Opening) -> "Run | None":
        """Begin on the cheapest shards that have room for it, or return None if none have."""


@runtime_checkable
class Run(NeedsPages, Owner, Protocol):
    """A request that has begun, from then until it is answered, cancelled or has to give up its pages.

    Attributes:
        waiting: Its entry while it waited.
        homes: Where it has its pages; more than one if it is spread.
        dense_mask: Whether it asks for materialised masks.
        is_mixed: Whether it is computed in mixed steps, see `StepShape.is_mixed`.
    """

    waiting: Waiting
    homes: tuple[Home, ...]
    dense_mask: bool
    is_mixed: bool

    @property
    def is_planned(self) -> bool:
        """Whether all its segments are in some step."""

    @property
    def remaining_tokens(self) -> int:
        """Tokens of segments that are still to be planned."""

    def own_pages(self, shard: int) -> int:
        """Return how many pages of a shard are allocated outside its prefix cache's tree."""

    def own_states(self, shard: int) -> int:
        """Return how many slots for states of a shard are allocated outside its prefix cache's tree."""

    def contribute_query(self, builder: StepBuilder, limit: int) -> int:
        """Add parts of its query to a step; return how many tokens were added, at most `limit`."""

    def contribute(self, builder: StepBuilder, limit: int) -> int:
        """Add segments to a step; return how many tokens were added.

        Args:
            builder: The step.
            limit: Most tokens to add, at least `StepShape.longest_item`.
        """

    def end_step(self) -> None:
        """Free what the step just planned was the last to read."""

    def drop(self, *, count: bool = True) -> None:
        """End it and free everything; between steps only.

        Args:
            count: Whether what was found and computed of its query enters the cache's statistics.
        """
