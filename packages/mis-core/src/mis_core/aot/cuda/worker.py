"""Compiles steps for GPUs: `python -m mis_core.aot.cuda.worker JSON`, one JSON object a line."""

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

from mis_core.aot.programs import compile_step
from mis_core.models.parallel import DATA, TENSOR
from mis_core.models.published import PUBLISHED
from mis_core.runner.buckets import empty_decode_step, full_step, step_shape
from mis_core.scheduler.plan import longest_item
from mis_kernels.aot.cuda.launches import read_launches, read_layer
from mis_kernels.aot.cuda.targets import TARGETS, device
from mis_kernels.backends import choose
from mis_kernels.target import compiling_for

TOKENS, ITEM, PAGES, DTYPE = 2048, 20, 2048, "bfloat16"
MODELS = ("qwen3-1.7b", "qwen2.5-0.5b", "qwen2.5-1.5b", "llama-3.2-1b", "smollm2-135m")


class ModelStep(NamedTuple):
    """A step of a model.

    Attributes:
        model: A name in `PUBLISHED`.
        room: For people: what it has room for.
        contexts: Most contexts.
        context_pages: Pages of the longest.
        decodes: Whether it is a step of single tokens.
    """

    model: str
    room: str
    contexts: int
    context_pages: int
    decodes: bool = False

    @property
    def name(self) -> str:
        """What launches must not depend on is behind the comma."""
        return f"{self.model} {'decoding' if self.decodes else f'{TOKENS} tokens'}, {self.room}"


def steps_of(model: str) -> list[ModelStep]:
    """Return a model's steps: of segments and of single tokens, the former with room for little and for much."""
    return [
        ModelStep(model, "256 contexts", 256, 128),
        ModelStep(model, "1 short context", 1, 32),
        ModelStep(model, "64 contexts", 64, 128, decodes=True),
    ]


def jobs(quick: bool) -> Iterator[tuple[str, ModelStep]]:
    """Yield what is compiled: a chip and a step."""
    for chip in ["h100"] if quick else TARGETS:
        yield from ((chip, step) for step in steps_of("qwen3-0.6b"))
    if not quick:
        yield from (("h100", step) for model in MODELS for step in steps_of(model))


def compiled(chip: str, step: ModelStep, attention: str | None) -> dict[str, Any]:
    """Compile one step; return what is reported of it."""
    config, begin = PUBLISHED[step.model], time.perf_counter()
    mesh = Mesh(np.array(device(chip)).reshape(1, 1), (DATA, TENSOR))
    with compiling_for(chip):
        backend = choose(config.attention, DTYPE, attention)
        shape = step_shape(
            backend, TOKENS, pages_per_context=step.context_pages, shards=1, longest_item=longest_item(TOKENS)
        )
        shape = dataclasses.replace(shape, contexts=step.contexts)
        plan = empty_decode_step(shape) if step.decodes else full_step(shape, 2000, ITEM)
        program = compile_step(config, mesh, plan, shape, dtype=DTYPE, pages=PAGES, backend=backend)
    memory, text = program.memory_analysis(), program.as_text()
    assert memory is not None, "XLA reports memory"
    assert text is not None, "XLA writes its program"
    layer = read_layer(text)
    return {
        "target": chip,
        "name": step.name if attention is None else f"{step.name}, {attention}",
        "seconds": time.perf_counter() - begin,
        "launches": layer.known,
        "loops": layer.loops,
        "in_all": read_launches(text).known,
        "temporaries": memory.temp_size_in_bytes,
    }


def main(job: str) -> None:
    """Compile every step of a job: `quick`, and `attention`, the name of a backend or null."""
    described = json.loads(job)
    for chip, step in jobs(described["quick"]):
        sys.stdout.write(json.dumps(compiled(chip, step, described["attention"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
