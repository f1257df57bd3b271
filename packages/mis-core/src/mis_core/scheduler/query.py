"""The query on its way through steps: computed once, in whole pages, as far as nobody has computed it before."""

import numpy as np

from mis_core.cache import PrefixCache, PrefixLock
from mis_core.scheduler.plan import PAGE_SIZE, StepBuilder


class QueryPrefill:
    """Plans the chunks of one request's query.

    Attributes:
        lock: Its pages.
        is_in_step: Whether the step being planned computes some of it.
    """

    def __init__(self, cache: PrefixCache, lock: PrefixLock) -> None:
        self.lock = lock
        self.is_in_step = False
        self._cache = cache

    @property
    def remaining_tokens(self) -> int:
        """Tokens still to be planned, if nobody else computes any."""
        return len(self.lock.tokens) - self.lock.done

    def match(self) -> bool:
        """Lock what others have computed; return whether nothing is left to compute."""
        if self.remaining_tokens:
            self._cache.match(self.lock)
        return not self.remaining_tokens

    def add(self, builder: StepBuilder, limit: int) -> int:
        """Add the next chunk to a step; return its tokens, at most `limit`."""
        rest, begin = self.remaining_tokens, self.lock.done
        room = builder.find_room(self.lock, paged=True, least=min(rest, PAGE_SIZE), scored=False)
        count = whole_pages(rest, min(room.tokens, limit)) if room else 0
        if not room or not count:
            return 0
        self._cache.insert(self.lock, count)
        self.is_in_step = True
        builder.add(
            room,
            pages=self.lock.pages,
            token_ids=self.lock.tokens[begin : begin + count],
            lens=np.array([count], np.int32),
            context_lens=np.array([begin], np.int32),
        )
        return count

    def release(self, *, count: bool = True) -> None:
        """Let go of the pages, which stay in the cache for others.

        Args:
            count: Whether what was found and computed enters the cache's statistics.
        """
        self._cache.release(self.lock, count=count)


def whole_pages(rest: int, room: int) -> int:
    """Return how many of the tokens that are left to put into the room: all, or as many as fill whole pages."""
    return rest if rest <= room else room - room % PAGE_SIZE
