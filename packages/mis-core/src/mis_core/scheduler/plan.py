"""Steps: what one device call computes, packed from the segments of any number of requests.

A step has one shard per device along the `data` axis; each is a packed array of new tokens.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32

from mis_core.scheduler.reading import Reading
from mis_core.scheduler.recurrence import CHUNK, PlannedChunks, StateCopy

PAGE_SIZE = CHUNK
"""Tokens of a page of the KV cache."""

LONGEST_ITEM = 1024
"""Longest item, in tokens, that keeps its K/V among the new tokens of its step, where a step has four times as many."""

STEP_MULTIPLE = 256
"""The most new tokens of a step are a multiple of this."""

EXCHANGED = 256
"""Most rows of a device that go to the others at a time; divides `STEP_MULTIPLE`."""

SLOTS = 64
"""Most rows of a decode step on each device: as many sequences are generated at a time."""

KEPT = -1
"""Instead of a page that has its K/V already and is not written again."""

Writes = dict[int, Int32[np.ndarray, " count"]]
"""By shard, the pages there that a segment's runs of `PAGE_SIZE` tokens go to, or `KEPT`."""


def longest_item(tokens: int) -> int:
    """Return the longest item, in tokens, that steps of so many tokens take whole: four of them fit."""
    return min(LONGEST_ITEM, tokens // 4)


class TileBudget(NamedTuple):
    """How many tiles of cached tokens the rows of a shard may visit.

    Attributes:
        rows: New tokens of a block, all of which visit the tiles that one of them sees.
        keys: Cached tokens of a tile.
        most: Most tiles, each counted once for every block that visits it.
    """

    rows: int
    keys: int
    most: int

    def of_context(self, context_tokens: int) -> int:
        """Return how many tiles a block visits of a context of so many tokens."""
        return -(-context_tokens // self.keys)


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step has room for.

    Attributes:
        tokens: Most new tokens of a shard, a multiple of `STEP_MULTIPLE`.
        scored: Most scored rows of a shard, at least `PAGE_SIZE` if whole prompts are read.
        contexts: Most contexts of a shard.
        pages_per_context: Longest context, in pages.
        longest_item: Longest item, in tokens, that keeps its K/V among the new tokens; longer ones have pages.
        alignment: Segments of different contexts are put into different runs of this many rows, because
            rows that lie together visit each other's context.
        shards: Devices along the `data` axis.
        tiles: Tiles that the rows of a shard may visit; None: any number.
        mixed: Room of steps of their own for requests of short contexts, whose rows lie side by side; None: all
            requests share steps.
    """

    tokens: int
    scored: int
    contexts: int
    pages_per_context: int
    longest_item: int
    alignment: int = 1
    shards: int = 1
    tiles: TileBudget | None = None
    mixed: "StepShape | None" = None

    def is_mixed(self, longest_context: int) -> bool:
        """Return whether a request is computed in mixed steps, by nothing but its longest context, in tokens."""
        return self.mixed is not None and longest_context <= self.mixed.pages_per_context * PAGE_SIZE

    def room(self, is_mixed: bool) -> "StepShape":
        """Return the room of mixed steps, or of the others."""
        return self.mixed if is_mixed and self.mixed is not None else self

    @property
    def whole_tokens(self) -> int:
        """Longest segment, in tokens, that is kept within a run of `alignment` rows if it is not paged; 0: none is.

        The keys of one that lies in two runs are visited from both. Where runs are wide, as on TPUs, that costs more
        than a sixteenth of a run's rows, which is the most that is left empty for it.
        """
        return self.alignment // 16 if self.alignment > STEP_MULTIPLE else 0


@dataclass(frozen=True, slots=True, eq=False)
class ShardPlan:
    """One device's part of a step, on the host.

    Attributes:
        token_ids: New tokens, segment after segment, `[new_tokens]`.
        positions: Position of each in its sequence, `[new_tokens]`.
        starts: First row of each segment in the packed step, `[segments]`.
        lens: New tokens of each segment, `[segments]`.
        context_ids: Row of `page_table` with the segment's context, `[segments]`.
        context_lens: Cached tokens before the segment, `[segments]`.
        paged: Whether the segment's K/V are written to the context's pages, `[segments]`.
        page_table: Pages of each context, in order, `[contexts, pages_per_context]`.
        scored_rows: Rows whose next-token distribution is read, `[scored]`.
        chunks: What recurrent layers compute; None: no layer is recurrent, or nothing is computed.
    """

    token_ids: Int32[np.ndarray, " new_tokens"]
    positions: Int32[np.ndarray, " new_tokens"]
    starts: Int32[np.ndarray, " segments"]
    lens: Int32[np.ndarray, " segments"]
    context_ids: Int32[np.ndarray, " segments"]
    context_lens: Int32[np.ndarray, " segments"]
    paged: Bool[np.ndarray, " segments"]
    page_table: Int32[np.ndarray, "contexts pages_per_context"]
    scored_rows: Int32[np.ndarray, " scored"]
    chunks: PlannedChunks | None = None

    @property
    def rows(self) -> int:
        """Rows up to the end of the last segment."""
        return int(self.starts[-1] + self.lens[-1]) if len(self.starts) else 0


@dataclass(frozen=True, slots=True, eq=False)
class PageWrites:
    """Where the K/V of one segment go.

    Attributes:
        shard: The shard that computes it.
        start: Its first row there, a multiple of `PAGE_SIZE`.
        pages: The pages that it goes to, of that shard and, if its request is spread, of the others.
    """

    shard: int
    start: int
    pages: Writes


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """One device call.

    Attributes:
        shards: Its shards.
        readings: What to read afterwards.
        writes: What goes to pages.
        dense_mask: Whether materialised masks are asked for.
        is_decoding: Whether its rows are sequences that have slots. Then `token_ids` are slots, whose last tokens
            are meant; each is written to its position in its context's page, and `writes` are empty.
        is_mixed: Whether it is laid out in the room of `StepShape.mixed`.
        copies: Recurrent states that go to other shards once all is computed.
    """

    shards: tuple[ShardPlan, ...]
    readings: tuple[Reading, ...]
    writes: tuple[PageWrites, ...] = ()
    dense_mask: bool = False
    is_decoding: bool = False
    is_mixed: bool = False
    copies: tuple[StateCopy, ...] = ()

    @property
    def exchanged_rows(self) -> int:
        """Rows at the beginning of every shard that hold all that other shards write to pages; 0: none do."""
        sent = (each for each in self.writes if each.pages.keys() - {each.shard})
        return max((each.start + PAGE_SIZE * len(each.pages[each.shard]) for each in sent), default=0)

    @property
    def rows(self) -> int:
        """Rows that the fullest shard needs."""
        return max(shard.rows for shard in self.shards)

    @property
    def new_tokens(self) -> int:
        """Tokens computed, padding not counted."""
        return sum(len(shard.token_ids) for shard in self.shards)
