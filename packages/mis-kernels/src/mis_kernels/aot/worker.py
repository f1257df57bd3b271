"""Compiles for one target in a process of its own: `python -m mis_kernels.aot.worker JOB.json`.

The compiler reads its target and flags once per process, so every target and every way of dumping
needs another process. The result goes to standard output as one JSON object.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mis_kernels.aot.programs import Program, extend_step, glue_program, kernel_program, layers_program, prefill_step
from mis_kernels.aot.schedules import read_schedule, tile_bodies
from mis_kernels.aot.sharded import sharded_kernel_program
from mis_kernels.aot.targets import TARGETS, Target, mesh
from mis_kernels.backends.tpu.tiles import block_sizes, vmem_bytes
from mis_kernels.heads import HEAD_SHAPES, HeadShape

STEP_TOKENS = 2048
GROWTH_TOKENS = (2048, 8192, 32768)
GROWTH_HEADS = HEAD_SHAPES["qwen3-0.6b"]


def _compile(program: Program, on: Mesh) -> tuple[Any, float]:
    begin = time.perf_counter()
    shardings = NamedSharding(on, PartitionSpec())
    jitted = jax.jit(program.function, in_shardings=shardings, donate_argnums=program.donated)
    return jitted.lower(*program.arguments).compile(), time.perf_counter() - begin


def _memory(compiled: Any) -> dict[str, int]:
    found = compiled.memory_analysis()
    return {"arguments": found.argument_size_in_bytes, "temporaries": found.temp_size_in_bytes}


def kernels(target: Target, shapes: list[HeadShape], dtypes: list[str], dump: Path) -> list[dict[str, Any]]:
    """Compile the kernel alone for each head shape; report its schedule and its memory."""
    rows = []
    for heads in shapes:
        for dtype in dtypes:
            blocks = block_sizes(chip=target.chip, **heads._asdict(), dtype=dtype)
            program = kernel_program(heads, blocks, extend_step(STEP_TOKENS, blocks), dtype)
            compiled, seconds = _compile(program, mesh(target, 1))
            vmem = vmem_bytes(
                blocks, group=heads.group, head_dim=heads.head_dim, itemsize=jax.numpy.dtype(dtype).itemsize
            )
            bundles = tile_bodies(read_schedule(dump, "segment_attention"))
            rows.append(
                {"name": program.name, "bundles": bundles, "vmem": vmem, "seconds": seconds, **_memory(compiled)}
            )
    return rows


def glue(target: Target, shapes: list[HeadShape], dump: Path, embed: int | None) -> list[dict[str, Any]]:
    """Compile the norm and RoPE kernel for each head shape; report its longest straight run, one grid step.

    With `embed`, compile it behind norm and projection, and report the cycles that XLA estimates for these.
    """
    rows = []
    for heads in shapes:
        program = glue_program(heads, STEP_TOKENS, embed=embed)
        compiled, seconds = _compile(program, mesh(target, 1))
        bundles = {"step": max(read_schedule(dump, "norm_rope").runs)}
        estimated = sum(int(n) for n in re.findall(r'"estimated_cycles":"(\d+)"', compiled.as_text()))
        row = {"name": program.name, "bundles": bundles, "seconds": seconds, **_memory(compiled)}
        rows.append(row | ({"xla_cycles": estimated, "tokens": STEP_TOKENS} if embed else {}))
    return rows


def layers(target: Target, shapes: list[HeadShape]) -> list[dict[str, Any]]:
    """Compile the op inside scanned layers for each head shape."""
    rows = []
    for heads in shapes:
        blocks = block_sizes(chip=target.chip, **heads._asdict())
        program = layers_program(heads, extend_step(STEP_TOKENS, blocks))
        compiled, seconds = _compile(program, mesh(target, 1))
        rows.append({"name": program.name, "seconds": seconds, **_memory(compiled)})
    return rows


def growth(target: Target) -> list[dict[str, Any]]:
    """Compile growing steps: memory must grow with the tokens, never with their square."""
    rows = []
    blocks = block_sizes(chip=target.chip, **GROWTH_HEADS._asdict())
    for tokens in GROWTH_TOKENS:
        for kind, segments in (("extend", extend_step(tokens, blocks)), ("prefill", prefill_step(tokens, blocks))):
            program = layers_program(GROWTH_HEADS, segments)
            compiled, seconds = _compile(program, mesh(target, 1))
            rows.append(
                {"name": f"growth {kind} {tokens} tokens", "tokens": tokens, "seconds": seconds, **_memory(compiled)}
            )
    return rows


def sharded(target: Target, models: list[str]) -> list[dict[str, Any]]:
    """Compile the kernel under `shard_map` over all devices of the topology."""
    rows, on = [], mesh(target)
    for model in models:
        program, shardings = sharded_kernel_program(HEAD_SHAPES[model], target.chip, on, STEP_TOKENS)
        begin = time.perf_counter()
        compiled = jax.jit(program.function, in_shardings=shardings).lower(*program.arguments).compile()
        rows.append({"name": f"{model} {program.name}", "seconds": time.perf_counter() - begin, **_memory(compiled)})
    return rows


def main(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one job: `target`, `what`, and that function's arguments."""
    target = TARGETS[job["target"]]
    shapes = [HeadShape(*heads) for heads in job.get("heads", [])]
    match job["what"]:
        case "kernels":
            return kernels(target, shapes, job["dtypes"], Path(job["dump"]))
        case "glue":
            return glue(target, shapes, Path(job["dump"]), job.get("embed"))
        case "layers":
            return layers(target, shapes)
        case "growth":
            return growth(target)
        case "sharded":
            return sharded(target, job["models"])
    raise ValueError(f"what: {job['what']!r} is unknown")


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
