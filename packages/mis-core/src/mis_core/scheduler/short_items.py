"""The short items of a request, each of which keeps its keys and values among the new tokens of one step."""

import numpy as np
from jaxtyping import Int32

from mis_core.ragged import ramp, rows_at
from mis_core.requests import ScoreRequest
from mis_core.scheduler.answer import Placements
from mis_core.scheduler.packing import StepBuilder
from mis_core.scheduler.paged import QueryPrefill
from mis_core.scheduler.reading import Owner


class ShortItems:
    """Plans one request's short items, in their order, as many at a time as fit.

    Attributes:
        in_step: Items in the step being planned.
    """

    def __init__(
        self,
        request: ScoreRequest,
        items: Int32[np.ndarray, " short_items"],
        query: QueryPrefill,
        owner: Owner,
        placements: Placements,
    ) -> None:
        self.in_step = 0
        self._placements = placements
        self._request = request
        self._items = items
        self._query = query
        self._owner = owner
        self._lens = np.diff(request.item_starts)[items]
        self._most_context = int(request.context_lens[items].max(initial=0))
        self._ends = np.cumsum(self._lens)
        self._first_reads = request.read_starts[items]
        self._reads = np.diff(request.read_starts)[items]
        self._read_ends = np.cumsum(self._reads)
        self._read_within = rows_at(request.read_within, self._first_reads - request.query_reads, self._reads)
        self._next = 0

    @property
    def is_planned(self) -> bool:
        """Whether every item is in some step."""
        return self._next == len(self._items)

    @property
    def remaining_tokens(self) -> int:
        """Tokens still to be planned."""
        return 0 if self.is_planned else int(self._ends[-1]) - self._planned_tokens

    @property
    def _planned_tokens(self) -> int:
        return int(self._ends[self._next - 1]) if self._next else 0

    def add(self, builder: StepBuilder, limit: int, most_items: int) -> int:
        """Add the next items to a step, at most `most_items`; return their tokens, at most `limit`."""
        first, begin = self._next, self._planned_tokens
        lock = self._query.lock
        least, reads = int(self._lens[first]), int(self._reads[first])
        room = builder.find_room(
            self._query.context,
            self._query.shards,
            paged=False,
            least=least,
            scored=reads,
            context_tokens=self._most_context,
            most=limit,
        )
        if not room:
            return 0
        fitting = int(np.searchsorted(self._ends, begin + min(room.tokens, limit), side="right"))
        read_before = int(self._read_ends[first]) - reads
        readable = int(np.searchsorted(self._read_ends, read_before + room.scored, side="right"))
        last = min(fitting, readable, first + most_items)
        if last <= first:
            return 0
        items, lens = self._items[first:last], self._lens[first:last]
        context_lens = self._request.context_lens[items]
        last_rows = builder.add(
            room,
            pages=lock.pages(room.shard),
            token_ids=rows_at(self._request.item_tokens, self._request.item_starts[items], lens),
            lens=lens,
            context_lens=context_lens,
            states=lock.states_after(context_lens, room.shard),
        )
        self._placements.add(room, items, lens, context_lens)
        read_lens = self._reads[first:last]
        within = self._read_within[read_before : read_before + int(read_lens.sum())]
        rows = np.repeat(last_rows + 1 - lens, read_lens) + within
        reads = np.repeat(self._first_reads[first:last], read_lens) + ramp(read_lens)
        builder.read(self._owner, room, rows.astype(np.int32), reads.astype(np.int32))
        self._next = last
        self.in_step += len(items)
        return int(lens.sum())
