"""Who may still need how many pages: why a running request never waits for one."""

from collections.abc import Collection
from typing import Protocol, runtime_checkable

from mis_core.cache import PrefixCache


@runtime_checkable
class NeedsPages(Protocol):
    """A running request."""

    @property
    def missing_pages(self) -> int:
        """Most pages that it will still allocate."""
        ...


class Headroom:
    """Pages beyond what all running requests may still need."""

    def __init__(self, cache: PrefixCache, running: Collection[NeedsPages]) -> None:
        """Watch a cache.

        Args:
            cache: Where pages come from.
            running: Requests that were let in; the collection changes as they come and go.
        """
        self._cache = cache
        self._running = running

    @property
    def pages(self) -> int:
        """How many; negative while pages wait for the end of a step to be free again."""
        return self._cache.available - sum(each.missing_pages for each in self._running)
