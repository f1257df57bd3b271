"""How a step is filled: `StepBuilder` packs runs of segments into the shards that have their pages.

The arrays are concatenated once, at the end. Nothing here loops over items.
"""

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from mis_core.ragged import ramp
from mis_core.scheduler.plan import PAGE_SIZE, PageWrites, ShardPlan, StepPlan, StepShape, Writes
from mis_core.scheduler.reading import Owner, Reading
from mis_core.scheduler.recurrence import PlannedChunks, StateCopy, StateUse, chunks_of, joined_chunks


@dataclass(slots=True, eq=False)
class _Run:
    """Segments of one context, side by side."""

    start: int
    context: int
    token_ids: np.ndarray
    lens: np.ndarray
    context_lens: np.ndarray
    paged: bool
    states: StateUse | None


class _Shard:
    def __init__(self, shape: StepShape) -> None:
        self.shape = shape
        self.used = 0
        self.gaps: list[tuple[int, int]] = []  # rows before `used` that nobody has
        self.scored = 0
        self.tiles = 0
        self._visited: dict[Hashable, tuple[int, int]] = {}  # last block of each context, and tiles counted for it
        self.contexts: dict[Hashable, int] = {}
        self.tables: list[np.ndarray] = []
        self.runs: list[_Run] = []
        self.scored_rows: list[np.ndarray] = []

    def rooms(
        self, context: Hashable, *, paged: bool, least: int, end: int, context_tokens: int
    ) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows for the next segments of a context: gaps of at least so many rows, then the end."""
        if context not in self.contexts and len(self.contexts) == self.shape.contexts:
            return
        if not paged:
            # A long context is not visited for a few rows more.
            rows = 0 if self.shape.tiles is None else context_tokens // self.shape.tiles.keys
            yield from (gap for gap in self.gaps if gap[1] - gap[0] >= max(least, rows))
        same = bool(self.runs) and self.runs[-1].context == self.contexts.get(context)
        step = PAGE_SIZE if paged else 1
        if not same:
            step = max(step, self.shape.alignment)
        yield -(-self.used // step) * step, end

    def visible(self, context: Hashable, start: int, end: int, context_tokens: int) -> int:
        """Return the end of the rows from `start` on that may visit tiles of so many tokens of a context."""
        tiles = self.shape.tiles
        if tiles is None or not context_tokens:
            return end
        each, left = tiles.of_context(context_tokens), tiles.most - self.tiles
        first = self._new_tiles(context, start // tiles.rows, each)
        blocks = 1 + (left - first) // each if first <= left else 0
        return min(end, (start // tiles.rows + blocks) * tiles.rows)

    def occupy(self, context: Hashable, start: int, end: int, context_tokens: int) -> None:
        """Give rows to segments that see at most so many tokens of a context."""
        tiles = self.shape.tiles
        if tiles is not None:
            each, first, last = tiles.of_context(context_tokens), start // tiles.rows, (end - 1) // tiles.rows
            self.tiles += self._new_tiles(context, first, each) + (last - first) * each
            before, most = self._visited.get(context, (last, 0))
            self._visited[context] = last, max(each, most) if before == last else each
        if start >= self.used:
            if start > self.used and self.shape.alignment == 1:
                self.gaps.append((self.used, start))
            self.used = end
            return
        index = next(index for index, gap in enumerate(self.gaps) if gap[0] == start)
        self.gaps[index : index + 1] = [(end, self.gaps[index][1])] if end < self.gaps[index][1] else []

    def _new_tiles(self, context: Hashable, block: int, tiles: int) -> int:
        """Return how many tiles of a context a block visits that are not counted for it."""
        last, counted = self._visited.get(context, (-1, 0))
        return max(tiles - counted, 0) if block == last else tiles

    def plan(self) -> ShardPlan:
        def joined(arrays: list[np.ndarray], dtype: type = np.int32) -> np.ndarray:
            return np.concatenate([np.zeros(0, dtype), *arrays]).astype(dtype)

        runs = sorted(self.runs, key=lambda run: run.start)
        lens = joined([run.lens for run in runs])
        context_lens = joined([run.context_lens for run in runs])
        table = np.zeros((self.shape.contexts, self.shape.pages_per_context), np.int32)
        for row, pages in enumerate(self.tables):
            table[row, : len(pages)] = pages
        return ShardPlan(
            token_ids=joined([run.token_ids for run in runs]),
            positions=(np.repeat(context_lens, lens) + ramp(lens)).astype(np.int32),
            starts=joined([run.start + np.cumsum(run.lens) - run.lens for run in runs]),
            lens=lens,
            context_ids=joined([np.full(len(run.lens), run.context) for run in runs]),
            context_lens=context_lens,
            paged=joined([np.full(len(run.lens), run.paged) for run in runs], bool),
            page_table=table,
            scored_rows=joined(self.scored_rows),
            chunks=self._chunks(),
        )

    def _chunks(self) -> PlannedChunks | None:
        # In the order of planning: who reads a state was planned behind whoever writes it.
        parts = [chunks_of(run.start, run.lens, run.states) for run in self.runs if run.states is not None]
        return joined_chunks(parts) if parts else None


@dataclass(frozen=True, slots=True)
class Room:
    """Where segments of a context fit.

    Attributes:
        shard: Number of the shard.
        context: Identity of the context within the step.
        paged: Whether the segments are written to pages.
        start: First row.
        tokens: Tokens that fit.
        scored: Scored rows that fit.
        context_tokens: Cached tokens that they see at most.
    """

    shard: int
    context: Hashable
    paged: bool
    start: int
    tokens: int
    scored: int
    context_tokens: int


class StepBuilder:
    """Packs one step. `find_room` finds room; `add` fills it."""

    def __init__(self, shape: StepShape, tokens: int | None = None) -> None:
        """Begin an empty step, which uses at most `tokens` of each shard; default: all."""
        self._tokens = shape.tokens if tokens is None else min(tokens, shape.tokens)
        self._shards = [_Shard(shape) for _ in range(shape.shards)]
        self._readings: list[Reading] = []
        self._writes: list[PageWrites] = []
        self._copies: list[StateCopy] = []

    def find_room(
        self,
        context: Hashable,
        shards: Collection[int],
        *,
        paged: bool,
        least: int,
        scored: int,
        context_tokens: int,
        most: int | None = None,
    ) -> Room | None:
        """Find the shard with the most room for segments of a context; None if there is none.

        Args:
            context: Identity of the context within this step.
            shards: Shards that have its pages.
            paged: Whether the segments are written to pages.
            least: Fewest tokens of any use.
            scored: How many of the fewest are read.
            context_tokens: Cached tokens that they see at most, themselves included if they are written to pages.
            most: Most tokens that will be added; a run that takes more of whole segments is not begun for so few. Of
                no matter for paged segments, which may lie in several runs.
        """
        best = None
        for number in shards:
            shard = self._shards[number]
            rows = shard.shape.scored - shard.scored
            for start, end in shard.rooms(
                context, paged=paged, least=least, end=self._tokens, context_tokens=context_tokens
            ):
                if not paged and least <= shard.shape.whole_tokens:
                    start, end = _within_run(start, least, end, shard.shape.alignment)
                    if start % shard.shape.alignment == 0 and most is not None and most < end - start:
                        continue
                end = shard.visible(context, start, end, context_tokens)
                if end - start < least or rows < scored:
                    continue
                if best is None or start < best.start:
                    best = Room(number, context, paged, start, end - start, rows, context_tokens)
                break
        return best

    def add(
        self,
        room: Room,
        *,
        pages: Int32[np.ndarray, " pages"],
        token_ids: Int32[np.ndarray, " new_tokens"],
        lens: Int32[np.ndarray, " segments"],
        context_lens: Int32[np.ndarray, " segments"],
        writes: Writes | None = None,
        states: StateUse | None = None,
    ) -> Int32[np.ndarray, " segments"]:
        """Put segments of one context into a room, which is used up by that; return the last row of each segment.

        Args:
            room: What `find_room` returned last.
            pages: The room's shard's pages of the context, as far as known; a context's pages may only grow within a
                step.
            token_ids: New tokens, segment after segment.
            lens: New tokens of each segment.
            context_lens: Cached tokens before each segment.
            writes: Pages of each shard that the one segment of a paged room goes to.
            states: What recurrent layers read and write for the segments, if there are such layers.
        """
        shard = self._shards[room.shard]
        row = shard.contexts.setdefault(room.context, len(shard.contexts))
        if row == len(shard.tables):
            shard.tables.append(pages)
        elif len(pages) > len(shard.tables[row]):
            shard.tables[row] = pages
        shard.runs.append(_Run(room.start, row, token_ids, lens, context_lens, room.paged, states))
        shard.occupy(room.context, room.start, room.start + len(token_ids), room.context_tokens)
        if writes is not None:
            self._writes.append(PageWrites(room.shard, room.start, writes))
        if states is not None:
            self._copies += states.copies
        return (room.start + np.cumsum(lens) - 1).astype(np.int32)

    def read(
        self,
        owner: Owner,
        room: Room,
        rows: Int32[np.ndarray, " rows"],
        reads: Int32[np.ndarray, " rows"],
    ) -> None:
        """Have rows of a room's shard read for an owner.

        Args:
            owner: Whoever waits for the values.
            room: Where the rows are.
            rows: Their numbers in the shard.
            reads: Their numbers among those that the owner's request reads.
        """
        shard = self._shards[room.shard]
        self._readings.append(owner.reading(reads, shard=room.shard, first=shard.scored))
        shard.scored_rows.append(rows)
        shard.scored += len(rows)

    def finish(self, dense_mask: bool = False, is_mixed: bool = False) -> StepPlan | None:
        """Return the step, or None if nothing was added."""
        if not any(shard.runs for shard in self._shards):
            return None
        shards = tuple(shard.plan() for shard in self._shards)
        return StepPlan(
            shards,
            tuple(self._readings),
            tuple(self._writes),
            dense_mask,
            is_mixed=is_mixed,
            copies=tuple(self._copies),
        )


def _within_run(start: int, least: int, end: int, alignment: int) -> tuple[int, int]:
    """Return the first and the last row, exclusive, of a room in one run, this or the next, that takes `least`."""
    if start % alignment + least > alignment:
        start = -(-start // alignment) * alignment
    return start, min(end, start // alignment * alignment + alignment)
