"""The attention op: one context and many segments, by whichever implementation fits the platform."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from mis_kernels.backends.native.attention import native_attention
from mis_kernels.backends.reference.attention import reference_attention
from mis_kernels.backends.tpu.attention import pallas_tpu_attention
from mis_kernels.backends.tpu.tiles import TpuTiles
from mis_kernels.backends.xla.attention import xla_attention
from mis_kernels.backends.xla.tiles import CONTEXT_TILE, MIN_TOKENS, BlockTiles
from mis_kernels.segments import Segments

IMPLEMENTATIONS: dict[str, Callable[..., Array]] = {
    "reference": reference_attention,
    "xla": xla_attention,
    "native": native_attention,
    "pallas_tpu": pallas_tpu_attention,
}


def segment_attention(
    q: Float[Array, "tokens heads head_dim"],
    k: Float[Array, "tokens kv_heads head_dim"],
    v: Float[Array, "tokens kv_heads head_dim"],
    k_pages: Shaped[Array, "kv_heads pages page_size cache_head_dim"],
    v_pages: Shaped[Array, "kv_heads pages page_size cache_head_dim"],
    segments: Segments,
    *,
    scale: float,
    implementation: str | None = None,
) -> Float[Array, "tokens heads head_dim"]:
    """Attend from packed new tokens to their contexts and their own segments.

    Args:
        q: Query rows, RoPE applied. bf16 or f32.
        k: Keys of the new tokens, RoPE applied, same type.
        v: Values of the new tokens, same type.
        k_pages: Key cache. Pages must have been written before (see `write_pages`), those of this
            step's paged segments included. Memory that no context reaches may hold anything. Same
            type as `q`, or its bits (see `storage_dtype`); its heads may be wider, filled up with zeros
            (see `cache_head_dim`).
        v_pages: Value cache, likewise.
        segments: What each token sees.
        scale: Factor of the logits, usually `head_dim ** -0.5`.
        implementation: `xla`, `native`, `pallas_tpu` or `reference`; default: the one `segments` were
            laid out for. `reference` and `native` take any layout.

    Returns:
        Attention output, shape and dtype of `q`. Rows that see nothing are zero.

    Raises:
        ValueError: shapes do not fit together; names the argument.

    Numerics: accumulates in f32. A row's bits do not depend on other segments with `native`, and with
    `xla` on CPU; the other implementations do not promise it.
    """
    _check(q, k, v, k_pages, v_pages, segments)
    name = implementation or _laid_out_for(segments)
    if name not in IMPLEMENTATIONS:
        raise ValueError(f"implementation: {name!r} is unknown; choose from {', '.join(IMPLEMENTATIONS)}")
    head_dim, wider = q.shape[2], k_pages.shape[3] - q.shape[2]
    with jax.named_scope(f"attention_{name}"):
        q, k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, wider))) for x in (q, k, v)) if wider else (q, k, v)
        return IMPLEMENTATIONS[name](q, k, v, k_pages, v_pages, segments, scale=scale)[..., :head_dim]


def _laid_out_for(segments: Segments) -> str:
    if segments.tiles is None:
        return "native"
    return "pallas_tpu" if isinstance(segments.tiles, TpuTiles) else "xla"


def _check(q: Array, k: Array, v: Array, k_pages: Array, v_pages: Array, segments: Segments) -> None:
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    if heads % kv_heads:
        raise ValueError(f"q: {heads} heads are not a multiple of {kv_heads} KV heads")
    if k.shape != (tokens, kv_heads, head_dim) or v.shape != k.shape:
        raise ValueError(f"k, v: expected [{tokens}, {kv_heads}, {head_dim}], got {k.shape} and {v.shape}")
    if k_pages.shape[0] != kv_heads or k_pages.shape[3] < head_dim or v_pages.shape != k_pages.shape:
        wanted = f"[{kv_heads}, pages, page_size, {head_dim}]"
        raise ValueError(f"k_pages, v_pages: expected {wanted}, got {k_pages.shape} and {v_pages.shape}")
    if isinstance(segments.tiles, BlockTiles) and CONTEXT_TILE % k_pages.shape[2]:
        raise ValueError(f"k_pages: the page size {k_pages.shape[2]} does not divide {CONTEXT_TILE}")
    if segments.num_tokens != tokens:
        raise ValueError(f"segments: describe {segments.num_tokens} tokens, but q has {tokens}")
    if tokens % MIN_TOKENS:
        raise ValueError(f"q: {tokens} tokens; pad to a multiple of {MIN_TOKENS}")
