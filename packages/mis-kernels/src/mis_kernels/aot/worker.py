"""Compiles for one target in a process of its own: `python -m mis_kernels.aot.worker JOB.json`.

The compiler reads its target and flags once per process, so every target and every way of dumping
needs another process. The result goes to standard output as one JSON object.
"""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mis_kernels.aot.calibration import PUBLISHED, estimate
from mis_kernels.aot.programs import (
    PRODUCT_ROWS,
    ProductSize,
    Program,
    extend_step,
    glue_program,
    head_program,
    kernel_program,
    layers_program,
    prefill_step,
    product_program,
    sharded_program,
)
from mis_kernels.aot.schedules import read_attention, read_bodies, read_grid, read_loop, read_schedule
from mis_kernels.aot.targets import TARGETS, Topology, mesh
from mis_kernels.backends.tpu.projection import strips_of, strips_together
from mis_kernels.backends.tpu.tiles import block_sizes, vmem_bytes
from mis_kernels.heads import HEAD_SHAPES, HeadShape

STEP_TOKENS = 2048
GROWTH_TOKENS = (2048, 8192, 32768)
GROWTH_HEADS = HEAD_SHAPES["qwen3-0.6b"]


def _compile(program: Program, on: Mesh) -> dict[str, Any]:
    """Compile; return what is reported of every program."""
    begin = time.perf_counter()
    shardings = program.shardings or NamedSharding(on, PartitionSpec())
    jitted = jax.jit(program.function, in_shardings=shardings, donate_argnums=program.donated)
    compiled: Any = jitted.lower(*program.arguments).compile()
    memory = compiled.memory_analysis()
    sizes = {"arguments": memory.argument_size_in_bytes, "temporaries": memory.temp_size_in_bytes}
    return {"name": program.name, "seconds": time.perf_counter() - begin, **sizes}


def kernels(target: Topology, shapes: list[HeadShape], dump: Path) -> list[dict[str, Any]]:
    """Compile the kernel alone for each head shape; report its schedule and its memory."""
    rows = []
    for heads in shapes:
        blocks = block_sizes(chip=target.chip, **heads._asdict())
        row = _compile(kernel_program(heads, blocks, extend_step(STEP_TOKENS, blocks)), mesh(target, 1))
        vmem = vmem_bytes(blocks, group=heads.group, head_dim=heads.head_dim, itemsize=2)
        schedule = read_attention(read_schedule(dump, "segment_attention", target.chip))
        around = {"tile": schedule.tile.most, "page": schedule.page, "block": schedule.block.most}
        rows.append(row | {"bundles": schedule.tiles | around, "schedule": schedule._asdict(), "vmem": vmem})
    return rows


def glue(target: Topology, shapes: list[HeadShape], dump: Path) -> list[dict[str, Any]]:
    """Compile the norm and RoPE kernel for each head shape; report its longest straight run, one grid step."""
    rows = []
    for heads in shapes:
        row = _compile(glue_program(heads, STEP_TOKENS), mesh(target, 1))
        row["bundles"] = {"step": max(run.bundles for run in read_schedule(dump, "norm_rope", target.chip))}
        rows.append(row)
    return rows


def layers(target: Topology, shapes: list[HeadShape]) -> list[dict[str, Any]]:
    """Compile the op inside scanned layers for each head shape."""
    steps = {heads: extend_step(STEP_TOKENS, block_sizes(chip=target.chip, **heads._asdict())) for heads in shapes}
    return [_compile(layers_program(heads, step), mesh(target, 1)) for heads, step in steps.items()]


def growth(target: Topology) -> list[dict[str, Any]]:
    """Compile growing steps: memory must grow with the tokens, never with their square."""
    rows = []
    blocks = block_sizes(chip=target.chip, **GROWTH_HEADS._asdict())
    for tokens in GROWTH_TOKENS:
        for kind, segments in (("extend", extend_step(tokens, blocks)), ("prefill", prefill_step(tokens, blocks))):
            row = _compile(layers_program(GROWTH_HEADS, segments), mesh(target, 1))
            rows.append(row | {"name": f"growth {kind} {tokens} tokens", "tokens": tokens})
    return rows


def sharded(target: Topology, models: list[str]) -> list[dict[str, Any]]:
    """Compile the kernel under `shard_map` over all devices of the topology."""
    on = mesh(target)
    programs = {model: sharded_program(HEAD_SHAPES[model], target.chip, on, STEP_TOKENS) for model in models}
    return [_compile(each, on) | {"name": f"{model} {each.name}"} for model, each in programs.items()]


def head(target: Topology, sizes: list[tuple[int, int, int]], dump: Path) -> list[dict[str, Any]]:
    """Compile the log-sum-exp for rows, width and vocabulary; report a grid step's schedule."""
    rows = []
    for size in sizes:
        row = _compile(head_program(*size), mesh(target, 1))
        # A step is one of the vocabulary's blocks: the last has a body of its own.
        step = read_grid(read_schedule(dump, "log_sum_exp", target.chip), bodies=2)
        rows.append(row | {"bundles": {"step": step.body}, "schedule": step._asdict()})
    return rows


def products(target: Topology, sizes: list[ProductSize], dump: Path) -> list[dict[str, Any]]:
    """Compile products with quantised weights; report the schedules of steps that quantise rows, and of the others."""
    rows = []
    for size in sizes:
        row = _compile(product_program(size), mesh(target, 1))
        runs, cut = read_schedule(dump, size.kernel, target.chip), size.grid_sizes(PRODUCT_ROWS)
        if size.heads:
            strips = strips_of(cut, size.heads)
            bodies = read_loop(runs, strips // strips_together(strips))
        else:
            bodies = read_bodies(runs, min(cut.grid(PRODUCT_ROWS, size.columns)[1], 2))
        bundles = dict(zip(("first", "others"), (each.body for each in bodies), strict=False))
        rows.append(row | {"bundles": bundles, "schedules": [each._asdict() for each in bodies]})
    return rows


def calibration(target: Topology, number: int, dump: Path) -> list[dict[str, Any]]:
    """Price a program whose time is published."""
    return [{"estimate": dataclasses.astuple(estimate(PUBLISHED[number], target, dump))}]


def main(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one job: `target`, `what`, and that function's arguments."""
    target = TARGETS[job["target"]]
    shapes = [HeadShape(*heads) for heads in job.get("heads", [])]
    match job["what"]:
        case "kernels":
            return kernels(target, shapes, Path(job["dump"]))
        case "glue":
            return glue(target, shapes, Path(job["dump"]))
        case "head":
            return head(target, [tuple(size) for size in job["sizes"]], Path(job["dump"]))
        case "products":
            return products(target, [ProductSize.read(size) for size in job["sizes"]], Path(job["dump"]))
        case "layers":
            return layers(target, shapes)
        case "growth":
            return growth(target)
        case "sharded":
            return sharded(target, job["models"])
        case "calibration":
            return calibration(target, job["number"], Path(job["dump"]))
    raise ValueError(f"what: {job['what']!r} is unknown")


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
