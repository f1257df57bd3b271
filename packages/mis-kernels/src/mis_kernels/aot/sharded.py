"""The kernel over several chips: KV heads are cut over the `tensor` axis, tile lists are replicated."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from mis_kernels.aot.programs import PAGE_SIZE, Program, extend_step
from mis_kernels.backends import LaidOut
from mis_kernels.backends.tpu.attention import tpu_attention
from mis_kernels.backends.tpu.tiles import block_sizes
from mis_kernels.heads import HeadShape


def sharded_kernel_program(heads: HeadShape, chip: str, mesh: Mesh, tokens: int) -> tuple[Program, Any]:
    """Return the kernel under `shard_map`, and its arguments' shardings.

    KV heads are sharded; with fewer of them than devices, arrays have as many as devices (`HeadShape.spread`).
    """
    devices = mesh.size
    whole = heads.spread(devices)
    blocks = block_sizes(chip=chip, **heads.on_device(devices)._asdict())
    segments = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), extend_step(tokens, blocks))
    pages = segments.page_table.shape[1]

    def attend(q: Array, k: Array, v: Array, k_pages: Array, v_pages: Array, segments: LaidOut) -> Array:
        return tpu_attention(q, k, v, k_pages, v_pages, segments, scale=heads.head_dim**-0.5)

    new, cache = P(None, "tensor"), P("tensor")
    specs = (new, new, new, cache, cache, jax.tree.map(lambda _: P(), segments))
    function = jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=new, check_vma=False)
    q = jax.ShapeDtypeStruct((tokens, whole.heads, whole.head_dim), jnp.bfloat16)
    kv = jax.ShapeDtypeStruct((tokens, whole.kv_heads, whole.head_dim), jnp.bfloat16)
    paged = jax.ShapeDtypeStruct((whole.kv_heads, pages, PAGE_SIZE, whole.head_dim), jnp.bfloat16)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, P))
    return Program(f"attention over {devices} chips", function, (q, kv, kv, paged, paged, segments)), shardings
