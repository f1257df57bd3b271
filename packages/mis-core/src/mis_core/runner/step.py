"""The compiled step: all layers on one packed array of new tokens per device."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax import Array, lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from mis_core.models.decoder import Decoder
from mis_core.models.parallel import DATA, TENSOR, partition
from mis_kernels import segment_attention, write_pages
from mis_kernels.backends import Backend, LaidOut
from mis_kernels.segments import NOWHERE

KeyValueCache = tuple[Array, Array]
"""Keys and values, each `[kv_heads, layers * pages, page_size, head_dim]`, cut by head, the same along `DATA`."""

Step = Callable[[Any, KeyValueCache, Array, Array, Array, LaidOut], tuple[Array, KeyValueCache]]


def weight_partitions(weights: Any, backend: Backend) -> Any:
    """Return the partition of every array of a decoder's state."""
    flat = nnx.to_flat_state(weights)
    cut = {path: leaf.replace(backend.partition(leaf.get_value(), partition(path))) for path, leaf in flat}
    return nnx.from_flat_state(cut)


def make_step(graph: Any, weights: Any, mesh: Mesh, pages: int, backend: Backend, *, dense_mask: bool = False) -> Step:
    """Return the step of a model, ready for `jax.jit` with the cache donated.

    Args:
        graph: The decoder's graph, from `nnx.split`.
        weights: Its state, cut over the mesh as `partition` says; shapes are enough.
        mesh: Devices with axes `DATA` and `TENSOR`.
        pages: Pages of one layer.
        backend: Who computes it, the decoder's.
        dense_mask: Attend with materialised masks, as a reference.

    Returns:
        `(weights, cache, token_ids, positions, scored_rows, segments) -> (hidden, cache)`, where every
        argument after the cache has one row per device along `DATA`: token ids and positions
        `[devices, tokens]`, scored rows `[devices, scored]`, segments stacked. `hidden` is
        `[devices * scored, embed]`, final-normed.
    """
    devices, attends = mesh.shape[DATA], "reference" if dense_mask else None

    def step(
        weights: Any, cache: KeyValueCache, token_ids: Array, positions: Array, rows: Array, stacked: LaidOut
    ) -> tuple[Array, KeyValueCache]:
        decoder: Decoder = nnx.merge(graph, weights)
        scale = decoder.config.head_dim**-0.5
        segments: LaidOut = jax.tree.map(lambda x: x[0], stacked)
        # Every device keeps every page, so it writes what all of them computed.
        with jax.named_scope("write_pages"):
            page_writes = lax.all_gather(segments.page_writes, DATA, tiled=True)

        def everyones(new: Array) -> Array:
            if devices == 1:
                return new
            flat = new.reshape(len(new), -1)  # TPUs would keep three dimensions in a layout that costs a copy
            nothing = lax.empty((devices * len(flat), flat.shape[1]), flat.dtype)  # which nobody reads
            any_paged = (page_writes < NOWHERE).any()
            gathered = lax.cond(any_paged, lambda: lax.all_gather(flat, DATA, tiled=True), lambda: nothing)
            return gathered.reshape(-1, *new.shape[1:])

        def attend(q: Array, k: Array, v: Array, cache: KeyValueCache, layer: Array) -> tuple[Array, KeyValueCache]:
            here = segments.shift_pages(layer * pages)
            with jax.named_scope("write_pages"):
                writes = dataclasses.replace(here, page_writes=page_writes + layer * pages)
                k_pages, v_pages = (
                    write_pages(old, everyones(new), writes) for old, new in zip(cache, (k, v), strict=True)
                )
            out = segment_attention(q, k, v, k_pages, v_pages, here, scale=scale, backend=attends)
            return out, (k_pages, v_pages)

        return decoder(token_ids[0], positions[0], rows[0], attend, cache)

    each = P(DATA)
    return jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(weight_partitions(weights, backend), (P(TENSOR), P(TENSOR)), each, each, each, each),
        out_specs=(each, (P(TENSOR), P(TENSOR))),
        check_vma=False,  # loops carry values that start out the same everywhere
    )
