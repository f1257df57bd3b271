"""Plans and compiles for one topology: `python -m mis_core.aot.steps < JOB`.

The compiler reads its target once, when it is loaded, so this has a process of its own. JOB and the answer, one
line of standard output, are JSON.
"""

import dataclasses
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from mis_core.aot.hlo import read_operations
from mis_core.aot.programs import compile_head, compile_step
from mis_core.aot.traffic import plan_requests
from mis_core.models.parallel import DATA, TENSOR, spread_heads
from mis_core.models.published import PUBLISHED
from mis_core.runner.buckets import PAIRS, normalised_rows, token_buckets
from mis_core.runner.layout import Layouts
from mis_core.scheduler.plan import PAGE_SIZE, StepPlan, StepShape
from mis_kernels.aot.targets import TARGETS, mesh
from mis_kernels.attention.tiling import KINDS, TpuTiles
from mis_kernels.target import compiling_for

_CONTEXTS = 8


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Plan the requests, compile the steps that they need, and describe both."""
    target, config = TARGETS[job["target"]], PUBLISHED[job["model"]]
    requests, data, tensor = job["requests"], job["dp"], job["tp"]
    devices = np.array(mesh(target).devices).reshape(-1)[: data * tensor]
    on = Mesh(devices.reshape(data, tensor), (DATA, TENSOR))
    spread, dtype = spread_heads(config, tensor), jnp.dtype("bfloat16")
    context_pages = -(-max(len(body["query"]) + max(map(len, body["items"])) for body in requests) // PAGE_SIZE) + 1
    with compiling_for(target.chip):
        shape = StepShape(
            tokens=job["step_tokens"],
            scored=max(256, job["step_tokens"] // 8),
            contexts=_CONTEXTS,
            pages_per_context=context_pages,
            alignment=Layouts.alignment(spread, dtype, on),
            shards=data,
        )
        pages = (len(requests) + 2) * context_pages
        plans = plan_requests(requests, shape, pages)
        layouts = Layouts.of_model(spread, dtype, on, shape)
        assert layouts.blocks is not None, "TPUs have block sizes"
        sizes = [next(size for size in token_buckets(shape.tokens) if size >= plan.rows) for plan in plans]
        programs = {}
        for size in sorted(set(sizes)):
            bucket = dataclasses.replace(shape, tokens=size)
            plan = plans[sizes.index(size)]
            programs[size] = _described(compile_step(config, on, plan, bucket, pages=pages))
        labels, normalise = compile_head(config, on, shape)
        steps = [_step(plan, size, layouts) for plan, size in zip(plans, sizes, strict=True)]
    heads = (spread.heads // tensor, spread.kv_heads // tensor, spread.head_dim)
    return {
        "steps": steps,
        "programs": programs,
        "labels": _described(labels),
        "normalise": _described(normalise),
        "heads": heads,
        "block_tokens": layouts.blocks.tokens,
    }


def _described(compiled: jax.stages.Compiled) -> dict[str, Any]:
    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None, "the TPU compiler reports memory"
    assert text is not None, "the TPU compiler writes its program"
    return {
        "operations": [dataclasses.asdict(operation) for operation in read_operations(text)],
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
    }


def _step(plan: StepPlan, size: int, layouts: Layouts) -> dict[str, Any]:
    """Describe a step: its size, and the work of its fullest device in tiles of attention."""
    segments = layouts.lay_out(plan, size, min(size, layouts.shape.scored))[3]
    assert isinstance(segments.tiles, TpuTiles)
    tiles = np.diff(np.asarray(segments.tiles.bounds)).reshape(len(plan.shards), -1, KINDS).sum(1)
    pairs = sum(reading.label_ids.size for reading in plan.readings)
    normalised = sum(len(reading.items) for reading in plan.readings if reading.normalise)
    return {
        "size": size,
        "new_tokens": plan.new_tokens,
        "rows": [shard.rows for shard in plan.shards],
        "tiles": tiles.tolist(),
        "writes_pages": bool(any(shard.paged.any() for shard in plan.shards)),
        "label_calls": -(-pairs // PAIRS),
        "normaliser_calls": -(-normalised // normalised_rows(len(plan.shards))),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.load(sys.stdin))) + "\n")
