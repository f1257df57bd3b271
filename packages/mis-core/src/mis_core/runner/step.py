"""The compiled step: all layers on one packed array of new tokens per device."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from mis_core.models.config import ModelConfig
from mis_core.models.decoder import PADDING, Decoder
from mis_core.models.layers import attention_layers, windows_of
from mis_core.models.parallel import DATA, TENSOR, partition
from mis_core.runner.arrays import StepArrays
from mis_core.runner.copies import copy_states
from mis_core.scheduler.plan import EXCHANGED, PAGE_SIZE
from mis_kernels import NOWHERE, RecurrentStates, gated_delta, gated_delta_decode, segment_attention, write_pages
from mis_kernels.backends import Backend, LaidOut
from mis_kernels.weights import weight_of

KeyValues = tuple[Array, Array]
"""Keys and values, each `[kv_heads, devices * layers * pages, page_size, head_dim]`, of layers with attention."""


class Cache(NamedTuple):
    """What stays on the devices between steps.

    Attributes:
        key_values: Keys and values.
        states: States of recurrent layers, `[devices * layers * slots, ...]`; inputs of the convolution in the order
            of `RecurrentLayer`. None: there are no such layers.
    """

    key_values: KeyValues
    states: RecurrentStates | None


BY_PAGE = P(TENSOR, DATA)
"""How keys and values are cut: by head along `TENSOR`; along `DATA` every device has pages of its own."""

BY_SLOT: Any = RecurrentStates(P(DATA, TENSOR), P(DATA, None, TENSOR))  # type: ignore[arg-type]
"""How states are cut: by head along `TENSOR`; along `DATA` every device has slots of its own."""


def cache_shape(config: ModelConfig, devices: int, pages: int, backend: Backend) -> tuple[int, int, int, int]:
    """Return the shape of the keys, and of the values, of all layers: they lie one behind the other on each device.

    Args:
        config: The model's shape, its heads spread over the devices.
        devices: Devices along `DATA`.
        pages: Pages of one layer on each.
        backend: Who computes.
    """
    layers = len(attention_layers(config.layers))
    return config.attention.kv_heads, devices * layers * pages, PAGE_SIZE, backend.cache_head_dim


def decode(step: "Step", weights: Any, cache: Cache, arrays: StepArrays, last: Array) -> tuple[Array, Cache]:
    """Run a step whose token ids are slots; `last` are the last tokens of all, `[devices * slots]`."""
    slots = jnp.asarray(arrays.token_ids)
    drawn = jnp.take_along_axis(last.reshape(len(slots), -1), jnp.maximum(slots, 0), axis=1)
    token_ids = jnp.where(slots == PADDING, PADDING, drawn)
    return step(weights, cache, arrays._replace(token_ids=token_ids))


Step = Callable[[Any, Cache, StepArrays], tuple[Array, Cache]]


def weight_partitions(weights: Any) -> Any:
    """Return the partition of every array of a decoder's state."""
    flat = nnx.to_flat_state(weights)
    specs = {path: leaf.replace(weight_of(leaf.get_value()).partition(partition(path))) for path, leaf in flat}
    return nnx.from_flat_state(specs)


def make_step(
    graph: Any,
    weights: Any,
    mesh: Mesh,
    pages: int,
    backend: Backend,
    *,
    slots: int = 0,
    returned: int = 0,
    dense_mask: bool = False,
) -> Step:
    """Return the step of a model, ready for `jax.jit` with the cache donated.

    Args:
        graph: The decoder's graph, from `nnx.split`.
        weights: Its state, cut over the mesh as `partition` says; shapes are enough.
        mesh: Devices with axes `DATA` and `TENSOR`.
        pages: Pages of one layer on a device.
        backend: Who computes it, the decoder's.
        slots: Slots for states of one recurrent layer on a device; 0: there are no such layers.
        returned: Rows that a device returns at least: zeros fill up those of smaller steps.
        dense_mask: Attend with masks that are arrays, as a baseline.

    Returns:
        `(weights, cache, arrays) -> (hidden, cache)`, with the arrays of `step_arrays`. `hidden` is
        `[devices * max(scored, returned), embed]`, final-normed.
    """
    devices, attends = mesh.shape[DATA], "dense" if dense_mask else backend
    partitions: Any = Cache((BY_PAGE, BY_PAGE), BY_SLOT if slots else None)  # type: ignore[arg-type]

    def step(weights: Any, cache: Cache, arrays: StepArrays) -> tuple[Array, Cache]:
        decoder: Decoder = nnx.merge(graph, weights)
        logits = {"scale": decoder.config.attention_scale, "cap": decoder.config.attention_cap}
        here: StepArrays = jax.tree.map(lambda x: x[0], arrays)
        layers = attention_layers(decoder.config.layers)
        windows = windows_of(layers)

        def exchange(cache: KeyValues, new: KeyValues, segments: LaidOut, first_page: Array) -> KeyValues:
            """Write what the other devices computed of spread requests."""
            rows = min(EXCHANGED, len(new[0]))
            runs = rows // PAGE_SIZE
            # TPUs would keep three dimensions in a layout that costs a copy.
            flat = [x.reshape(len(x), -1) for x in new]

            def once(number: Array, cache: KeyValues) -> KeyValues:
                there = lax.dynamic_slice_in_dim(here.exchanged_writes, number * runs, runs, axis=1)
                writes = dataclasses.replace(segments, page_writes=there.reshape(-1) + first_page)
                parts = [lax.dynamic_slice_in_dim(x, number * rows, rows) for x in flat]
                theirs = [lax.all_gather(part, DATA, tiled=True).reshape(-1, *new[0].shape[1:]) for part in parts]
                k_pages, v_pages = (write_pages(*each, writes, backend) for each in zip(cache, theirs, strict=True))
                return k_pages, v_pages

            return lax.fori_loop(0, here.exchanges, once, cache)

        def attend(q: Array, k: Array, v: Array, cache: Cache, layer: Array, rows: Array | None) -> tuple[Array, Cache]:
            first_page = layer * pages
            segments = here.segments.shift_pages(first_page)
            if windows:
                segments = segments.of_window(jnp.array([windows.index(each.window) for each in layers])[layer])
            with jax.named_scope("write_pages"):
                k_pages, v_pages = (
                    write_pages(old, new, segments, backend) for old, new in zip(cache.key_values, (k, v), strict=True)
                )
                if devices > 1 and len(k) >= PAGE_SIZE:  # smaller steps are decode steps, which exchange nothing
                    k_pages, v_pages = exchange((k_pages, v_pages), (k, v), segments, first_page)
            if rows is not None and not dense_mask:
                segments = backend.narrowed(segments, rows)
            out = segment_attention(q, k, v, k_pages, v_pages, segments, **logits, backend=attends)
            return out, cache._replace(key_values=(k_pages, v_pages))

        def recur(
            inputs: Array, decay: Array, rate: Array, kernel: Array, cache: Cache, number: Array
        ) -> tuple[Array, Cache]:
            whole = decoder.config.recurrence
            assert whole is not None
            shape = whole.on_device(mesh.shape[TENSOR])
            assert cache.states is not None
            given = inputs, decay, rate, kernel, cache.states
            if here.states is not None:
                own = jnp.where(here.states < slots, here.states + number * slots, NOWHERE)
                out, states = gated_delta_decode(*given, own, shape=shape, backend=backend)
            else:
                assert here.chunks is not None
                out, states = gated_delta(*given, here.chunks.shift(number * slots), shape=shape, backend=backend)
            return out, cache._replace(states=states)

        token_ids, positions, rows = map(jnp.asarray, here[:3])
        hidden, cache = decoder(token_ids, positions, rows, attend, cache, recur)
        if here.copies is not None and cache.states is not None:
            with jax.named_scope("copy_states"):
                cache = cache._replace(states=copy_states(cache.states, here.copies, slots))
        return jnp.pad(hidden, ((0, max(returned - len(hidden), 0)), (0, 0))), cache

    return jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(weight_partitions(weights), partitions, P(DATA)),
        out_specs=(P(DATA), partitions),
        check_vma=False,  # loops carry values that start out the same everywhere
    )
