"""Runs step plans: owns the weights, the KV cache and the compiled shapes.

The only place that turns a host `StepPlan` into device arrays. Steps are padded to a few bucket
sizes, compiled once each. Nothing here waits for the device but `Running.wait`.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
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
from jax.stages import Lowered

from mis_core.errors import ConfigError
from mis_core.models.decoder import Decoder
from mis_core.models.layers import windows_of
from mis_core.models.parallel import DATA, TENSOR, few_rows
from mis_core.runner.arrays import step_arrays
from mis_core.runner.buckets import PAIRS, empty_decode_step, empty_dense_step, full_step, token_buckets
from mis_core.runner.compiling import compile_all
from mis_core.runner.dense import context_buckets, with_short_contexts
from mis_core.runner.memory import Resident, free_bytes
from mis_core.runner.read_plan import ReadPlan, Returned, Running
from mis_core.runner.reads import make_reads
from mis_core.runner.sampling import SAMPLED_ROWS
from mis_core.runner.slots import Slots
from mis_core.runner.step import BY_PAGE, BY_SLOT, Cache, cache_shape, decode, make_step
from mis_core.scheduler.plan import PAGE_SIZE, SLOTS, StepPlan, StepShape
from mis_kernels import RecurrentStates
from mis_kernels.segments import MIN_TOKENS


class Runner:
    """Executes steps of one model on a mesh of devices."""

    def __init__(self, decoder: Decoder, mesh: Mesh, shape: StepShape, pages: int, slots: int = 0) -> None:
        """Allocate the cache.

        Args:
            decoder: Weights, cut over the mesh.
            mesh: Devices with axes `DATA` and `TENSOR`.
            shape: Room of a step; the decoder's backend says the alignment.
            pages: Pages of the KV cache on each device along `DATA`, each of `PAGE_SIZE` tokens in every layer.
            slots: Slots for states of recurrent layers on each device along `DATA`; 0: there are no such layers.

        Raises:
            ConfigError: a device does not have the memory.
        """
        self.mesh, self.shape, self.pages, self.slots = mesh, shape, pages, slots
        graph, self._weights = nnx.split(decoder)
        config, self._backend = decoder.config, decoder.backend
        self._windows = windows_of(config.layers)
        self._cache_shape = cache_shape(config, mesh.shape[DATA], pages, self._backend)
        self._states = config.recurrence, mesh.shape[DATA] * config.recurrent_layers * slots
        is_sharded = mesh.shape[TENSOR] > 1  # then rows are streamed
        self._log_sum_exp_rows = self._backend.normalised_rows if is_sharded else self._backend.log_sum_exp_rows
        self._sizes = token_buckets(shape.tokens)
        self._decode_sizes = [*few_rows(config, mesh.shape[TENSOR], self._backend), SLOTS]
        # All steps return as many rows, so that each reading of them is one program.
        make = partial(make_step, graph, self._weights, mesh, pages, self._backend, slots=slots, returned=shape.scored)
        steps = {dense: make(dense_mask=dense) for dense in (False, True)}
        self._by_row = NamedSharding(mesh, P(DATA))
        options: dict[str, Any] = {
            "donate_argnums": 1,
            "in_shardings": (None, None, self._by_row),
            "out_shardings": (self._by_row, None),
        }
        self._steps = {dense: jax.jit(step, **options) for dense, step in steps.items()}
        options["in_shardings"] += (None,)
        self._decode = jax.jit(partial(decode, steps[False]), **options)
        self._reads = make_reads(graph, self._weights, mesh)
        with _explained(pages * mesh.shape[DATA]):
            self._cache = self._empty_cache()
        self._slots = Slots(mesh, config.head_rows, self._reads, self._weights)
        with _explained(pages * mesh.shape[DATA]):  # a device that lacks the room would say so in the first step
            jax.block_until_ready(self._cache)

    def _empty_cache(self) -> Cache:
        by_page, by_slot = jax.tree.map(partial(NamedSharding, self.mesh), (BY_PAGE, BY_SLOT))
        zeros = jax.jit(lambda: jnp.zeros(self._cache_shape, self._backend.storage_dtype), out_shardings=by_page)
        shape, slots = self._states
        if shape is None:
            return Cache((zeros(), zeros()), None)
        states = jax.jit(partial(RecurrentStates.zeros, slots, shape), out_shardings=by_slot)()
        return Cache((zeros(), zeros()), states)

    def reset(self) -> None:
        """Replace the cache by an empty one, after an error that may have lost it."""
        for array in jax.tree.leaves(self._cache):  # a device has no room for two
            array.delete()
        self._cache = self._empty_cache()
        self._slots.reset()

    def warm_up(self, *, dense_mask: bool, progress: bool = True) -> dict[str, float]:
        """Compile every shape, so that no request waits for the compiler.

        Args:
            dense_mask: Also compile the steps with materialised masks.
            progress: Show a progress bar on standard error.

        Returns:
            Seconds by shape, of the compiler alone.
        """
        seconds = compile_all(self._programs(dense_mask=dense_mask), progress=progress)
        if free_bytes(1.0) is not None:  # a device that lacks the memory of a step says so now
            self._hidden(self._warm_up_step(self._sizes[-1], is_mixed=False), self._sizes[-1]).block_until_ready()
        return seconds

    def _programs(self, *, dense_mask: bool) -> Iterator[tuple[str, Lowered]]:
        """Trace all that steps call, one after another; programs of steps of one size have the same name."""
        for size in self._sizes:
            step = self._lowered(self._warm_up_step(size, is_mixed=False), size)
            yield f"{size} tokens", step
            if size == self._sizes[0]:
                yield from (("reads", each) for each in self._read_programs(self._rows_of(step)))
            if self.shape.mixed is not None:
                yield f"{size} tokens", self._lowered(self._warm_up_step(size, is_mixed=True), size)
        for size in self._decode_sizes:
            yield f"decode {size}", self._lowered(empty_decode_step(self.shape), size)
        for size, pages in product(self._sizes, context_buckets(self.shape.pages_per_context)) if dense_mask else ():
            name = f"{size} tokens, dense behind {pages * PAGE_SIZE}"
            yield name, self._lowered(empty_dense_step(self.shape, pages), size)

    def _read_programs(self, hidden: jax.ShapeDtypeStruct) -> Iterator[Lowered]:
        """Trace what reads the rows that a step of any size returns."""
        reads, weights, shards = self._reads, self._weights, self.shape.shards
        pairs, few, sampled, normalised = (
            np.zeros(count * shards, np.int32)
            for count in (PAIRS, self._backend.normalised_rows, SAMPLED_ROWS, self._log_sum_exp_rows)
        )
        top, drawn = (reads.choose_rows.lower(hidden, rows) for rows in (few, sampled))
        yield from self._slots.programs(self._rows_of(drawn))
        yield reads.most_probable.lower(weights, self._rows_of(top))
        yield reads.label_logits.lower(weights, hidden, pairs, pairs)
        yield reads.log_sum_exp.lower(weights, hidden, normalised)
        yield from (top, drawn)

    def _warm_up_step(self, size: int, *, is_mixed: bool) -> StepPlan:
        room = dataclasses.replace(self.shape.room(is_mixed), tokens=size)
        return full_step(room, context=0, item=MIN_TOKENS, is_mixed=is_mixed)

    def _lowered(self, plan: StepPlan, size: int) -> Lowered:
        """Trace the program of a step."""
        program, *arguments = self._call(plan, size)
        return program.lower(*arguments)

    def _rows_of(self, program: Lowered) -> jax.ShapeDtypeStruct:
        """Describe the rows that a program returns first."""
        rows = jax.tree.leaves(program.out_info)[0]
        return jax.ShapeDtypeStruct(rows.shape, rows.dtype, sharding=self._by_row)

    def memory(self) -> dict[str, Resident]:
        """Return what stays on the devices: the weights by their path in the model, the cache, what slots hold."""
        weights = {"/".join(map(str, path)): leaf.get_value() for path, leaf in nnx.to_flat_state(self._weights)}
        keys, values = self._cache.key_values
        arrays = {**weights, "cache/keys": keys, "cache/values": values}
        if self._cache.states is not None:
            arrays |= {f"states/{name}": array for name, array in self._cache.states._asdict().items()}
        slots = self._slots
        arrays |= {"slots/last": slots.last, "slots/counts": slots.counts, "slots/logits": slots.logits}
        leaves, _ = jax.tree.flatten_with_path(arrays)
        return {jax.tree_util.keystr(path, simple=True, separator="/"): Resident.of(array) for path, array in leaves}

    def run(self, plan: StepPlan) -> Running:
        """Start one step, and the reading of its scored rows."""
        hidden = self._hidden(with_short_contexts(plan) if plan.dense_mask else plan, self._size(plan))
        reads, programs, weights, few = ReadPlan(plan), self._reads, self._weights, self._backend.normalised_rows
        returned: Returned = (
            [programs.label_logits(weights, hidden, *pairs) for pairs in reads.pairs.calls(PAIRS)],
            [
                programs.log_sum_exp(weights, hidden, *rows)
                for rows in reads.normalised.calls(self._log_sum_exp_rows, filler=-1)
            ],
            [programs.most_probable(weights, programs.choose_rows(hidden, *rows)) for rows in reads.top.calls(few)],
            self._slots.draw(hidden, reads) if any(reads.draws) else [],
        )
        return Running(plan, reads, returned)

    def size_of(self, plan: StepPlan) -> int:
        """Return the tokens that a step is padded to, on all devices together."""
        return self._size(plan) * len(plan.shards)

    def _size(self, plan: StepPlan) -> int:
        sizes = self._decode_sizes if plan.is_decoding else self._sizes
        return next(size for size in sizes if size >= plan.rows)

    def _hidden(self, plan: StepPlan, size: int) -> Array:
        program, *arguments = self._call(plan, size)
        hidden, self._cache = program(*arguments)
        return hidden

    def _call(self, plan: StepPlan, size: int) -> tuple[Any, ...]:
        """Return the program of a step, and what it takes; the cache is donated."""
        pages = plan.shards[0].page_table.shape[1]
        shape = dataclasses.replace(self.shape.room(plan.is_mixed), pages_per_context=pages)
        arrays = step_arrays(
            self._backend, shape, plan, size, min(size, shape.scored), self._windows, is_recurrent=self.slots > 0
        )
        if plan.is_decoding:
            return self._decode, self._weights, self._cache, arrays, self._slots.last
        return self._steps[plan.dense_mask], self._weights, self._cache, arrays


@contextlib.contextmanager
def _explained(pages: int) -> Iterator[None]:
    """Say what to do if a device has no room for a cache of so many pages."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(
            f"the KV cache of {pages * PAGE_SIZE} tokens could not be allocated; lower max_total_tokens or "
            "mem_fraction_static, or free the memory of the device.",
            "max_total_tokens",
        ) from error
