"""What is compiled: the kernel alone, on one chip or several, and the op inside a scan over decoder layers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from mis_kernels.activations import Gate
from mis_kernels.aot.schedules import BundleRun, read_attention, read_bodies, read_grid, read_loop
from mis_kernels.aot.targets import PAGE_SIZE, Topology, mesh
from mis_kernels.backends import ANY_HEADS, LaidOut
from mis_kernels.backends.tpu import projection
from mis_kernels.backends.tpu.attention import tpu_attention
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.head import tpu_log_sum_exp
from mis_kernels.backends.tpu.norm_rope import tpu_norm_rope
from mis_kernels.backends.tpu.products import ProductSizes, tpu_quantized_product
from mis_kernels.backends.tpu.projection import tpu_quantized_projection
from mis_kernels.backends.tpu.tiles import TpuBlocks, block_sizes, vmem_bytes
from mis_kernels.backends.xla.pages import write_pages
from mis_kernels.heads import HEAD_SHAPES, HeadShape
from mis_kernels.operations import lay_out, segment_attention
from mis_kernels.quantized import QuantizedWeight, block_of
from mis_kernels.weights import HeadRotations

STEP_TOKENS = 2048
CONTEXT = 2000
ITEM = 20
LAYERS = 2
EMBED = 1024
DTYPE = "bfloat16"


GROWTH = [(kind, tokens) for tokens in (2048, 8192, 32768) for kind in ("extend", "prefill")]
"""Growing steps: memory must grow with the tokens, never with their square."""

Row = dict[str, Any]
"""What is reported of a program."""


class Program(NamedTuple):
    """What is compiled.

    Attributes:
        name: For people.
        function: What is computed.
        arguments: Shapes of its arguments.
        donated: Which of them are.
        shardings: How they are cut; None: not at all.
        kernel: Whose schedule is read; None: none is.
        report: Returns what else is reported, of the compiled program and of the kernel's schedule.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...] = ()
    shardings: Any = None
    kernel: str | None = None
    report: Callable[[Any, list[BundleRun]], Row] = lambda *_: {}


class AttentionSize(NamedTuple):
    """What the attention kernel is compiled for.

    Attributes:
        heads: Of a device.
        window: Positions that a token sees; None: all.
        cap: Of the logits; None: there is none.
    """

    heads: HeadShape
    window: int | None = None
    cap: float | None = None

    @property
    def name(self) -> str:
        """What its program is called."""
        slides = "" if self.window is None else "sliding "
        caps = "" if self.cap is None else "capped "
        return f"{caps}{slides}attention kv{self.heads.kv_heads} g{self.heads.group} d{self.heads.head_dim} {DTYPE}"


def extend_step(
    tokens: int, blocks: TpuBlocks, context: int = CONTEXT, item: int = ITEM, window: int | None = None
) -> LaidOut:
    """Lay out a step full of items behind one cached context; no item straddles a block."""
    per_block = blocks.tokens // item
    begin = np.arange(0, tokens, blocks.tokens)[:, None] + np.arange(per_block) * item
    starts = begin.reshape(-1)[: tokens // item].astype(np.int32)
    starts = starts[starts + item <= tokens]
    pages = -(-context // PAGE_SIZE)
    return _lay_out(starts, np.full(len(starts), item, np.int32), context, False, pages, tokens, blocks, window)


def prefill_step(tokens: int, blocks: TpuBlocks) -> LaidOut:
    """Lay out a step that computes one query of `tokens` tokens."""
    return _lay_out(
        np.zeros(1, np.int32), np.array([tokens], np.int32), 0, True, -(-tokens // PAGE_SIZE), tokens, blocks
    )


def _lay_out(
    starts: np.ndarray,
    lens: np.ndarray,
    context: int,
    paged: bool,
    pages: int,
    tokens: int,
    blocks: TpuBlocks,
    window: int | None = None,
) -> LaidOut:
    return lay_out(
        starts=starts,
        lens=lens,
        context_ids=np.zeros(len(starts), np.int32),
        context_lens=np.full(len(starts), context, np.int32),
        paged=np.full(len(starts), paged),
        page_table=np.arange(pages, dtype=np.int32)[None],
        page_size=PAGE_SIZE,
        tokens=tokens,
        backend=TpuBackend(ANY_HEADS, DTYPE, blocks),
        window=window,
    )


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, DTYPE)


def kernel_program(target: Topology, size: AttentionSize) -> Program:
    """Return the attention kernel alone; its schedule and its memory are reported."""
    return _kernel_program(size, block_sizes(chip=target.chip, **size.heads._asdict()))


def mixed_kernel_program(target: Topology, size: AttentionSize) -> Program:
    """Return the same kernel as it computes mixed steps."""
    blocks = block_sizes(chip=target.chip, **size.heads._asdict()).for_mixed_steps(size.heads.group)
    program = _kernel_program(size, blocks)
    return program._replace(name=f"mixed {program.name}")


def _kernel_program(size: AttentionSize, blocks: TpuBlocks) -> Program:
    heads, segments = size.heads, extend_step(STEP_TOKENS, blocks, window=size.window)
    tokens, pages = segments.num_tokens, segments.page_table.size
    q, new = (_floats(tokens, count * heads.head_dim) for count in (heads.heads, heads.kv_heads))
    cache = _floats(heads.kv_heads, pages, PAGE_SIZE, heads.head_dim)

    def attend(q: Array, k: Array, v: Array, k_pages: Array, v_pages: Array, segments: LaidOut) -> Array:
        # Projections leave heads side by side.
        q, k, v = (x.reshape(tokens, -1, heads.head_dim) for x in (q, k, v))
        out = tpu_attention(q, k, v, k_pages, v_pages, segments, scale=heads.head_dim**-0.5, cap=size.cap)
        return out.reshape(tokens, -1)

    def report(_: Any, runs: list[BundleRun]) -> Row:
        schedule = read_attention(runs, has_near=blocks.has_near)
        around = {"tile": schedule.tile.most, "page": schedule.page, "block": schedule.block.most}
        vmem = vmem_bytes(blocks, group=heads.group, head_dim=heads.head_dim, itemsize=2)
        return {"bundles": schedule.tiles | around, "schedule": schedule, "vmem": vmem}

    arguments = (q, new, new, cache, cache, _shapes(segments))
    return Program(size.name, attend, arguments, kernel="segment_attention", report=report)


def sharded_program(target: Topology, model: str) -> Program:
    """Return a model's kernel over all chips: KV heads are cut over the axis `tensor`, tile lists are replicated.

    With fewer KV heads than devices, arrays have as many as devices (`HeadShape.spread`).
    """
    on, heads = mesh(target), HEAD_SHAPES[model]
    whole = heads.spread(on.size)
    blocks = block_sizes(chip=target.chip, **heads.on_device(on.size)._asdict())
    segments = _shapes(extend_step(STEP_TOKENS, blocks))

    def attend(q: Array, k: Array, v: Array, k_pages: Array, v_pages: Array, segments: LaidOut) -> Array:
        return tpu_attention(q, k, v, k_pages, v_pages, segments, scale=heads.head_dim**-0.5)

    new, cache = P(None, "tensor"), P("tensor")
    specs = (new, new, new, cache, cache, jax.tree.map(lambda _: P(), segments))
    function = jax.shard_map(attend, mesh=on, in_specs=specs, out_specs=new, check_vma=False)
    q, kv = (_floats(STEP_TOKENS, count, whole.head_dim) for count in (whole.heads, whole.kv_heads))
    paged = _floats(whole.kv_heads, segments.page_table.shape[1], PAGE_SIZE, whole.head_dim)
    shardings = jax.tree.map(lambda spec: NamedSharding(on, spec), specs, is_leaf=lambda x: isinstance(x, P))
    arguments = (q, kv, kv, paged, paged, segments)
    return Program(f"{model} attention over {on.size} chips", function, arguments, shardings=shardings)


def layers_program(target: Topology, heads: HeadShape) -> Program:
    """Return projections, cache writes and attention in a scan over layers that share one donated cache."""
    return _layers(heads, extend_step(STEP_TOKENS, block_sizes(chip=target.chip, **heads._asdict())))


def growth_program(target: Topology, step: tuple[str, int]) -> Program:
    """Return the layers of a step of `GROWTH`."""
    (kind, tokens), heads = step, HEAD_SHAPES["qwen3-0.6b"]
    lay_out_step = extend_step if kind == "extend" else prefill_step
    program = _layers(heads, lay_out_step(tokens, block_sizes(chip=target.chip, **heads._asdict())))
    return program._replace(name=f"growth {kind} {tokens} tokens", report=lambda *_: {"tokens": tokens})


def _layers(heads: HeadShape, segments: LaidOut) -> Program:
    tokens, pages = segments.num_tokens, segments.page_table.size
    kv_heads, group, dim = heads.kv_heads, heads.group, heads.head_dim
    backend = TpuBackend(heads, DTYPE, segments.tiles.blocks)
    x, cache = _floats(tokens, EMBED), _floats(kv_heads, LAYERS * pages, PAGE_SIZE, dim)
    qkv = _floats(LAYERS, EMBED, (heads.heads + 2 * kv_heads) * dim)
    out = _floats(LAYERS, heads.heads * dim, EMBED)

    def step(
        x: Array, caches: tuple[Array, Array], qkv: Array, out: Array, segments: LaidOut
    ) -> tuple[Array, tuple[Array, Array]]:
        def layer(carry: tuple[Array, tuple[Array, Array]], inputs: tuple[Array, Array, Array]) -> tuple[Any, None]:
            (x, (k_pages, v_pages)), (qkv, out, index) = carry, inputs
            here = segments.shift_pages(index * pages)
            projected = jnp.dot(x, qkv, preferred_element_type=jnp.float32).astype(x.dtype)
            q, k, v = jnp.split(projected, [heads.heads * dim, (heads.heads + kv_heads) * dim], axis=1)
            q, k, v = (part.reshape(tokens, -1, dim) for part in (q, k, v))
            k_pages, v_pages = (
                write_pages(old, new, jnp.asarray(here.page_writes)) for old, new in ((k_pages, k), (v_pages, v))
            )
            attended = segment_attention(q, k, v, k_pages, v_pages, here, scale=dim**-0.5, backend=backend)
            x = x + jnp.dot(attended.reshape(tokens, -1), out, preferred_element_type=jnp.float32).astype(x.dtype)
            return (x, (k_pages, v_pages)), None

        return lax.scan(layer, (x, caches), (qkv, out, jnp.arange(LAYERS)))[0]

    name = f"layers kv{kv_heads} g{group} d{dim} {DTYPE} {tokens} tokens"
    return Program(name, step, (x, (cache, cache), qkv, out, _shapes(segments)), donated=(1,))


def glue_program(target: Topology, heads: HeadShape) -> Program:
    """Return the kernel that normalises and rotates; its longest straight run is reported, which is one grid step."""
    tokens, dim, kv_heads, parts = STEP_TOKENS, heads.head_dim, heads.kv_heads, heads.group + 2
    table, weight = jax.ShapeDtypeStruct((tokens, dim), jnp.float32), _floats(dim)
    name = f"glue kv{kv_heads} g{heads.group} d{dim} {DTYPE}"

    def kernel(qkv: Array, cos: Array, sin: Array, q_norm: Array, k_norm: Array) -> tuple[Array, ...]:
        made = tpu_norm_rope(qkv.reshape(tokens, kv_heads, parts, dim), cos, sin, q_norm, k_norm, 1e-6)
        return tuple(x.reshape(tokens, -1) for x in made)  # as the attention kernel takes them

    def report(_: Any, runs: list[BundleRun]) -> Row:
        return {"bundles": {"step": max(run.bundles for run in runs)}}

    qkv = _floats(tokens, kv_heads * parts * dim)
    return Program(name, kernel, (qkv, table, table, weight, weight), kernel="norm_rope", report=report)


class HeadSize(NamedTuple):
    """What the kernel of the log-sum-exp is compiled for.

    Attributes:
        rows: Of one device.
        embed: Width of the model.
        vocab: Rows of its head.
        cap: Of the logits; None: there is none.
    """

    rows: int
    embed: int
    vocab: int
    cap: float | None = None


def head_program(target: Topology, size: HeadSize) -> Program:
    """Return the kernel of the log-sum-exp; a grid step is reported."""
    rows, embed, vocab, cap = size
    caps = "" if cap is None else "capped "

    def report(_: Any, runs: list[BundleRun]) -> Row:
        # A step is one of the vocabulary's blocks: the last has a body of its own.
        step = read_grid(runs, bodies=2)
        return {"bundles": {"step": step.body}, "schedule": step}

    name, arguments = (
        f"{caps}log-sum-exp of {rows} rows, head {vocab} x {embed}, {DTYPE}",
        (_floats(rows, embed), _floats(vocab, embed)),
    )
    return Program(name, partial(tpu_log_sum_exp, cap=cap), arguments, kernel="log_sum_exp", report=report)


PRODUCT_ROWS = 2048
"""Rows of the products that schedules are read of."""


class ProductSize(NamedTuple):
    """A product with a quantised weight on one device.

    Attributes:
        depth: Summands.
        columns: Output channels of one weight.
        parts: Weights: 2 where one gates the other.
        normed: Whether a folded norm is in front of it.
        residual: Whether it is added to a residual.
        heads: Whose queries, keys and values it makes, normalised and rotated; None: it is a product alone.
        gate: What the gate goes through, where there are two parts.
    """

    depth: int
    columns: int
    parts: int
    normed: bool
    residual: bool
    heads: HeadShape | None = None
    gate: Gate = "silu"

    @classmethod
    def read(cls, fields: Sequence[Any]) -> Self:
        """Return what was written as JSON."""
        *numbers, heads, gate = fields
        return cls(*numbers, heads=HeadShape(*heads) if heads else None, gate=gate)

    def grid_sizes(self, rows: int) -> ProductSizes:
        """Return the sizes of the kernel's grid steps."""
        if self.heads:
            return projection.sizes_of(rows, self.depth, self.heads)
        return ProductSizes.of(rows, self.depth, self.columns, self.parts)

    def report(self, _: Any, runs: list[BundleRun]) -> Row:
        """Report the schedules of steps that quantise rows, and of the others."""
        sizes = self.grid_sizes(PRODUCT_ROWS)
        if self.heads:
            strips = projection.strips_of(sizes, self.heads)
            bodies = read_loop(runs, strips // projection.strips_together(strips))
        else:
            bodies = read_bodies(runs, min(sizes.grid(PRODUCT_ROWS, self.columns)[1], 2))
        bundles = dict(zip(("first", "others"), (each.body for each in bodies), strict=False))
        return {"bundles": bundles, "schedules": bodies}


def product_program(target: Topology, size: ProductSize) -> Program:
    """Return the kernel of products of `PRODUCT_ROWS` rows with quantised weights, on one layer of a stack."""
    stack = (LAYERS, size.parts, size.depth, size.columns) if size.parts > 1 else (LAYERS, size.depth, size.columns)
    weight = QuantizedWeight(
        jax.ShapeDtypeStruct(stack, jnp.int8),
        jax.ShapeDtypeStruct((*stack[:-2], size.columns), jnp.float32),
        block_of(size.depth),
    )
    x, out = _floats(PRODUCT_ROWS, size.depth), _floats(PRODUCT_ROWS, size.columns)
    layer = jax.ShapeDtypeStruct((), jnp.int32)
    epsilon = 1e-6 if size.normed else None

    def product(x: Array, weight: QuantizedWeight, layer: Array, *residual: Array) -> Array:
        return tpu_quantized_product(x, weight, layer, *residual, epsilon=epsilon, gate=size.gate)

    name = f"{size.parts} x {size.depth} x {size.columns}"
    if size.heads is None:
        arguments = (x, weight, layer, *[out] * size.residual)
        activated = "" if size.gate == "silu" else f", {size.gate}"
        return Program(
            f"int8 product {name}{activated}", product, arguments, kernel="quantized_product", report=size.report
        )
    heads = size.heads
    table = jax.ShapeDtypeStruct((PRODUCT_ROWS, heads.head_dim), jnp.float32)
    norm = _floats(heads.head_dim)

    def project(
        x: Array, weight: QuantizedWeight, layer: Array, cos: Array, sin: Array, q_norm: Array, k_norm: Array
    ) -> tuple[Array, Array, Array]:
        rotations = HeadRotations(cos, sin, q_norm, k_norm, 1e-6)
        return tpu_quantized_projection(x, weight, layer, None, heads, rotations, epsilon)

    name, arguments = f"int8 projection {name}, heads of {heads.head_dim}", (x, weight, layer, table, table, norm, norm)
    return Program(name, project, arguments, kernel="quantized_projection", report=size.report)
