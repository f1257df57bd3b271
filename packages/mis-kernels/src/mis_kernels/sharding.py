"""Attention over several devices: by KV head, or by token. There is no mask to shard.

Heads are independent, so cutting them needs no communication; the small integer arrays of a step are
replicated. With fewer KV heads than devices each KV head is copied, and its query heads (rows, to the
kernel) are divided among the copies. Tokens are independent once the cache is written, so cutting them
needs one gather of the step's new keys and values.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Shaped

from mis_kernels.attention.api import segment_attention
from mis_kernels.pages import write_pages
from mis_kernels.segments import Segments


def cache_heads(kv_heads: int, devices: int) -> int:
    """Return how many KV heads a cache over `devices` holds, copies included.

    Raises:
        ValueError: neither of the two numbers divides the other.
    """
    if kv_heads % devices and devices % kv_heads:
        raise ValueError(f"kv_heads, devices: {kv_heads} KV heads cannot be divided among {devices} devices")
    return max(kv_heads, devices)


def copy_kv_heads(x: Shaped[Array, "tokens kv_heads head_dim"], devices: int) -> Shaped[Array, "tokens heads head_dim"]:
    """Copy KV heads side by side until there is one for each device, if there are fewer."""
    return jnp.repeat(x, cache_heads(x.shape[1], devices) // x.shape[1], axis=1)


def attention_over_heads(
    q: Float[Array, "tokens heads head_dim"],
    k: Float[Array, "tokens kv_heads head_dim"],
    v: Float[Array, "tokens kv_heads head_dim"],
    k_pages: Shaped[Array, "cache_heads pages page_size head_dim"],
    v_pages: Shaped[Array, "cache_heads pages page_size head_dim"],
    segments: Segments,
    *,
    scale: float,
    mesh: Mesh,
    axis: str = "tensor",
    implementation: str | None = None,
) -> Float[Array, "tokens heads head_dim"]:
    """Attend with KV heads cut over a mesh axis.

    Args:
        q: Query rows, as in `segment_attention`.
        k: Keys of the new tokens, each KV head once.
        v: Values, likewise.
        k_pages: Key cache with `cache_heads(kv_heads, devices)` heads, sharded along them.
        v_pages: Value cache, likewise.
        segments: What each token sees; the same on every device.
        scale: Factor of the logits.
        mesh: Devices, with automatic axes.
        axis: Mesh axis to cut over.
        implementation: As in `segment_attention`.

    Raises:
        ValueError: KV heads and devices do not divide each other, or shapes do not fit.
    """
    devices, (tokens, heads, head_dim), kv_heads = mesh.shape[axis], q.shape, k.shape[1]
    copies = cache_heads(kv_heads, devices) // kv_heads
    group = heads // kv_heads
    share = -(-group // copies)  # query heads at each copy; the last copies may be padded
    padding = ((0, 0), (0, 0), (0, share * copies - group), (0, 0))
    rows = jnp.pad(q.reshape(tokens, kv_heads, group, head_dim), padding).reshape(tokens, -1, head_dim)

    def attend(q: Array, k: Array, v: Array, k_pages: Array, v_pages: Array, segments: Segments) -> Array:
        return segment_attention(q, k, v, k_pages, v_pages, segments, scale=scale, implementation=implementation)

    new, cache = P(None, axis), P(axis)
    out = jax.shard_map(
        attend,
        mesh=mesh,
        in_specs=(new, new, new, cache, cache, jax.tree.map(lambda _: P(), segments)),
        out_specs=new,
        check_vma=False,  # loops carry values that start out replicated
    )(rows, copy_kv_heads(k, devices), copy_kv_heads(v, devices), k_pages, v_pages, segments)
    return out.reshape(tokens, kv_heads, -1, head_dim)[:, :, :group].reshape(q.shape)


def write_pages_over_tokens(
    pages: Shaped[Array, "kv_heads pages page_size head_dim"],
    new: Float[Array, "tokens kv_heads head_dim"],
    segments: Segments,
    *,
    mesh: Mesh,
    axis: str = "data",
) -> Shaped[Array, "kv_heads pages page_size head_dim"]:
    """Write every device's paged tokens to every device's copy of the cache.

    Args:
        pages: Cache, replicated over the axis.
        new: New keys or values, tokens cut over the axis.
        segments: One layout for each device, stacked along a new first axis.
        mesh: Devices.
        axis: Mesh axis the tokens are cut over.
    """

    def write(pages: Array, new: Array, segments: Segments) -> Array:
        for device in range(mesh.shape[axis]):
            theirs = jax.tree.map(lambda x, device=device: x[device], segments)
            pages = write_pages(pages, lax.all_gather(new, axis)[device], theirs)
        return pages

    specs = (P(), P(axis), jax.tree.map(lambda _: P(), segments))
    return jax.shard_map(write, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(pages, new, segments)


def attention_over_tokens(
    q: Float[Array, "tokens heads head_dim"],
    k: Float[Array, "tokens kv_heads head_dim"],
    v: Float[Array, "tokens kv_heads head_dim"],
    k_pages: Shaped[Array, "kv_heads pages page_size head_dim"],
    v_pages: Shaped[Array, "kv_heads pages page_size head_dim"],
    segments: Segments,
    *,
    scale: float,
    mesh: Mesh,
    axis: str = "data",
    implementation: str | None = None,
) -> Float[Array, "tokens heads head_dim"]:
    """Attend with new tokens cut over a mesh axis; a segment that is not paged lies on one device.

    Args:
        q: Query rows, as in `segment_attention`.
        k: Keys of the new tokens.
        v: Values of the new tokens.
        k_pages: Key cache, replicated, written by `write_pages_over_tokens`.
        v_pages: Value cache, likewise.
        segments: One layout for each device, stacked along a new first axis.
        scale: Factor of the logits.
        mesh: Devices, with automatic axes.
        axis: Mesh axis to cut over.
        implementation: As in `segment_attention`.
    """

    def attend(q: Array, k: Array, v: Array, k_pages: Array, v_pages: Array, segments: Segments) -> Array:
        mine = jax.tree.map(lambda x: x[0], segments)
        return segment_attention(q, k, v, k_pages, v_pages, mine, scale=scale, implementation=implementation)

    new = P(axis)
    return jax.shard_map(
        attend,
        mesh=mesh,
        in_specs=(new, new, new, P(), P(), jax.tree.map(lambda _: P(axis), segments)),
        out_specs=new,
        check_vma=False,
    )(q, k, v, k_pages, v_pages, segments)
