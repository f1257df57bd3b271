"""The operations: arguments are checked here, and computed by the backend that fits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int32, Shaped

from mis_kernels.backends import Backend, LaidOut, choose
from mis_kernels.heads import HeadShape
from mis_kernels.segments import MIN_TOKENS, NOWHERE, Segments, ramp
from mis_kernels.storage import to_bits
from mis_kernels.weights import FoldedNorm, HeadRotations, QueriesKeysValues, Weight


def lay_out(
    *,
    starts: Int32[np.ndarray, " segments"],
    lens: Int32[np.ndarray, " segments"],
    context_ids: Int32[np.ndarray, " segments"],
    context_lens: Int32[np.ndarray, " segments"],
    paged: Bool[np.ndarray, " segments"],
    page_table: Int32[np.ndarray, "contexts pages_per_context"],
    page_size: int,
    tokens: int,
    backend: Backend,
    tile_capacity: tuple[int, ...] | None = None,
    page_writes: Int32[np.ndarray, " runs"] | None = None,
    window: int | None = None,
) -> LaidOut:
    """Describe a step by small integer arrays, and have a backend add what it needs to visit them.

    Args:
        starts: First new token of each segment in the packed array, rising, not overlapping. A paged
            segment whose pages are written whole starts at a multiple of `page_size`.
        lens: New tokens of each segment, at least 1.
        context_ids: Row of `page_table` with the segment's context.
        context_lens: Cached tokens before the segment's first new token; for a segment whose pages are written
            whole a multiple of `page_size`.
        paged: Whether the segment's K/V are written to its context's pages.
        page_table: Page numbers of each context, in order of position.
        page_size: Tokens in a page.
        tokens: Length of the packed array; tokens outside segments are padding and see nothing.
        backend: The backend that attends, see `mis_kernels.backends.choose`.
        tile_capacity: Lengths of its tile lists, for a fixed compiled shape; default: as needed.
        page_writes: Page that each run of `page_size` new tokens goes to, or each token, or `NOWHERE`; default: runs
            of paged segments go to their contexts' pages.
        window: Positions that a token sees, its own the last, at least 1; None: all.

    Raises:
        ValueError: segments overlap, leave the array, are misaligned, reach beyond the page table, or need more
            tiles than fit; or a window holds nothing.
    """
    run = page_size if page_writes is None else tokens // len(page_writes)
    _check_segments(starts, lens, context_lens, context_ids, paged, page_table, page_size, run, tokens)
    index_in_segment = ramp(lens)
    used = np.repeat(starts, lens) + index_in_segment
    is_paged = np.repeat(paged, lens)

    context_id, context_len = np.zeros(tokens, np.int32), np.zeros(tokens, np.int32)
    segment_start = np.arange(1, tokens + 1, dtype=np.int32)
    context_id[used] = np.repeat(context_ids, lens)
    context_len[used] = np.repeat(context_lens, lens) + np.where(is_paged, index_in_segment + 1, 0)
    segment_start[used] = np.where(is_paged, used + 1, np.repeat(starts, lens))

    if page_writes is None:
        page_writes = np.full(max(tokens // page_size, 1), NOWHERE, np.int32)
        page_counts = -(-lens[paged] // page_size)
        page = ramp(page_counts)
        page_writes[np.repeat(starts[paged] // page_size, page_counts) + page] = page_table[
            np.repeat(context_ids[paged], page_counts), np.repeat(context_lens[paged] // page_size, page_counts) + page
        ]
    if window is not None and window < 1:
        raise ValueError(f"window: must be at least 1, not {window}")
    slides = None if window is None else np.asarray(window, np.int32)
    segments = Segments(context_id, context_len, segment_start, page_table, page_writes, window=slides)
    return backend.lay_out(segments, page_size, tile_capacity)


def segment_attention(
    q: Float[Array, "tokens heads head_dim"],
    k: Float[Array, "tokens kv_heads head_dim"],
    v: Float[Array, "tokens kv_heads head_dim"],
    k_pages: Shaped[Array, "kv_heads pages page_size cache_head_dim"],
    v_pages: Shaped[Array, "kv_heads pages page_size cache_head_dim"],
    segments: LaidOut,
    *,
    scale: float,
    cap: float | None = None,
    backend: Backend | str | None = None,
) -> Float[Array, "tokens heads head_dim"]:
    """Attend from packed new tokens to their contexts and their own segments.

    Args:
        q: Query rows, RoPE applied. bf16 or f32.
        k: Keys of the new tokens, RoPE applied, same type.
        v: Values of the new tokens, same type.
        k_pages: Key cache. Pages must have been written before (see `write_pages`), those of this
            step's paged segments included. Memory that no context reaches may hold anything. Same
            type as `q`, or its bits (see `mis_kernels.storage`); its heads may be wider, filled up with zeros
            (see `Backend.cache_head_dim`).
        v_pages: Value cache, as `k_pages`.
        segments: What each token sees.
        scale: Factor of the logits, usually `head_dim ** -0.5`.
        cap: Soft cap of the scaled logits, see `mis_kernels.capped`; None: no cap.
        backend: The backend or its name: the one that `segments` were laid out for; `reference` and `native` take
            segments laid out for any. Default: the first that fits.

    Returns:
        Attention output, shape and dtype of `q`. Rows that see nothing are zero.

    Raises:
        ValueError: shapes do not fit together; names the argument.

    Numerics: accumulates in f32. A row's bits do not depend on other segments with `native`, and with
    `xla` on CPU; the other backends do not promise it.
    """
    _check(q, k, v, k_pages, v_pages, segments)
    if cap is not None and not cap > 0:
        raise ValueError(f"cap: must be positive, not {cap}")
    heads = HeadShape(q.shape[1], k.shape[1], q.shape[2])
    chosen = backend if isinstance(backend, Backend) else choose(heads, q.dtype.name, backend)
    tokens = segments.num_tokens
    if tokens % MIN_TOKENS and tokens not in chosen.few_rows:
        raise ValueError(f"q: {tokens} tokens; pad to a multiple of {MIN_TOKENS}")
    wider = k_pages.shape[3] - heads.head_dim
    with jax.named_scope(f"attention_{chosen.name}"):
        q, k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, wider))) for x in (q, k, v)) if wider else (q, k, v)
        return chosen.attend(q, k, v, k_pages, v_pages, segments, scale=scale, cap=cap)[..., : heads.head_dim]


def write_pages(
    pages: Shaped[Array, "kv_heads pages page_size cache_head_dim"],
    new: Float[Array, "tokens kv_heads head_dim"],
    segments: Segments,
    backend: Backend,
) -> Shaped[Array, "kv_heads pages page_size cache_head_dim"]:
    """Write the new tokens of paged segments to their pages: the paged KV cache's only write.

    Whole pages are written, or single rows, as `page_writes` has a page for each run or for each token. Segments
    whose pages are written whole begin on a page boundary, and what follows their last token in their last page is
    never seen before it is written.

    Args:
        pages: Key or value cache, floats or their bits (see `mis_kernels.storage`); donate it to keep the
            update in place.
        new: Keys or values of the new tokens; zeros fill them up to the cache's width (`Backend.cache_head_dim`).
        segments: `page_writes` says where each run of `page_size` tokens goes, or each token, if anywhere.
        backend: Who writes.
    """
    new = jnp.pad(new, ((0, 0), (0, 0), (0, pages.shape[3] - new.shape[2])))
    new = to_bits(new) if pages.dtype == jnp.uint16 else new
    writes = jnp.asarray(segments.page_writes)
    if len(writes) < len(new):
        return backend.write_pages(pages, new, writes)
    slots = (jnp.asarray(segments.context_len) - 1) % pages.shape[2]  # a paged token sees itself last
    return backend.write_rows(pages, new, writes, slots)


def project(
    x: Float[Array, "tokens in"],
    weight: Weight,
    rotations: HeadRotations,
    bias: Float[Array, "kv_heads group_plus_two head_dim"] | None = None,
    norm: FoldedNorm | None = None,
    *,
    backend: Backend,
) -> QueriesKeysValues:
    """Return queries, keys and values of tokens; queries and keys normalised and rotated.

    Args:
        x: Activations.
        weight: Per KV head its query heads, then its key, then its value, as columns.
        rotations: Of the tokens.
        bias: Added to the product.
        norm: In front of the product; only of backends that fold norms.
        backend: Who normalises and rotates what the weight leaves to it.
    """
    made = weight.project(x, backend.heads, rotations, bias, norm)
    if made is not None:
        return made
    with jax.named_scope("qkv"):
        qkv = weight.linear(x, norm=norm)
        qkv = qkv.reshape(len(qkv), -1, backend.heads.group + 2, backend.heads.head_dim)
        qkv = qkv if bias is None else qkv + bias
    return norm_rope(qkv, *rotations, backend=backend)


def norm_rope(
    qkv: Float[Array, "tokens kv_heads group_plus_two head_dim"],
    cos: Float32[Array, "tokens head_dim"],
    sin: Float32[Array, "tokens head_dim"],
    q_norm: Float[Array, " head_dim"] | None,
    k_norm: Float[Array, " head_dim"] | None,
    epsilon: float,
    *,
    backend: Backend | str | None = None,
) -> QueriesKeysValues:
    """Turn a fused projection into queries, keys and values.

    Args:
        qkv: Per KV head its query heads, then its key, then its value. bf16 or f32; a multiple of 64 tokens,
            or as few as the backend takes (`Backend.few_rows`).
        cos: Cosines of `rotary_tables`.
        sin: Sines of `rotary_tables`.
        q_norm: Weight of the queries' RMS norm, or None: no norm.
        k_norm: Weight of the keys' RMS norm, given together with `q_norm`.
        epsilon: Added to the mean square.
        backend: The backend or its name; default: the first that fits.

    Returns:
        q, k and v in the type of `qkv`; q and k normalised and rotated.

    Raises:
        ValueError: the backend is unknown or does not fit, or only one of the norms is given.
    """
    if (q_norm is None) != (k_norm is None):
        raise ValueError("q_norm, k_norm: give both or neither")
    _, kv_heads, parts, head_dim = qkv.shape
    heads = HeadShape(kv_heads * (parts - 2), kv_heads, head_dim)
    if not isinstance(backend, Backend):
        backend = choose(heads, qkv.dtype.name, backend)
    with jax.named_scope(f"norm_rope_{backend.name}"):
        return backend.norm_rope(qkv, cos, sin, q_norm, k_norm, epsilon)


def _check(q: Array, k: Array, v: Array, k_pages: Array, v_pages: Array, segments: LaidOut) -> None:
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    if heads % kv_heads:
        raise ValueError(f"q: {heads} heads are not a multiple of {kv_heads} KV heads")
    if k.shape != (tokens, kv_heads, head_dim) or v.shape != k.shape:
        raise ValueError(f"k, v: expected [{tokens}, {kv_heads}, {head_dim}], got {k.shape} and {v.shape}")
    if k_pages.shape[0] != kv_heads or k_pages.shape[3] < head_dim or v_pages.shape != k_pages.shape:
        wanted = f"[{kv_heads}, pages, page_size, {head_dim}]"
        raise ValueError(f"k_pages, v_pages: expected {wanted}, got {k_pages.shape} and {v_pages.shape}")
    if segments.num_tokens != tokens:
        raise ValueError(f"segments: describe {segments.num_tokens} tokens, but q has {tokens}")


def _check_segments(
    starts: Any, lens: Any, context_lens: Any, context_ids: Any, paged: Any, table: Any, page: int, run: int, n: int
) -> None:
    if len(lens) == 0:
        return
    if lens.min() < 1:
        raise ValueError("lens: every segment needs at least one token")
    ends = starts + lens
    if starts[0] < 0 or ends[-1] > n or np.any(starts[1:] < ends[:-1]):
        raise ValueError(f"starts, lens: segments overlap or leave the packed array of {n} tokens")
    if np.any(starts[paged] % run) or np.any(context_lens[paged] % run):
        raise ValueError(f"starts, context_lens: a paged segment must start at a multiple of the page size, {run}")
    if context_ids.min() < 0 or context_ids.max() >= len(table):
        raise ValueError(f"context_ids: outside the page table of {len(table)} contexts")
    reach = context_lens + np.where(paged, lens, 0)
    if context_lens.min() < 0 or reach.max() > table.shape[1] * page:
        raise ValueError(f"context_lens: a context of {reach.max()} tokens needs more than {table.shape[1]} pages")
