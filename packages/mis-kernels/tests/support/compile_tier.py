"""Run as a program whose TPU compiler looks for v6e: compiles, bounds checked, what tests marked `tpu` run.

python compile_tier.py FOLDER_OF_TESTS
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import jax
from jax import Array
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from mis_kernels import segment_attention, write_pages
from mis_kernels.activations import Gate
from mis_kernels.aot.targets import TARGETS, mesh
from mis_kernels.backends.tpu.head import tpu_log_sum_exp
from mis_kernels.backends.tpu.norm_rope import tpu_norm_rope
from mis_kernels.backends.tpu.products import tpu_quantized_product
from mis_kernels.backends.tpu.projection import tpu_quantized_projection
from mis_kernels.heads import HeadShape
from mis_kernels.quantized import QuantizedWeight
from mis_kernels.target import compiling_for
from mis_kernels.weights import HeadRotations

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def programs() -> Iterator[Program]:
    """Yield functions and their arguments."""
    import test_guard
    import test_log_sum_exp
    import test_norm_rope
    import test_pages
    import test_pallas_tpu
    import test_tiles
    import test_tpu_products
    import test_tpu_projection
    import test_tpu_recurrence

    from tpu_cases import arrays, backend_of, lay_out_case

    cases = [test_tiles.case(*test_tiles.items(0, 300, 40)), *test_pallas_tpu.CASES]
    for case in cases:
        segments, pages = lay_out_case(case)
        attend = partial(segment_attention, scale=0.1, backend=backend_of(segments))
        yield attend, (*arrays(case, pages, segments), segments)
    for dtype in ("float32", "bfloat16"):
        inputs, segments = test_guard.step(*test_guard.items(0, 300, 40), dtype=dtype)
        for cap in (None, test_guard.CAP):
            yield partial(segment_attention, scale=1.0, cap=cap, backend=backend_of(segments)), (*inputs, segments)
        for vocab in (257, 9000):
            yield tpu_log_sum_exp, test_log_sum_exp.arguments(vocab, dtype)
        yield partial(tpu_log_sum_exp, cap=test_log_sum_exp.CAP), test_log_sum_exp.arguments(257, dtype)

    def multiply(x: Array, weight: QuantizedWeight, *residual: Array, gate: Gate = "silu") -> Array:
        return tpu_quantized_product(x, weight, test_tpu_products.LAYER, *residual, epsilon=1e-6, gate=gate)

    for depth, columns in ((256, 640), (128, 128)):
        x, residual = (test_tpu_products.rows_of(128, width) for width in (depth, columns))
        yield multiply, (x, test_tpu_products.stack(depth, columns), residual)
        for gate in get_args(Gate):
            yield partial(multiply, gate=gate), (x, test_tpu_products.stack(depth, columns, pair=True))

    heads = HeadShape(3, 3, 128)

    def project(x: Array, weight: QuantizedWeight, *turns: Array) -> tuple[Array, Array, Array]:
        layer = test_tpu_projection.LAYER
        return tpu_quantized_projection(x, weight, layer, None, heads, HeadRotations(*turns, 1e-6), 1e-6)

    turns = test_tpu_projection.turns_of(96, heads)[:-1]
    yield project, (test_tpu_projection.rows_of(96), test_tpu_projection.stack(heads), *turns)

    for shape in (test_tpu_recurrence.SHAPE, *test_tpu_recurrence.SHAPES):
        yield test_tpu_recurrence.program(shape)

    def write(pages: Array, new: Array, writes: Array) -> Array:
        segments = dataclasses.replace(test_pages.step(test_pages.TPU), page_writes=writes)
        return write_pages(pages, new, segments, test_pages.TPU)

    for head_dim in test_pages.WIDTHS:
        yield write, test_pages.arrays(head_dim, "bfloat16")
    for layout in test_norm_rope.LAYOUTS:
        given = test_norm_rope.arguments(*layout, "bfloat16", True)
        yield lambda *a: tpu_norm_rope(*a, 1e-6), given[:-1]


def main(tests: Path) -> None:
    folders = (tests / name for name in ("support", "attention", "glue", "recurrence"))
    sys.path[:0] = [str(folder) for folder in (tests, *folders)]
    target = TARGETS["v6e:1x1"]
    on, count = NamedSharding(mesh(target, 1), P()), 0
    for function, arguments in programs():
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on), arguments)
        with compiling_for(target.chip, bounds_checks=True):
            jax.jit(function).lower(*shapes).compile()
        count += 1
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
