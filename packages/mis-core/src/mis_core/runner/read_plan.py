"""What is read of a step: rows side by side on each shard, and where the values of each reading are among theirs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array
from jaxtyping import Int32

from mis_core.runner.sampling import DrawnTokens
from mis_core.scheduler.plan import StepPlan
from mis_core.scheduler.reading import Draws, Reading, Values

Span = tuple[int, slice]
"""A shard, and elements of it."""

Returned = tuple[list[Array], list[Array], list[tuple[Array, Array, Array]], list[DrawnTokens]]
"""What calls return: logits of pairs; normalisers; most probable tokens, their values and normalisers; drawn tokens."""


class SideBySide:
    """What one program takes; `counts` are the elements of each shard."""

    def __init__(self, shards: int) -> None:
        self.counts = [0] * shards
        self._parts: list[tuple[Span, tuple[np.ndarray, ...]]] = []

    def add(self, shard: int, *arguments: Int32[np.ndarray, " elements"]) -> Span:
        """Append elements, each of so many arguments; return where what is read for them will be."""
        begin = self.counts[shard]
        self.counts[shard] += len(arguments[0])
        span = shard, slice(begin, self.counts[shard])
        if len(arguments[0]):
            self._parts.append((span, arguments))
        return span

    def num_calls(self, size: int) -> int:
        """Return how many calls of `size` elements the fullest shard needs."""
        return -(-max(self.counts) // size)

    def calls(self, size: int, filler: int = 0) -> Iterator[Int32[np.ndarray, "columns elements"]]:
        """Yield the arguments of each call: `size` elements of every shard, side by side, filled up."""
        arguments = len(self._parts[0][1]) if self._parts else 0
        filled = np.full((arguments, len(self.counts), self.num_calls(size) * size), filler, np.int32)
        for (shard, elements), values in self._parts:
            filled[:, shard, elements] = values
        for begin in range(0, filled.shape[2], size):
            yield filled[:, :, begin : begin + size].reshape(arguments, -1)


class ReadPlan:
    """What programs read at a step's scored rows, which are numbered on each shard.

    Attributes:
        pairs: Rows and labels of (row, label) pairs.
        normalised: Rows of which the log-sum-exp is wanted, and nothing more of the vocabulary.
        top: Rows of scores of which the most probable tokens are wanted.
        drawn: Rows from which tokens are drawn.
        draws: How those of each shard are drawn, in the same order.
        spans: Where the values of each reading are: its pairs, its rows among `top` or else `normalised`, its draws.
    """

    def __init__(self, plan: StepPlan) -> None:
        self.pairs, self.normalised, self.top, self.drawn = (SideBySide(len(plan.shards)) for _ in range(4))
        self.draws: list[list[Draws]] = [[] for _ in plan.shards]
        self.spans = [self._add(reading) for reading in plan.readings]

    def _add(self, reading: Reading) -> tuple[Span, Span | None, Span | None]:
        shard, labels, draws = reading.shard, reading.label_ids, reading.draws
        rows = np.arange(reading.first, reading.first + len(reading.rows), dtype=np.int32)
        # A label of -1 fills; nobody reads its logit.
        pairs = self.pairs.add(shard, np.repeat(rows, labels.shape[1]), np.maximum(labels.reshape(-1), 0))
        whole = self.top if reading.top_tokens else self.normalised if reading.normalise else None
        wholes = None if whole is None else whole.add(shard, rows)
        if draws is None:
            return pairs, wholes, None
        self.draws[shard].append(draws)
        return pairs, wholes, self.drawn.add(shard, rows[draws.rows])


@dataclass(slots=True, eq=False)
class Running:
    """A step under way on the device.

    Attributes:
        plan: The step.
        reads: What is read of it.
        returned: What the calls return that read it.
    """

    plan: StepPlan
    reads: ReadPlan
    returned: Returned

    def wait(self) -> list[Values]:
        """Wait for the device; return the values of each reading."""
        with jax.profiler.TraceAnnotation("mis.wait"):
            jax.block_until_ready(self.returned)
        with jax.profiler.TraceAnnotation("mis.read"):
            found = [_on_host(each, len(self.plan.shards)) for each in self.returned]
        return [_values(*each, *found) for each in zip(self.plan.readings, self.reads.spans, strict=True)]


def _on_host(returned: list[Any], shards: int) -> Any:
    """Return what calls returned as one, every array `[shards, elements, ...]`; None without a call."""

    def joined(*arrays: Array) -> np.ndarray:
        return np.concatenate([np.asarray(each).reshape(shards, -1, *each.shape[1:]) for each in arrays], axis=1)

    return jax.tree.map(joined, *returned) if returned else None


def _values(reading: Reading, spans: Any, logits: Any, normalisers: Any, top: Any, drawn: Any) -> Values:
    (pairs, rows, at), shape, draws = spans, reading.label_ids.shape, reading.draws
    found = {"logits": logits[pairs].reshape(shape) if reading.label_ids.size else np.zeros(shape, np.float32)}
    if reading.top_tokens:
        ids, values, normalisers = top
        found |= _most_probable(ids[rows], values[rows], reading.top_tokens)
    if reading.normalise:
        found["log_sum_exp"] = normalisers[rows]
    if draws is not None:
        next_ids, next_logits, next_log_sums, ids, values = (each[at] for each in drawn)
        found |= {"next_ids": next_ids, "next_logits": next_logits, "next_log_sums": next_log_sums}
        if draws.top_tokens:
            found |= _most_probable(ids, values, draws.top_tokens)
    return Values(**found)


def _most_probable(ids: np.ndarray, values: np.ndarray, count: int) -> dict[str, np.ndarray]:
    return {"top_ids": ids[:, :count], "top_logits": values[:, :count]}
