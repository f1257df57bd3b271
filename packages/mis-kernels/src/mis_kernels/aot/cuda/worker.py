"""Compiles attention for GPUs: `python -m mis_kernels.aot.cuda.worker quick|all`, one JSON object a line."""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from jax.sharding import SingleDeviceSharding

from mis_kernels.aot.cuda.launches import read_launches
from mis_kernels.aot.cuda.programs import CAPPED, GROWTH, STEPS, AttentionStep, compile_attention
from mis_kernels.aot.cuda.targets import TARGETS, device
from mis_kernels.heads import HEAD_SHAPES, HeadShape, device_head_shapes

QUICK_HEADS = [HEAD_SHAPES["qwen3-0.6b"], HEAD_SHAPES["qwen2.5-0.5b"].on_device(8)]
OTHER_HEADS = [HeadShape(8, 4, 256), HeadShape(6, 2, 96)]  # wide ones, and a width and a group that are padded


def jobs(quick: bool) -> Iterator[tuple[str, AttentionStep, HeadShape]]:
    """Yield what is compiled: a chip, a step and heads."""
    shapes = QUICK_HEADS if quick else [*device_head_shapes(), *OTHER_HEADS]
    for chip in TARGETS:
        yield from ((chip, step, heads) for heads in shapes for step in STEPS)
        yield from ((chip, step, QUICK_HEADS[0]) for step in GROWTH)
        yield from () if quick else [(chip, CAPPED, OTHER_HEADS[0])]


def compiled(chip: str, step: AttentionStep, heads: HeadShape) -> dict[str, Any]:
    """Compile one program; return what is reported of it."""
    begin = time.perf_counter()
    program = compile_attention(step, heads, chip, SingleDeviceSharding(device(chip)))
    memory, text = program.memory_analysis(), program.as_text()
    assert memory is not None, "XLA reports memory"
    assert text is not None, "XLA writes its program"
    launches = read_launches(text)
    return {
        "target": chip,
        "name": f"attention kv{heads.kv_heads} g{heads.group} d{heads.head_dim} bfloat16, {step.name}",
        "seconds": time.perf_counter() - begin,
        "launches": launches.known,
        "loops": launches.loops,
        "temporaries": memory.temp_size_in_bytes,
    }


if __name__ == "__main__":
    for job in jobs(sys.argv[1] == "quick"):
        sys.stdout.write(json.dumps(compiled(*job)) + "\n")
        sys.stdout.flush()
