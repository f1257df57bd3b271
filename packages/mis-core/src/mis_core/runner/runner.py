"""Runs step plans: owns the weights, the KV cache and the compiled shapes.

The only place that turns a host `StepPlan` into device arrays. Steps are padded to a few bucket
sizes, compiled once each. Nothing here waits for the device but `Running.wait`.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Int32
from tqdm import tqdm

from mis_core.errors import ConfigError
from mis_core.models.decoder import Decoder
from mis_core.models.parallel import DATA, TENSOR, few_rows
from mis_core.runner.arrays import step_arrays
from mis_core.runner.buckets import PAIRS, empty_decode_step, empty_dense_step, full_step, token_buckets
from mis_core.runner.dense import context_buckets, with_short_contexts
from mis_core.runner.memory import Resident
from mis_core.runner.reads import make_reads
from mis_core.runner.sampling import COUNTED, SAMPLED_ROWS, DrawArrays, DrawnTokens
from mis_core.runner.step import CACHE, KeyValueCache, cache_shape, decode, make_step
from mis_core.scheduler.plan import PAGE_SIZE, SLOTS, StepPlan, StepShape
from mis_core.scheduler.reading import Draws, Reading, Values
from mis_kernels.segments import MIN_TOKENS


@dataclass(slots=True, eq=False)
class Running:
    """A step under way on the device. All values are in parts of the sizes that are compiled.

    Attributes:
        plan: The step.
        logits: Values of its (row, label) pairs.
        normalisers: Log-sum-exp of the rows that want nothing more of the vocabulary.
        top: Most probable tokens of the rows of scores that want some, their values, and the rows' log-sum-exp.
        drawn: Tokens drawn.
    """

    plan: StepPlan
    logits: list[Array]
    normalisers: list[Array]
    top: list[tuple[Array, Array, Array]]
    drawn: list[DrawnTokens]

    def wait(self) -> list[Values]:
        """Wait for the device; return the values of each reading."""
        with jax.profiler.TraceAnnotation("mis.wait"):
            jax.block_until_ready((self.logits, self.normalisers, self.top, self.drawn))
        with jax.profiler.TraceAnnotation("mis.read"):
            shards = len(self.plan.shards)
            pairs, normalisers = _Parts(self.logits, shards), _Parts(self.normalisers, shards)
            top_ids, top_logits, top_normalisers = (_Parts([part[n] for part in self.top], shards) for n in (0, 1, 2))
            drawn = [_Parts([part[n] for part in self.drawn], shards) for n in range(len(DrawnTokens._fields))]
        values: list[Values] = []
        for reading in self.plan.readings:
            at, (rows, labels), top, draws = reading.shard, reading.label_ids.shape, reading.top_tokens, reading.draws
            sums = top_normalisers.read(at, rows) if top else normalisers.read(at, rows) if reading.normalise else None
            read = Values(
                pairs.read(at, rows * labels).reshape(rows, labels),
                sums if reading.normalise else None,
                top_ids.read(at, rows)[:, :top] if top else None,
                top_logits.read(at, rows)[:, :top] if top else None,
            )
            values.append(
                _with_drawn(read, draws, [part.read(at, len(draws.rows)) for part in drawn]) if draws else read
            )
        return values


def _with_drawn(values: Values, draws: Draws, drawn: list[np.ndarray]) -> Values:
    """Add what was drawn."""
    ids, logits, log_sums, top_ids, top_logits = drawn
    values = dataclasses.replace(values, next_ids=ids, next_logits=logits, next_log_sums=log_sums)
    if not draws.top_tokens:
        return values
    return dataclasses.replace(
        values, top_ids=top_ids[:, : draws.top_tokens], top_logits=top_logits[:, : draws.top_tokens]
    )


class _Parts:
    """Values of one kind, which are read in order on each shard."""

    def __init__(self, parts: list[Array], shards: int) -> None:
        arrays = [np.asarray(part) for part in parts] or [np.zeros(0, np.float32)]
        self._values = np.concatenate([array.reshape(shards, -1, *array.shape[1:]) for array in arrays], axis=1)
        self._read = [0] * shards

    def read(self, shard: int, count: int) -> np.ndarray:
        self._read[shard] += count
        return self._values[shard, self._read[shard] - count : self._read[shard]]


class Runner:
    """Executes steps of one model on a mesh of devices."""

    def __init__(self, decoder: Decoder, mesh: Mesh, shape: StepShape, pages: int) -> None:
        """Allocate the cache.

        Args:
            decoder: Weights, cut over the mesh.
            mesh: Devices with axes `DATA` and `TENSOR`.
            shape: Room of a step; the decoder's backend says the alignment.
            pages: Pages of the KV cache on each device along `DATA`, each of `PAGE_SIZE` tokens in every layer.

        Raises:
            ConfigError: a device does not have the memory.
        """
        self.mesh, self.shape, self.pages = mesh, shape, pages
        self._graph, self._weights = nnx.split(decoder)
        config, self._backend = decoder.config, decoder.backend
        self._vocab_size = config.head_rows
        self._cache_shape = cache_shape(config, mesh.shape[DATA], pages, self._backend)
        try:  # waiting for it, since a device that lacks the room would say so in the first step
            self._cache = jax.block_until_ready(self._empty_cache())
        except jax.errors.JaxRuntimeError as error:
            raise _no_room(pages * mesh.shape[DATA]) from error
        self._last, self._counts, self._logits = self._empty_slots()
        self._decoding = self._backend.for_decoding()
        self._decode_sizes = [*few_rows(config, mesh.shape[TENSOR], self._backend), SLOTS]
        steps = {
            dense: make_step(self._graph, self._weights, mesh, pages, self._backend, dense_mask=dense)
            for dense in (False, True)
        }
        placed: dict[str, Any] = {"donate_argnums": 1, "in_shardings": (None, None, NamedSharding(mesh, P(DATA)))}
        self._steps = {dense: jax.jit(step, **placed) for dense, step in steps.items()}
        placed["in_shardings"] += (None,)
        self._decode = jax.jit(partial(decode, steps[False]), **placed)
        self._reads = make_reads(self._graph, self._weights, mesh)

    def _empty_cache(self) -> KeyValueCache:
        sharding = NamedSharding(self.mesh, CACHE)
        zeros = jax.jit(lambda: jnp.zeros(self._cache_shape, self._backend.storage_dtype), out_shardings=sharding)
        return zeros(), zeros()

    def _empty_slots(self) -> tuple[Array, Array, Array]:
        """Return the last token of each slot on all devices, how often each was written there, and room for logits."""
        sharding, devices = NamedSharding(self.mesh, P(DATA)), self.mesh.shape[DATA]

        def zeros(dtype: type, *shape: int) -> Array:
            return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=sharding)()

        counts = zeros(jnp.int32, SLOTS * devices, self._vocab_size)
        return zeros(jnp.int32, SLOTS * devices), counts, zeros(jnp.float32, SAMPLED_ROWS * devices, self._vocab_size)

    def reset(self) -> None:
        """Replace the cache by an empty one, after an error that may have lost it."""
        for array in self._cache:  # a device has no room for two
            array.delete()
        self._cache = self._empty_cache()
        self._last, self._counts, self._logits = self._empty_slots()

    def warm_up(self, *, dense_mask: bool, progress: bool = True) -> dict[str, float]:
        """Compile every shape, so that no request waits for the compiler.

        Args:
            dense_mask: Also compile the steps with materialised masks.
            progress: Show a progress bar on standard error.

        Returns:
            Seconds by shape.
        """
        seconds = {}
        one = [np.zeros(1, np.int32)] * self.shape.shards
        for size in tqdm(token_buckets(self.shape.tokens), desc="Compiling steps", unit="shape", disable=not progress):
            began = time.perf_counter()
            plan = full_step(dataclasses.replace(self.shape, tokens=size), context=0, item=MIN_TOKENS)
            hidden = self._hidden(plan, size)
            self._pairs(hidden, one, one)[0].block_until_ready()
            self._normalised(hidden, one)[0].block_until_ready()
            chosen = self._chosen(hidden, one)
            if not seconds:  # one program for all sizes, and slow to run on a CPU
                jax.block_until_ready(self._reads.most_probable(self._weights, chosen[0]))
                for rows in self._reads.hold_logits:
                    jax.block_until_ready(self._draw(chosen[1], rows, [[]] * self.shape.shards, 0))
                self._count(0, SLOTS, np.zeros(0, np.int32))
            seconds[f"{size} tokens"] = round(time.perf_counter() - began, 3)
        for size in self._decode_sizes:
            began = time.perf_counter()
            jax.block_until_ready(self._chosen(self._hidden(empty_decode_step(self.shape), size), one))
            seconds[f"decode {size}"] = round(time.perf_counter() - began, 3)
        return seconds | (self._warm_up_dense(progress) if dense_mask else {})

    def _warm_up_dense(self, progress: bool) -> dict[str, float]:
        """Compile the steps with dense masks; what reads rows is compiled already."""
        shapes = list(product(token_buckets(self.shape.tokens), context_buckets(self.shape.pages_per_context)))
        seconds = {}
        for size, pages in tqdm(shapes, desc="Compiling dense steps", unit="shape", disable=not progress):
            began = time.perf_counter()
            self._hidden(empty_dense_step(self.shape, pages), size).block_until_ready()
            seconds[f"{size} tokens, dense behind {pages * PAGE_SIZE}"] = round(time.perf_counter() - began, 3)
        return seconds

    def _chosen(self, hidden: Array, rows: list[np.ndarray]) -> list[Array]:
        """Return the same few rows in each number in which rows are read."""
        counts = self._backend.normalised_rows, SAMPLED_ROWS
        return [self._reads.choose_rows(hidden, part) for count in counts for part in _turns(rows, count)]

    def memory(self) -> dict[str, Resident]:
        """Return what stays on the devices: the weights by their path in the model, the cache, what slots hold."""
        weights = {"/".join(map(str, path)): leaf.get_value() for path, leaf in nnx.to_flat_state(self._weights)}
        arrays = {**weights, "cache/keys": self._cache[0], "cache/values": self._cache[1]}
        arrays |= {"slots/last": self._last, "slots/counts": self._counts, "slots/logits": self._logits}
        leaves, _ = jax.tree.flatten_with_path(arrays)
        return {jax.tree_util.keystr(path, simple=True, separator="/"): Resident.of(array) for path, array in leaves}

    def run(self, plan: StepPlan) -> Running:
        """Start one step, and the reading of its scored rows."""
        hidden = self._hidden(with_short_contexts(plan) if plan.dense_mask else plan, self._size(plan))
        of_shard = [[r for r in plan.readings if r.shard == shard] for shard in range(len(plan.shards))]
        none = np.zeros(0, np.int32)

        def on_shards(values: Callable[[Reading], np.ndarray]) -> list[np.ndarray]:
            return [np.concatenate([none, *map(values, mine)]) for mine in of_shard]

        # A label of -1 fills; nobody reads its logit.
        labels = on_shards(lambda r: np.maximum(r.label_ids.reshape(-1), 0))
        normalised = on_shards(lambda r: _rows(r) if r.normalise and not r.top_tokens else none)
        drawn = on_shards(lambda r: _rows(r)[r.draws.rows] if r.draws else none)
        return Running(
            plan,
            self._pairs(hidden, on_shards(lambda r: np.repeat(_rows(r), r.label_ids.shape[1])), labels),
            self._normalised(hidden, normalised),
            self._top(hidden, on_shards(lambda r: _rows(r) if r.top_tokens else none)),
            self._drawn(hidden, drawn, [[r.draws for r in mine if r.draws] for mine in of_shard]),
        )

    def size_of(self, plan: StepPlan) -> int:
        """Return the tokens that a step is padded to, on all devices together."""
        return self._size(plan) * len(plan.shards)

    def _size(self, plan: StepPlan) -> int:
        sizes = self._decode_sizes if plan.is_decoding else token_buckets(self.shape.tokens)
        return next(size for size in sizes if size >= plan.rows)

    def _hidden(self, plan: StepPlan, size: int) -> Array:
        backend = self._decoding if plan.is_decoding else self._backend
        shape = dataclasses.replace(self.shape, pages_per_context=plan.shards[0].page_table.shape[1])
        arrays = step_arrays(backend, shape, plan, size, min(size, shape.scored))
        if plan.is_decoding:
            hidden, self._cache = self._decode(self._weights, self._cache, arrays, self._last)
            return hidden
        hidden, self._cache = self._steps[plan.dense_mask](self._weights, self._cache, arrays)
        return hidden

    def _pairs(self, hidden: Array, rows: list[np.ndarray], labels: list[np.ndarray]) -> list[Array]:
        parts = zip(_turns(rows, PAIRS), _turns(labels, PAIRS), strict=True)
        return [self._reads.label_logits(self._weights, hidden, *arrays) for arrays in parts]

    def _normalised(self, hidden: Array, rows: list[np.ndarray]) -> list[Array]:
        parts = _turns(rows, self._backend.normalised_rows)
        return [self._reads.log_sum_exp(self._weights, hidden, part) for part in parts]

    def _top(self, hidden: Array, rows: list[np.ndarray]) -> list[tuple[Array, Array, Array]]:
        parts = _turns(rows, self._backend.normalised_rows)
        return [self._reads.most_probable(self._weights, self._reads.choose_rows(hidden, part)) for part in parts]

    def _drawn(self, hidden: Array, rows: list[np.ndarray], draws: list[list[Draws]]) -> list[DrawnTokens]:
        for shard, mine in enumerate(draws):
            for each in mine:
                if each.written is not None and each.slots is not None:
                    self._count(shard, int(each.slots[0]), each.written)
        most = max(sum(len(each.rows) for each in mine) for mine in draws)
        return [
            self._draw(self._reads.choose_rows(hidden, part), most - turn * SAMPLED_ROWS, draws, turn)
            for turn, part in enumerate(_turns(rows, SAMPLED_ROWS))
        ]

    def _draw(self, hidden: Array, most: int, draws: list[list[Draws]], turn: int) -> DrawnTokens:
        """Draw the tokens of one turn of rows, of which the fullest shard has at most so many."""
        begin = turn * SAMPLED_ROWS
        count = np.array([sum(len(each.rows) for each in mine) for mine in draws]) - begin
        how = [DrawArrays.of(each, begin, SAMPLED_ROWS) for each in draws]
        how = DrawArrays(*map(np.concatenate, zip(*how, strict=True)))
        hold = next(hold for rows, hold in self._reads.hold_logits.items() if rows >= min(most, SAMPLED_ROWS))
        self._logits = hold(self._weights, hidden, self._logits)
        arrays = count.clip(0, SAMPLED_ROWS).astype(np.int32), how, self._last, self._counts
        drawn, self._last, self._counts = self._reads.next_tokens(self._logits, *arrays)
        return drawn

    def _count(self, shard: int, slot: int, written: Int32[np.ndarray, " written"]) -> None:
        """Have it counted what the sequence that is new to a slot has written."""
        shards = self.mesh.shape[DATA]
        for begin in range(0, max(len(written), 1), COUNTED):
            part = written[begin : begin + COUNTED]
            tokens = np.full((shards, COUNTED), -1, np.int32)
            tokens[shard, : len(part)] = part
            slots = np.full(shards, SLOTS, np.int32)
            slots[shard] = slot
            is_first = np.full(shards, begin == 0, np.int32)
            self._counts = self._reads.count_written(self._counts, slots, tokens.reshape(-1), is_first)


def _no_room(pages: int) -> ConfigError:
    return ConfigError(
        f"the KV cache of {pages * PAGE_SIZE} tokens could not be allocated; lower max_total_tokens or "
        "mem_fraction_static, or free the memory of the device.",
        "max_total_tokens",
    )


def _rows(reading: Reading) -> Int32[np.ndarray, " rows"]:
    """Return its rows among the scored ones of its shard."""
    return np.arange(reading.first, reading.first + len(reading.rows), dtype=np.int32)


def _turns(arrays: list[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yield `size` elements of every shard's array at a time, side by side, filled up with zeros."""
    for begin in range(0, max(map(len, arrays)), size):
        parts = [array[begin : begin + size] for array in arrays]
        yield np.concatenate([np.pad(part, (0, size - len(part))) for part in parts]).astype(np.int32)
