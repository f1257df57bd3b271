"""The parts of a request that are computed in pages, chunk by chunk: its query, and its long items.

The query is computed once, as far as nobody has computed it before. A long item has pages of its own, behind whole
pages of the query.
"""

import dataclasses
from collections.abc import Collection, Hashable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from mis_core.requests import ScoreRequest
from mis_core.scheduler.answer import QUERY, Placements
from mis_core.scheduler.packing import Room, StepBuilder
from mis_core.scheduler.plan import EXCHANGED, PAGE_SIZE, Writes
from mis_core.scheduler.query_lock import QueryLock
from mis_core.scheduler.reading import Owner
from mis_core.scheduler.recurrence import StateUse


class QueryPrefill:
    """Plans the chunks of one request's query.

    Attributes:
        lock: Its pages.
        shards: Shards that have them.
        is_in_step: Whether the step being planned computes some of it.
    """

    def __init__(self, lock: QueryLock, owner: Owner, placements: Placements, num_reads: int) -> None:
        self.lock = lock
        self.shards = tuple(home.shard for home in lock.homes)
        self.is_in_step = False
        self._placements = placements
        self._owner = owner
        self._reads = np.arange(len(lock.tokens) - num_reads, len(lock.tokens), dtype=np.int32)

    @property
    def remaining_tokens(self) -> int:
        """Tokens still to be planned, if nobody else computes any."""
        return len(self.lock.tokens) - self.lock.done

    @property
    def context(self) -> Hashable:
        """What names the query's pages within a step: the last of them, which no other query has.

        Requests of the same query have the same one, unless this step computes some of it, or several shards.
        """
        if self.is_in_step or len(self.shards) > 1 or not len(self.lock.tokens):
            return self.lock
        return int(self.lock.pages(self.shards[0])[-1])

    def add(self, builder: StepBuilder, limit: int) -> int:
        """Add the next chunk to a step; return its tokens, at most `limit`."""
        begin = self.lock.done
        chunk = _Chunk(begin, len(self.lock.tokens), self._reads, first_read=0)
        room = chunk.find_room(builder, self.lock, self.lock.computing, len(self.lock.tokens))
        count = chunk.fitting(room, limit) if room else 0
        if not room or not count:
            return 0
        writes, states = self.lock.insert(count)
        self.is_in_step = True
        lens, context_lens = np.array([count], np.int32), np.array([begin], np.int32)
        row = builder.add(
            room,
            pages=self.lock.pages(room.shard),
            token_ids=self.lock.tokens[begin : begin + count],
            lens=lens,
            context_lens=context_lens,
            writes=writes,
            states=states,
        )
        self._placements.add(room, np.array([QUERY], np.int32), lens, context_lens)
        chunk.read(builder, room, self._owner, int(row[0]), count)
        return count


@dataclass(slots=True, eq=False)
class _PagedItem:
    """The item under way.

    Attributes:
        tokens: Tokens from the first page boundary on: what its last shared page lacks, then the item.
        num_shared: Pages shared with the query.
        pages: Its own pages, by shard that may compute it.
        done: Tokens planned.
        state_slot: Slot of its state between steps, if layers are recurrent and it goes on.
    """

    tokens: Int32[np.ndarray, " tokens"]
    num_shared: int
    pages: dict[int, Int32[np.ndarray, " pages"]]
    done: int = 0
    state_slot: int | None = None

    def writes(self, count: int) -> Writes:
        """Return where the next tokens go."""
        first, last = self.done // PAGE_SIZE, -(-(self.done + count) // PAGE_SIZE)
        return {shard: pages[first:last] for shard, pages in self.pages.items()}


class PagedItems:
    """Plans one request's long items, one after the other; under `serial`, all its items.

    Attributes:
        longest_context: Tokens of the longest, with what it sees of the query.
        in_step: Items in the step being planned.
    """

    def __init__(
        self,
        request: ScoreRequest,
        items: Int32[np.ndarray, " paged_items"],
        query: QueryPrefill,
        owner: Owner,
        placements: Placements,
        *,
        shares_query: bool,
    ) -> None:
        self.in_step = 0
        self._placements = placements
        self._request = request
        self._items = items
        self._query = query
        self._homes = {home.shard: home for home in query.lock.homes}
        self._owner = owner
        context_lens = request.context_lens[items]
        # Query tokens that each item computes again: those behind the last page it shares.
        self._repeated = context_lens % PAGE_SIZE if shares_query else context_lens
        self._tokens = self._repeated + np.diff(request.item_starts)[items]
        self._first_reads = request.read_starts[items]
        self._reads = np.diff(request.read_starts)[items]
        self._read_within = request.read_within if len(items) else np.zeros(0, np.int32)
        self._pages = -(-self._tokens // PAGE_SIZE)
        self.longest_context = int((context_lens - self._repeated + self._tokens).max(initial=0))
        self._next = 0
        self._current: _PagedItem | None = None
        self._retired: list[_PagedItem] = []

    @property
    def is_planned(self) -> bool:
        """Whether every token is in some step."""
        return self._next == len(self._items)

    @property
    def remaining_tokens(self) -> int:
        """Tokens still to be planned."""
        return int(self._tokens[self._next :].sum()) - (self._current.done if self._current else 0)

    @property
    def missing_pages(self) -> int:
        """Most pages that each shard will still allocate: the longest item's, less those of the one under way."""
        if self.is_planned:  # of most requests, each of which is asked whenever another begins
            return 0
        own = int(self._pages[self._next]) if self._current else 0
        return int(self._pages[self._next :].max(initial=0)) - own

    def missing_states(self, shard: int) -> int:
        """Return the most slots of a shard that will still be allocated.

        They are for the item under way, and the next of the same step.
        """
        if self.is_planned or self._homes[shard].cache.states is None:
            return 0
        return max(2 - self.own_states(shard), 0)

    def own_pages(self, shard: int) -> int:
        """Return how many pages of a shard are allocated now."""
        return sum(len(item.pages.get(shard, ())) for item in self._allocated)

    def own_states(self, shard: int) -> int:
        """Return how many slots for states of a shard are allocated now."""
        return sum(item.state_slot is not None and shard in item.pages for item in self._allocated)

    @property
    def _allocated(self) -> list[_PagedItem]:
        return [*self._retired, *([self._current] if self._current else [])]

    @property
    def _next_shards(self) -> list[int]:
        """Shards that may compute the next item: where layers are recurrent one, which has its state between steps."""
        shards = [*self._homes]
        if self._homes[shards[0]].cache.states is None:
            return shards
        return [shards[self._next % len(shards)]]

    def add(self, builder: StepBuilder, limit: int) -> int:
        """Add the next chunk of an item to a step; return its tokens, at most `limit`."""
        if self._current is None and any(home.headroom < 0 for home in self._homes.values()):
            return 0
        # Until the step's end frees those of items that are done.
        if self._current is None and any(self.own_states(shard) > 1 for shard in self._next_shards):
            return 0
        current = self._current = self._current or self._begin()
        first_read = int(self._first_reads[self._next])
        own = first_read - self._request.query_reads
        within = self._read_within[own : own + int(self._reads[self._next])]
        chunk = _Chunk(current.done, len(current.tokens), int(self._repeated[self._next]) + within, first_read)
        context_tokens = current.num_shared * PAGE_SIZE + len(current.tokens)
        room = chunk.find_room(builder, current, current.pages.keys(), context_tokens)
        count = chunk.fitting(room, limit) if room else 0
        if not room or not count:
            return 0
        lens = np.array([count], np.int32)
        context_lens = np.array([current.num_shared * PAGE_SIZE + current.done], np.int32)
        shared = self._query.lock.pages(room.shard)[: current.num_shared]
        row = builder.add(
            room,
            pages=np.concatenate([shared, current.pages[room.shard]]),
            token_ids=current.tokens[current.done : current.done + count],
            lens=lens,
            context_lens=context_lens,
            writes=current.writes(count),
            states=self._states(current, count, room.shard),
        )
        self._placements.add(room, self._items[self._next : self._next + 1], lens, context_lens)
        chunk.read(builder, room, self._owner, int(row[0]), count)
        current.done += count
        self.in_step += 1
        if current.done == len(current.tokens):
            self._retire(current)
            self._next += 1
        return count

    def free_retired(self) -> None:
        """Free the pages of items that are done; between steps only: the step that reads them must not write them."""
        for item in self._retired:
            for shard, pages in item.pages.items():
                cache = self._homes[shard].cache
                cache.free(pages)
                if cache.states is not None and item.state_slot is not None:
                    cache.states.free(item.state_slot)
        self._retired = []

    def free(self) -> None:
        """Free all pages; between steps only."""
        if self._current is not None:
            self._retire(self._current)
        self.free_retired()

    def _begin(self) -> _PagedItem:
        request, item = self._request, int(self._items[self._next])
        context = int(request.context_lens[item])
        shared = context - int(self._repeated[self._next])
        own = request.item_tokens[request.item_starts[item] : request.item_starts[item + 1]]
        tokens = np.concatenate([request.query[shared:context], own])
        count = int(self._pages[self._next])
        pages = {shard: self._homes[shard].cache.allocate(count) for shard in self._next_shards}
        return _PagedItem(tokens, shared // PAGE_SIZE, pages)

    def _states(self, item: _PagedItem, count: int, shard: int) -> StateUse | None:
        """Return the states that the next tokens of an item read and write."""
        slots = self._homes[shard].cache.states
        if slots is None:
            return None
        slot = item.state_slot
        if not item.done:
            use = self._query.lock.states_after(np.array([item.num_shared * PAGE_SIZE], np.int32), shard)
        else:
            assert slot is not None, "an item goes on from no state"
            use = StateUse(np.array([slot], np.int32))
        if use is None or item.done + count == len(item.tokens):
            return use
        if slot is None:
            slot = item.state_slot = slots.allocate()
        return use._replace(writes=((count, slot),))

    def _retire(self, item: _PagedItem) -> None:
        self._retired.append(item)
        self._current = None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The next chunk of a sequence in pages, of which some rows are read.

    Attributes:
        done: Tokens planned before.
        length: Tokens of the sequence.
        reads: Rows of it that are read, rising.
        first_read: Number of the first of these among all that the request reads.
    """

    done: int
    length: int
    reads: Int32[np.ndarray, " reads"]
    first_read: int

    def _reads_before(self, token: int) -> int:
        """Return how many rows before a token are read."""
        return int(np.searchsorted(self.reads, token))

    def find_room(
        self, builder: StepBuilder, context: Hashable, shards: Collection[int], context_tokens: int
    ) -> Room | None:
        """Find room for a page at least, or for all that is left. Shards of a spread request take turns."""
        least = min(self.length - self.done, PAGE_SIZE)
        scored = self._reads_before(self.done + least) - self._reads_before(self.done)
        room = builder.find_room(context, shards, paged=True, least=least, scored=scored, context_tokens=context_tokens)
        if room and len(shards) > 1:
            return dataclasses.replace(room, tokens=min(room.tokens, EXCHANGED))
        return room

    def fitting(self, room: Room, limit: int) -> int:
        """Return how many tokens to put into the room, at most `limit`: all, or as many as fill whole pages."""
        rest, beyond = self.length - self.done, self._reads_before(self.done) + room.scored
        readable = int(self.reads[beyond]) - self.done if beyond < len(self.reads) else rest
        most = min(room.tokens, limit, readable)
        return rest if rest <= most else most - most % PAGE_SIZE

    def read(self, builder: StepBuilder, room: Room, owner: Owner, last_row: int, count: int) -> None:
        """Have those of the chunk's `count` tokens read that are to be, the last of which is in `last_row`."""
        first, last = self._reads_before(self.done), self._reads_before(self.done + count)
        if first < last:
            rows = last_row + 1 - count + self.reads[first:last] - self.done
            reads = self.first_read + np.arange(first, last)
            builder.read(owner, room, rows.astype(np.int32), reads.astype(np.int32))
