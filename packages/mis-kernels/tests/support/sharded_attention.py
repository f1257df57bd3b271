"""Run as a program with eight host devices: largest difference to one device, for each case, as JSON."""

import json
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from kernel_cases import Case, Segment
from mis_kernels import segment_attention, write_pages
from mis_kernels.sharding import (
    attention_over_heads,
    attention_over_tokens,
    cache_heads,
    write_pages_over_tokens,
)

HEADS = {
    "8 kv heads": (8, 2),
    "2 kv heads": (2, 4),
    "2 kv heads, group 7": (2, 7),
    "multi-query": (1, 8),
    "4 kv heads": (4, 1),
}


def over_heads() -> dict[str, float]:
    found = {}
    for name, (kv_heads, group) in HEADS.items():
        segments = [Segment(70, paged=True), *(Segment(n, context=1) for n in (20, 3, 40))]
        arrays = Case(segments, (0, 300), kv_heads=kv_heads, group=group).arrays(jnp.float32)
        scale = arrays.pop("scale")
        alone = jax.jit(partial(segment_attention, scale=scale))(**arrays)
        for devices in (2, 8):
            mesh = Mesh(np.array(jax.devices()[:devices]), ("tensor",))
            copies = cache_heads(kv_heads, devices) // kv_heads
            caches = {n: jnp.repeat(arrays[n], copies, axis=0) for n in ("k_pages", "v_pages")}
            several = jax.jit(partial(attention_over_heads, mesh=mesh, scale=scale))(**{**arrays, **caches})
            found[f"{name} over {devices}"] = float(np.abs(np.asarray(alone) - np.asarray(several)).max())
    return found


def over_tokens() -> dict[str, float]:
    """Each device computes one chunk of a query and some items behind the query's first page."""
    found = {}
    for devices in (2, 8):
        chunks = [Segment(64, context_len=64 * d, paged=True) for d in range(devices)]
        items = [Segment(20, context_len=64) for _ in range(3)]
        mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
        whole = Case([Segment(64 * devices, paged=True)])
        parts = [Case([chunk, *items], (64 * devices,), tokens=128).layout()[0] for chunk in chunks]
        table = whole.page_table()
        parts = [_on(part, table, device) for device, part in enumerate(parts)]
        stacked = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(_grown(a, x)) for a in x]), *parts)
        rng = np.random.default_rng(0)
        q, k, v = (jnp.asarray(rng.standard_normal((128 * devices, h, 16), np.float32)) for h in (4, 2, 2))
        empty = jnp.full((2, table.size + 3, 64, 16), jnp.nan)
        caches = [write_pages_over_tokens(empty, new, stacked, mesh=mesh) for new in (k, v)]
        several = jax.jit(partial(attention_over_tokens, scale=0.25, mesh=mesh))(q, k, v, *caches, stacked)
        expected = [empty, empty]
        for device, part in enumerate(parts):
            rows = slice(128 * device, 128 * (device + 1))
            expected = [write_pages(cache, new[rows], part) for cache, new in zip(expected, (k, v), strict=True)]
        alone = [
            segment_attention(*(x[128 * d : 128 * (d + 1)] for x in (q, k, v)), *expected, part, scale=0.25)
            for d, part in enumerate(parts)
        ]
        found[f"tokens over {devices}"] = float(np.abs(np.concatenate(alone) - np.asarray(several)).max())
    return found


def _on(segments, table, device):
    """The same layout, in the whole query's pages."""
    import dataclasses

    writes = segments.page_writes.copy()
    writes[0] = table[0, device]
    return dataclasses.replace(segments, page_table=table, page_writes=writes)


def _grown(array, peers):
    """Pad tile lists of the devices to one length."""
    if array.ndim == 0:
        return array
    length = max(peer.shape[0] for peer in peers)
    return np.pad(array, [(0, length - array.shape[0])] + [(0, 0)] * (array.ndim - 1))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(over_heads() | over_tokens()))
