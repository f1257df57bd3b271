"""Compiles steps for one topology: `python -m mis_core.aot.worker JSON`, started by `mis_core.aot`."""

import json
import sys
import time
from functools import partial

import jax.numpy as jnp

from mis_core.aot.programs import cache_pages, cache_slots, compile_step, compile_vocabulary_reads, topology_mesh
from mis_core.aot.roofline import weight_bytes
from mis_core.models.parallel import backend_for, spread_heads
from mis_core.models.published import PUBLISHED
from mis_core.runner.buckets import empty_decode_step, full_step, step_shape
from mis_core.scheduler.plan import PAGE_SIZE, longest_item
from mis_kernels.aot.targets import TARGETS
from mis_kernels.target import compiling_for

TOKENS, CONTEXT, ITEM, CONTEXT_PAGES = 2048, 2000, 20, 128


def compile_one(
    topology: str, model: str, data: int, tensor: int, *, decodes: bool = False, is_mixed: bool = False
) -> str:
    """Compile one step, of segments, of short contexts or of single tokens; return a line about it.

    Raises:
        RuntimeError: XLA makes room for another copy of the weights, which it would fill in every step.
    """
    target = TARGETS[topology]
    on, config = topology_mesh(target, data, tensor), PUBLISHED[model]
    began = time.perf_counter()
    with compiling_for(target.chip):
        spread = spread_heads(config, tensor)
        backend = backend_for(spread, jnp.dtype("bfloat16"), on)
        shape = step_shape(
            backend, TOKENS, pages_per_context=CONTEXT_PAGES, shards=data, longest_item=longest_item(TOKENS)
        )
        pages, slots = cache_pages(config, target.chip, backend, tensor), cache_slots(config, target.chip, tensor)
        room = shape.room(is_mixed)
        context = min(CONTEXT, room.pages_per_context * PAGE_SIZE)
        plan = empty_decode_step(shape) if decodes else full_step(room, context, ITEM, is_mixed=is_mixed)
        compiled = compile_step(config, on, plan, room, pages=pages, slots=slots)
    memory = compiled.memory_analysis()
    assert memory is not None, "the TPU compiler reports memory"
    line = (
        f"{topology:8} {model:14} dp {data} tp {tensor}  {time.perf_counter() - began:5.1f} s  per chip: "
        f"arguments {memory.argument_size_in_bytes / 2**20:.0f} MiB, "
        f"temporaries {memory.temp_size_in_bytes / 2**20:.0f} MiB, {pages * PAGE_SIZE:,} tokens in the cache"
        f"{f', {slots} states' if slots else ''}"
        f"{', decoding' if decodes else ''}{', mixed' if is_mixed else ''}"
    )
    if tensor == 1 and memory.temp_size_in_bytes > weight_bytes(config) / 2:
        raise RuntimeError(f"{line}: another copy of the weights?")
    return line


def compile_reads(topology: str, model: str, data: int, tensor: int) -> str:
    """Compile what reads the whole vocabulary at rows of a step; return a line about it."""
    target, began = TARGETS[topology], time.perf_counter()
    with compiling_for(target.chip):
        compile_vocabulary_reads(PUBLISHED[model], topology_mesh(target, data, tensor))
    return (
        f"{topology:8} {model:14} dp {data} tp {tensor}  {time.perf_counter() - began:5.1f} s  top tokens, next tokens"
    )


def main(job: str) -> None:
    """Compile every step of a job, of both kinds, and for some also what reads the vocabulary and what decodes."""
    described = json.loads(job)
    topology, steps = described["topology"], described["steps"]
    jobs = [partial(compile_one, topology, *step, is_mixed=is_mixed) for step in steps for is_mixed in (False, True)]
    for step in described["decoding"]:
        jobs += [partial(compile_reads, topology, *step), partial(compile_one, topology, *step, decodes=True)]
    for compiling in jobs:
        sys.stdout.write(compiling() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
