"""Command line: `python -m mis_kernels.aot [compile] [--topology ...] [--quick]`, `... calibrate`."""

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from mis_kernels.aot import baseline
from mis_kernels.aot.calibration import PUBLISHED, published_program, table
from mis_kernels.aot.programs import (
    GROWTH,
    AttentionSize,
    HeadSize,
    ProductSize,
    Row,
    glue_program,
    growth_program,
    head_program,
    kernel_program,
    layers_program,
    mixed_kernel_program,
    product_program,
    sharded_program,
)
from mis_kernels.aot.recurrence import RECURRENT_SIZES, recurrence_program
from mis_kernels.aot.targets import SINGLE_CHIP, TARGETS
from mis_kernels.aot.worker import AT_ONCE, run_job
from mis_kernels.backends.tpu.projection import is_faster
from mis_kernels.heads import HEAD_SHAPES, TENSOR_PARALLEL, HeadShape, device_head_shapes

BASELINE = Path(__file__).parent.parent / "aot_baseline.json"
QUICK_HEADS = [HEAD_SHAPES["qwen3-0.6b"], HEAD_SHAPES["qwen2.5-0.5b"].on_device(8)]

QUICK_SLIDING = [
    AttentionSize(HeadShape(4, 1, 256), 512)
]  # Gemma 3 1B's; behind it Gemma 3 4B's and 12B's, Ministral 8B's
SLIDING = [
    *QUICK_SLIDING,
    AttentionSize(HeadShape(8, 4, 256), 1024),
    AttentionSize(HeadShape(16, 8, 256), 1024),
    AttentionSize(HEAD_SHAPES["ministral-8b"], 1024),
]

CAPPED = [  # Gemma 2 2B's layers
    AttentionSize(HeadShape(8, 4, 256), cap=50.0),
    AttentionSize(HeadShape(8, 4, 256), 4096, cap=50.0),
]

QUICK_SIZES = [HeadSize(256, 1024, 151_936)]  # of Qwen3-0.6B
SIZES = [
    *QUICK_SIZES,
    HeadSize(256, 4096, 151_936),
    HeadSize(256, 2048, 128_256),
    HeadSize(256, 2304, 256_000, cap=30.0),  # of Gemma 2 2B
]

# Products in int8 of Qwen3-0.6B; in full, all of a layer's, and those of Qwen3-4B and 8B that are the largest.
QUICK_PRODUCTS = [ProductSize(1024, 3072, 2, normed=True, residual=False)]
PRODUCTS = [
    *QUICK_PRODUCTS,
    ProductSize(1024, 4096, 1, normed=True, residual=False),
    ProductSize(1024, 4096, 1, normed=True, residual=False, heads=HEAD_SHAPES["qwen3-0.6b"]),
    ProductSize(4096, 6144, 1, normed=True, residual=False, heads=HEAD_SHAPES["qwen3-8b"]),
    ProductSize(2048, 1024, 1, normed=False, residual=True),
    ProductSize(3072, 1024, 1, normed=False, residual=True),
    ProductSize(9728, 2560, 1, normed=False, residual=True),
    ProductSize(4096, 12_288, 2, normed=True, residual=False),
    ProductSize(2304, 9216, 2, normed=True, residual=False, gate="gelu_tanh"),  # of Gemma 2 2B
]


def jobs(name: str, quick: bool) -> list[Callable[[], list[Row]]]:
    """Return what compiles programs for a target, in a process each."""
    if name not in SINGLE_CHIP:
        divided = [model for model, shape in HEAD_SHAPES.items() if all(map(shape.divides, TENSOR_PARALLEL))]
        models = ["qwen3-0.6b", "qwen2.5-1.5b"] if quick else divided
        return [partial(run_job, name, sharded_program, models, dumps=False)]
    shapes = QUICK_HEADS if quick else device_head_shapes()
    products, chip = QUICK_PRODUCTS if quick else PRODUCTS, TARGETS[name].chip
    products = [each for each in products if each.heads is None or is_faster(each.heads, chip)]
    attention = [AttentionSize(heads) for heads in shapes] + (QUICK_SLIDING if quick else SLIDING + CAPPED)
    return [
        partial(run_job, name, kernel_program, attention),
        partial(run_job, name, mixed_kernel_program, attention[: len(shapes)] if quick else attention),
        partial(run_job, name, glue_program, shapes),
        partial(run_job, name, head_program, QUICK_SIZES if quick else SIZES),
        partial(run_job, name, product_program, products),
        partial(run_job, name, recurrence_program, RECURRENT_SIZES[:1] if quick else RECURRENT_SIZES),
        partial(run_job, name, layers_program, shapes, dumps=False),
        *([] if quick else [partial(run_job, name, growth_program, GROWTH, dumps=False)]),
    ]


def compile_all(names: list[str], quick: bool, update: bool) -> int:
    """Compile, print a table, compare with the baseline; return the exit status."""
    results: dict[str, list[Row]] = {}
    problems = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        submitted = [(target, pool.submit(job)) for target in names for job in jobs(target, quick)]
        for name, done in submitted:
            try:
                rows = done.result()
            except RuntimeError as error:
                problems.append(str(error))
                continue
            results.setdefault(name, []).extend(rows)
            for row in rows:
                print(_line(name, row), flush=True)
            problems += [f"{name}: {what}" for what in baseline.superlinear(rows)]
    return baseline.judge(BASELINE, results, problems, update=update)


def _line(name: str, row: Row) -> str:
    bundles = ", ".join(f"{kind} {n}" for kind, n in row.get("bundles", {}).items())
    vmem = f", VMEM {row['vmem'] / 2**20:.1f} MiB" if "vmem" in row else ""
    memory = f"arguments {row['arguments'] / 2**20:.1f} MiB, temporaries {row['temporaries'] / 2**20:.1f} MiB{vmem}"
    return f"{name:8} {row['name']:48} {row['seconds']:5.1f} s  {memory}" + (f", bundles: {bundles}" if bundles else "")


def print_calibration() -> int:
    """Compile the programs whose times are published and print both."""
    found = (run_job(each.target, published_program, [each], flags=f" {each.flags}") for each in PUBLISHED)
    print(table([row["estimate"] for (row,) in found]))
    return 0


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m mis_kernels.aot", description="Compile for TPUs without a TPU.")
    parser.add_argument("command", nargs="?", choices=("compile", "calibrate"), default="compile")
    parser.add_argument("--topology", choices=sorted(TARGETS), action="append", help="default: all; repeat for several")
    parser.add_argument("--quick", action="store_true", help="two head shapes per chip, a few minutes in all")
    parser.add_argument("--update-baseline", action="store_true", help="store the figures instead of comparing")
    arguments = parser.parse_args()
    if arguments.command == "calibrate":
        return print_calibration()
    return compile_all(arguments.topology or list(TARGETS), arguments.quick, arguments.update_baseline)


if __name__ == "__main__":
    sys.exit(main())
