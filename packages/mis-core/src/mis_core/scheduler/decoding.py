"""Decode steps: a row for each sequence that has a place."""

from collections.abc import Callable

import numpy as np

from mis_core.scheduler.plan import PAGE_SIZE, PLACES, ShardPlan, StepPlan, StepShape
from mis_core.scheduler.reading import Reading
from mis_core.scheduler.sequence import Sequence


class Places:
    """Who has which place on which shard, by the number of the request."""

    def __init__(self, shape: StepShape) -> None:
        self._shape = shape
        self._taken: dict[int, Sequence] = {}
        self._free = [list(range(PLACES))[::-1] for _ in range(shape.shards)]

    def __len__(self) -> int:
        """Return how many are taken."""
        return len(self._taken)

    @property
    def sequences(self) -> list[Sequence]:
        """All that have a place, the oldest first."""
        return sorted(self._taken.values(), key=lambda sequence: sequence.age)

    def taken(self, shard: int) -> int:
        """Return how many places of a shard are taken."""
        return PLACES - len(self._free[shard])

    def next(self, shard: int) -> int | None:
        """Return the place of a shard that is given out next, or None if all are taken."""
        return self._free[shard][-1] if self._free[shard] else None

    def seat(self, sequence: Sequence) -> None:
        """Give a sequence the next place of its shard."""
        place = self._free[sequence.home.shard].pop()
        assert place == sequence.place, "a sequence is made for the next place"
        self._taken[sequence.id] = sequence

    def leave(self, id: int) -> Sequence | None:
        """Free the place of a request; return its sequence, or None if it has none."""
        sequence = self._taken.pop(id, None)
        if sequence is not None:
            self._free[sequence.home.shard].append(sequence.place)
        return sequence

    def plan(self, preempt: Callable[[Sequence], None]) -> StepPlan | None:
        """Plan a row for each sequence that wants a token, or return None if none does.

        Args:
            preempt: Ends the run of a sequence, whose pages somebody older needs.
        """
        rows: list[list[Sequence]] = [[] for _ in range(self._shape.shards)]
        for sequence in self.sequences:
            while not sequence.is_cancelled and sequence.wants_token and sequence.needs_page:
                if sequence.home.headroom > 0:
                    sequence.add_page()
                else:
                    here = (each for each in self._taken.values() if each.home is sequence.home)
                    preempt(max(here, key=lambda each: each.age))
            if not sequence.is_cancelled and sequence.wants_token:
                rows[sequence.home.shard].append(sequence)
        if not any(rows):
            return None
        readings: list[Reading] = []
        shards = tuple(self._plan(shard, mine, readings) for shard, mine in enumerate(rows))
        return StepPlan(shards, tuple(readings), is_decoding=True)

    def _plan(self, shard: int, sequences: list[Sequence], readings: list[Reading]) -> ShardPlan:
        sequences = sorted(sequences, key=lambda sequence: sequence.place)
        table = np.zeros((PLACES, self._shape.pages_per_context), np.int32)
        for row, sequence in enumerate(sequences):
            pages = sequence.pages
            table[row, : len(pages)] = pages
        positions = np.array([sequence.decode() for sequence in sequences], np.int32)
        count = len(sequences)
        rows, one = np.arange(count, dtype=np.int32), np.zeros(1, np.int32)
        readings += [sequence.reading(one, shard=shard, first=row) for row, sequence in enumerate(sequences)]
        return ShardPlan(
            token_ids=np.array([sequence.place for sequence in sequences], np.int32),
            positions=positions,
            starts=rows,
            lens=np.ones(count, np.int32),
            context_ids=rows,
            context_lens=positions,
            paged=np.ones(count, bool),
            page_table=table,
            scored_rows=rows,
        )


def written_pages(plan: ShardPlan) -> np.ndarray:
    """Return the page that each row of a decode step's shard is written to, `[segments]`."""
    return plan.page_table[plan.context_ids, plan.context_lens // PAGE_SIZE]
