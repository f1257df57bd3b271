"""The method held against kernels that others have timed: `python -m mis_kernels.aot calibrate`.

Programs whose times on TPUs are published are compiled here and priced as the engine's are: XLA's products by the
compiler's cycles, Pallas kernels by their schedules and bytes. The ratios of estimate to published time are the
estimate's error. Two assumptions are themselves read off such figures: the rate of HBM, and the latency of a copy.
"""

import re
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import megablox
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from mis_kernels.aot.chips import CHIPS
from mis_kernels.aot.price import HBM, LATENCY, price_grid_step
from mis_kernels.aot.programs import Program, Row
from mis_kernels.aot.ranges import Range
from mis_kernels.aot.schedules import BundleRun, read_grid
from mis_kernels.aot.targets import Topology

VMEM_FLAG = "--xla_tpu_scoped_vmem_limit_kib=65536"
_CYCLES = re.compile(r'"estimated_cycles":"(\d{1,15})"')
_DOCS = "JAX's guides to Pallas on TPUs, docs/pallas/tpu/{}.ipynb (2024)"
_RECIPES = "AI-Hypercomputer/tpu-recipes, microbenchmarks{} ({})"
_ARENA = "SachinKonan/SkyRLTpu, commit {} (2026-08, jax 0.10.2)"


class Grid(NamedTuple):
    """A Pallas kernel: what its time is made of.

    Attributes:
        name: As in the compiler's dump.
        steps: Grid steps that compute.
        idle: Grid steps that are skipped.
        bytes: What is copied from HBM for a step.
        bodies: Branches of which each step takes one.
    """

    name: str
    steps: int
    bytes: int
    idle: int = 0
    bodies: int = 1


class Published(NamedTuple):
    """A published time of a program.

    Attributes:
        what: The program and its shapes.
        target: A name in `TARGETS`.
        seconds: As published, without what the timer's host took.
        source: Where it is published.
        function: The program.
        shapes: Of its arguments, in bfloat16.
        grid: Of a Pallas kernel; None: XLA's own.
        flags: The compiler's, where they were changed.
    """

    what: str
    target: str
    seconds: float
    source: str
    function: Callable[..., Array]
    shapes: tuple[tuple[int, ...], ...]
    grid: Grid | None = None
    flags: str = ""


def _product(a: Array, b: Array) -> Array:
    return a @ b


def _square(target: str, size: int, seconds: float, source: str, flags: str = "") -> Published:
    what = f"product of {size} x {size} matrices, XLA"
    return Published(what, target, seconds, source, _product, ((size, size),) * 2, flags=flags)


def _tiled_product(a: Array, b: Array, rows: int = 512, depth: int = 1024, columns: int = 1024) -> Array:
    """Multiply tile by tile, the sum of a tile's parts in float32."""
    last = a.shape[1] // depth - 1

    def step(a: Any, b: Any, out: Any, total: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == last)
        def _() -> None:
            out[...] = total[...].astype(out.dtype)

    return pl.pallas_call(
        step,
        grid=(len(a) // rows, b.shape[1] // columns, last + 1),
        in_specs=[
            pl.BlockSpec((rows, depth), lambda i, _, k: (i, k)),
            pl.BlockSpec((depth, columns), lambda _, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda i, j, _: (i, j)),
        scratch_shapes=[pltpu.VMEM((rows, columns), jnp.float32)],
        out_shape=jax.ShapeDtypeStruct((len(a), b.shape[1]), a.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        name="tiled_product",
    )(a, b)


def _megablox_product(a: Array, b: Array) -> Array:
    sizes = jnp.full(len(b), len(a) // len(b), jnp.int32)
    return megablox.gmm(a, b, sizes, preferred_element_type=jnp.float32, tiling=(1024, 1024, 1024))


def _causal_attention(q: Array, k: Array, v: Array) -> Array:
    heads, length = q.shape[:2]
    mask = masks.MultiHeadMask([masks.CausalMask((length, length)) for _ in range(heads)])
    sizes = splash.BlockSizes(block_q=1024, block_kv=1024, block_kv_compute=1024)
    found = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1, block_sizes=sizes)(q, k, v)
    assert isinstance(found, Array), "no sums of weights were asked for"
    return found


def _splash(heads: int, length: int, seconds: float) -> Published:
    blocks = length // 1024
    active = heads * blocks * (blocks + 1) // 2
    grid = Grid("splash_mha", active, 2 * 2 * 1024 * 128, idle=heads * blocks * blocks - active)
    what = f"splash attention, causal, {heads} heads of 128, {length} tokens, blocks of 1024 x 1024"
    return Published(
        what, "v6e:1x1", seconds, _ARENA.format("95567ad"), _causal_attention, ((heads, length, 128),) * 3, grid
    )


# Times by a host's clock are less by what a launch takes there: 0.1 ms on v5e, where products of 1024 x 1024 take 0.12,
# and 0.13 ms on v6e, the difference of both clocks in tpu-recipes.
_HOST = {"v5e": 0.10e-3, "v6e": 0.13e-3}
_GUIDE = Grid("tiled_product", 16 * 8 * 8, 2 * (512 + 1024) * 1024)
_IRONWOOD = _RECIPES.format("/ironwood, flags for VMEM", "2026-05")
PUBLISHED = (
    _square("v5e", 8192, 6.047e-3 - _HOST["v5e"], _DOCS.format("matmul")),
    _square("v5e", 16384, 46.953e-3 - _HOST["v5e"], _DOCS.format("sparse")),
    _square("v6e:1x1", 8192, 1.32876e-3, _RECIPES.format("", "2025-04"), VMEM_FLAG),
    _square("v7x", 4096, 2 * 4096**3 / 892.94e12, _IRONWOOD, VMEM_FLAG),
    _square("v7x", 16384, 2 * 16384**3 / 950.13e12, _IRONWOOD, VMEM_FLAG),
    Published(
        "product of 8192 x 8192 matrices, Pallas, tiles of 512 x 1024 x 1024", "v5e", 6.0994e-3 - _HOST["v5e"],
        _DOCS.format("matmul"), _tiled_product, ((8192, 8192),) * 2, _GUIDE,
    ),
    Published(
        "grouped product, megablox, 8 groups of 1024 x 14336 x 4096, tiles of 1024", "v6e:1x1", 1.75e-3 - _HOST["v6e"],
        _ARENA.format("aa07394"), _megablox_product, ((8192, 14336), (8, 14336, 4096)),
        Grid("gmm", 8 * 14 * 4, 2 * 2 * 1024 * 1024, bodies=2),
    ),
    _splash(2, 16384, 0.81e-3 - _HOST["v6e"]),
    _splash(4, 8192, 0.50e-3 - _HOST["v6e"]),
)  # fmt: skip


def published_program(target: Topology, published: Published) -> Program:
    """Return a program whose time is published; its estimate is reported."""
    grid, chip, hz = published.grid, CHIPS[target.chip], target.clock_ghz * 1e9

    def report(compiled: Any, runs: list[BundleRun]) -> Row:
        if grid is None:
            return {"estimate": Range.of(sum(map(int, _CYCLES.findall(compiled.as_text()))) / hz)}
        schedule = read_grid(runs, grid.bodies)
        idle = Range.of(schedule.around.least * grid.idle / hz)
        return {"estimate": price_grid_step(schedule, grid.bytes, chip, hz) * grid.steps + idle}

    shapes = tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in published.shapes)
    return Program(published.what, published.function, shapes, kernel=grid.name if grid else None, report=report)


def table(estimates: list[Range]) -> str:
    """Return a line of each published time beside its estimate, and what the ratios say."""
    lines, ratios = [], []
    for published, estimated in zip(PUBLISHED, estimates, strict=True):
        ratio = estimated.expected / published.seconds
        ratios.append(ratio)
        lines.append(
            f"{published.target:8} {published.what:82} {published.seconds * 1e3:8.3f} ms published, "
            f"{estimated.expected * 1e3:8.3f} ({estimated.best * 1e3:.3f} to {estimated.worst * 1e3:.3f}) estimated: "
            f"{ratio:.2f}  {published.source}"
        )
    summary = (
        f"median ratio {median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}, of {len(ratios)} published times"
    )
    assumed = f"assumed: HBM {HBM}, latency of a copy {LATENCY} s"
    return "\n".join((*lines, summary, assumed))
