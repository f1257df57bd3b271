"""A device that only remembers tokens: runs steps on pages of token ids and checks every rule on the way.

The value read at a row is a number made of all tokens that the row sees, in order; so a wrong page, a page
overwritten too early, a wrong position or a missing token changes it. With a window it is made of what
`mis_kernels.Segments` of the step leave of these tokens in a layer that slides. A recurrent state is the tokens that it
was made of; at every row that is read it must be those that the row sees. States go to other shards once all shards
have computed.
"""

import dataclasses
import hashlib

import numpy as np

from mis_core.ragged import ramp
from mis_core.scheduler.decoding import written_pages
from mis_core.scheduler.plan import KEPT, PAGE_SIZE, SLOTS, ShardPlan, StepPlan
from mis_core.scheduler.reading import Reading, Values
from mis_core.scheduler.recurrence import CARRIED, CHUNK, EMPTY, NO_SLOT, joined_chunks
from mis_kernels import Segments, lay_out
from mis_kernels.backends import ANY_HEADS, choose
from mis_kernels.segments import NOWHERE

UNWRITTEN = -7
UNKNOWN = (UNWRITTEN,)  # what a slot has that nobody wrote


def value_of(tokens: np.ndarray) -> float:
    """Return the number that stands for the distribution after these tokens."""
    return float(int.from_bytes(hashlib.blake2b(tokens.astype(np.int64).tobytes(), digest_size=3).digest(), "big"))


class TokenMachine:
    """Token ids where a model would have keys and values; every shard has pages of its own."""

    def __init__(self, pages: int, shards: int = 1, window: int | None = None, states: int = 0) -> None:
        self.window = window
        self.states = [[UNKNOWN] * states for _ in range(shards)]
        self.memory = np.full((shards, pages, PAGE_SIZE), UNWRITTEN)
        self.last = np.full((shards, SLOTS), UNWRITTEN)
        self.computed_tokens = 0

    def run(self, plan: StepPlan) -> list[Values]:
        """Write all shards' pages, then read; return the values of each reading."""
        if plan.is_decoding:
            shards = enumerate(plan.shards)
            plan = dataclasses.replace(plan, shards=tuple(self._write_rows(*each) for each in shards))
        else:
            self._write(plan)
        self.computed_tokens += plan.new_tokens
        behind = [
            _recur(shard, slots) if slots else None for shard, slots in zip(plan.shards, self.states, strict=True)
        ]
        for copy in plan.copies:
            for shard, slot in copy.copies.items():
                self.states[shard][slot] = self.states[copy.shard][copy.slot]
        seen = [self._values(shard, self.memory[n], behind[n]) for n, shard in enumerate(plan.shards)]
        values = [values_of(reading, seen[reading.shard]) for reading in plan.readings]
        for reading, read in zip(plan.readings, values, strict=True):
            if reading.draws is not None and reading.draws.slots is not None:
                self.last[reading.shard, reading.draws.slots] = read.next_ids
        return values

    def _write_rows(self, number: int, shard: ShardPlan) -> ShardPlan:
        """Write each row of a decode step to its page; return the shard with its tokens."""
        assert (shard.starts == np.arange(len(shard.starts))).all(), "rows lie side by side"
        assert len(set(shard.token_ids.tolist())) == len(shard.starts), "each row has a slot of its own"
        assert (shard.lens == 1).all()
        tokens, pages = self.last[number, shard.token_ids], written_pages(shard)
        assert (tokens != UNWRITTEN).all()
        assert len(set(pages.tolist())) == len(pages), "two rows of a step are written to the same page"
        self.memory[number, pages, shard.context_lens % PAGE_SIZE] = tokens
        return dataclasses.replace(shard, token_ids=tokens.astype(np.int32))

    def _write(self, plan: StepPlan) -> None:
        written: set[tuple[int, int]] = set()
        paged = {(n, int(start)) for n, shard in enumerate(plan.shards) for start in shard.starts[shard.paged]}
        assert {(writes.shard, writes.start) for writes in plan.writes} == paged
        for writes in plan.writes:
            shard = plan.shards[writes.shard]
            segment = shard.starts.tolist().index(writes.start)
            assert writes.start % PAGE_SIZE == 0
            assert shard.context_lens[segment] % PAGE_SIZE == 0
            end = shard.lens[: segment + 1].sum()
            tokens = shard.token_ids[end - shard.lens[segment] : end]
            first, count = shard.context_lens[segment] // PAGE_SIZE, -(-len(tokens) // PAGE_SIZE)
            own, table = writes.pages[writes.shard], shard.page_table[shard.context_ids[segment]]
            assert ((own == table[first : first + count]) | (own == KEPT)).all()
            if writes.pages.keys() - {writes.shard}:
                assert writes.start + count * PAGE_SIZE <= plan.exchanged_rows
            for there, pages in writes.pages.items():
                assert len(pages) == count
                for number, page in enumerate(pages.tolist()):
                    part = tokens[number * PAGE_SIZE : (number + 1) * PAGE_SIZE]
                    if page == KEPT:
                        continue
                    assert (there, page) not in written, "two segments of a step write the same page"
                    written.add((there, page))
                    self.memory[there, page] = UNWRITTEN
                    self.memory[there, page, : len(part)] = part

    def _values(self, shard: ShardPlan, memory: np.ndarray, behind: dict[int, tuple[int, ...]] | None) -> np.ndarray:
        if not len(shard.scored_rows):
            return np.zeros(0)
        ends, segments = np.cumsum(shard.lens), self._segments(shard)
        new = np.full(segments.num_tokens, UNWRITTEN)
        new[np.repeat(shard.starts - ends + shard.lens, shard.lens) + np.arange(ends[-1])] = shard.token_ids
        values = []
        for row in shard.scored_rows:
            segment = int(np.searchsorted(shard.starts, row, side="right")) - 1
            length = row - shard.starts[segment] + 1
            own = shard.token_ids[ends[segment] - shard.lens[segment] :][:length]
            positions = shard.positions[ends[segment] - shard.lens[segment] :][:length]
            assert positions.tolist() == list(range(shard.context_lens[segment], shard.context_lens[segment] + length))
            pages = shard.page_table[shard.context_ids[segment]]
            context = memory[pages].reshape(-1)[: shard.context_lens[segment]]
            assert (context != UNWRITTEN).all(), "a context that nobody wrote"
            cached = memory[pages].reshape(-1)[segments.context_first[row] : segments.context_len[row]]
            seen = np.concatenate([cached, new[segments.own_first[row] : row + 1]])
            whole = np.concatenate([context, own])
            assert self.window is not None or (seen == whole).all()
            assert behind is None or behind[int(row)] == (*whole.tolist(),), "a state of other tokens"
            values.append(value_of(seen))
        return np.array(values)

    def _segments(self, shard: ShardPlan) -> Segments:
        """Return what the rows of a shard see in a layer, as a step lays it out."""
        tokens = int(shard.starts[-1] + shard.lens[-1])
        return lay_out(
            starts=shard.starts, lens=shard.lens, context_ids=shard.context_ids, context_lens=shard.context_lens,
            paged=shard.paged, page_table=shard.page_table, page_size=PAGE_SIZE, tokens=tokens, window=self.window,
            page_writes=np.full(tokens, NOWHERE, np.int32), backend=choose(ANY_HEADS, "float32", "reference"),
        )  # fmt: skip


def _recur(shard: ShardPlan, slots: list[tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """Compute the chunks of a shard in their order; return the state behind each row that is read."""
    rows = np.repeat(shard.starts, shard.lens) + ramp(shard.lens)
    token_at = dict(zip(rows.tolist(), shard.token_ids.tolist(), strict=True))
    computed: list[int] = []
    read_rows, states = {*shard.scored_rows.tolist()}, {}
    chunks, state = shard.chunks or joined_chunks([]), UNKNOWN
    for row, count, read, write in zip(*(part.tolist() for part in chunks), strict=True):
        assert 0 < count <= CHUNK
        before = {EMPTY: (), CARRIED: state}[read] if read < 0 else slots[read]
        assert UNWRITTEN not in before, "a state that nobody wrote"
        state = before + tuple(token_at[index] for index in range(row, row + count))
        for index in read_rows.intersection(range(row, row + count)):
            states[index] = state[: len(before) + index - row + 1]
        computed += range(row, row + count)
        if write != NO_SLOT:
            slots[write] = state
    assert sorted(computed) == sorted(token_at), "a row is in no chunk, or in two"
    return states


def values_of(reading: Reading, seen: np.ndarray) -> Values:
    """Return the values of a reading, of what stands for the distribution at each of its shard's rows."""
    mine = seen[reading.first : reading.first + len(reading.rows)]
    top, draws = np.arange(reading.top_tokens, dtype=np.int32), reading.draws
    return Values(
        logits=(mine[:, None] + reading.label_ids).astype(np.float32),
        log_sum_exp=-mine.astype(np.float32) if reading.normalise else None,
        top_ids=np.broadcast_to(top, (len(mine), len(top))) if len(top) else None,
        top_logits=(mine[:, None] - top).astype(np.float32) if len(top) else None,
        next_ids=None if draws is None else draws.keys[:, 0] + draws.positions,
        next_logits=None if draws is None else mine[draws.rows].astype(np.float32),
        next_log_sums=None if draws is None else np.zeros(len(draws.rows), np.float32),
    )
