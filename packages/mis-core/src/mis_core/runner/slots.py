"""What sequences leave on the devices from step to step, and the drawing of their tokens from it."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Lowered, Wrapped
from jaxtyping import Int32

from mis_core.models.parallel import DATA
from mis_core.runner.read_plan import ReadPlan
from mis_core.runner.reads import Reads
from mis_core.runner.sampling import COUNTED, SAMPLED_ROWS, DrawArrays, DrawnTokens
from mis_core.scheduler.plan import SLOTS


class Slots:
    """What is kept for the slots of every device, empty at first.

    Attributes:
        last: Last tokens, `[devices * slots]`.
        counts: How often each token was written there, `[devices * slots, vocab]`.
        logits: Room for logits of rows that are drawn from, `[devices * SAMPLED_ROWS, vocab]`.
    """

    def __init__(self, mesh: Mesh, vocab_size: int, reads: Reads, weights: Any) -> None:
        self._mesh, self._vocab_size, self._reads, self._weights = mesh, vocab_size, reads, weights
        self.reset()

    def reset(self) -> None:
        """Empty all slots."""
        sharding, devices = NamedSharding(self._mesh, P(DATA)), self._mesh.shape[DATA]

        def zeros(dtype: type, *shape: int) -> Array:
            return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=sharding)()

        self.last = zeros(jnp.int32, SLOTS * devices)
        self.counts = zeros(jnp.int32, SLOTS * devices, self._vocab_size)
        self.logits = zeros(jnp.float32, SAMPLED_ROWS * devices, self._vocab_size)

    def programs(self, hidden: jax.ShapeDtypeStruct) -> Iterator[Lowered]:
        """Trace the programs; `hidden` are `SAMPLED_ROWS` rows of each device."""
        devices, reads = self._mesh.shape[DATA], self._reads
        none, nobody = np.zeros(devices, np.int32), DrawArrays.of([], 0, SAMPLED_ROWS * devices)
        for hold in reads.hold_logits.values():
            yield hold.lower(self._weights, hidden, self.logits)
        yield reads.next_tokens.lower(self.logits, none, nobody, self.last, self.counts)
        yield reads.count_written.lower(self.counts, none, np.zeros(devices * COUNTED, np.int32), none)

    def draw(self, hidden: Array, reads: ReadPlan) -> list[DrawnTokens]:
        """Draw the tokens that a step's plan wants, `SAMPLED_ROWS` on each device at a time.

        Args:
            hidden: Hidden states of its scored rows, `[devices * scored, embed]`.
            reads: Which of them are drawn from, and how.
        """
        for shard, draws in enumerate(reads.draws):
            for each in draws:
                if each.written is not None and each.slots is not None:
                    self._count(shard, int(each.slots[0]), each.written)
        drawn = []
        for number, (rows,) in enumerate(reads.drawn.calls(SAMPLED_ROWS)):
            begin = number * SAMPLED_ROWS
            count = (np.array(reads.drawn.counts) - begin).clip(0, SAMPLED_ROWS).astype(np.int32)
            hold = next(hold for most, hold in self._reads.hold_logits.items() if most >= count.max())
            chosen = self._reads.choose_rows(hidden, rows)
            how = [DrawArrays.of(each, begin, SAMPLED_ROWS) for each in reads.draws]
            how = DrawArrays(*map(np.concatenate, zip(*how, strict=True)))
            drawn.append(self._draw(hold, chosen, count, how))
        return drawn

    def _draw(self, hold: Wrapped, hidden: Array, count: Int32[np.ndarray, " devices"], how: DrawArrays) -> DrawnTokens:
        """Draw from the first rows of each device, as many as are counted there."""
        self.logits = hold(self._weights, hidden, self.logits)
        drawn, self.last, self.counts = self._reads.next_tokens(self.logits, count, how, self.last, self.counts)
        return drawn

    def _count(self, shard: int, slot: int, written: Int32[np.ndarray, " written"]) -> None:
        """Have it counted what the sequence that is new to a slot has written."""
        shards = self._mesh.shape[DATA]
        for begin in range(0, max(len(written), 1), COUNTED):
            part = written[begin : begin + COUNTED]
            tokens = np.full((shards, COUNTED), -1, np.int32)
            tokens[shard, : len(part)] = part
            slots = np.full(shards, SLOTS, np.int32)
            slots[shard] = slot
            is_first = np.full(shards, begin == 0, np.int32)
            self.counts = self._reads.count_written(self.counts, slots, tokens.reshape(-1), is_first)
