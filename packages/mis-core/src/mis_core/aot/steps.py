"""Plans requests, compiles their steps and prices them, for one topology: `python -m mis_core.aot.steps < JOB`.

The compiler reads its target once, when it is loaded, so this has a process of its own; `mis_core.aot.estimate`
starts it. JOB and the answer, one line of standard output, are JSON.
"""

import dataclasses
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mis_core.aot.hlo import KERNEL, HloOperation, read_operations
from mis_core.aot.price import RECURRENCE, price_program
from mis_core.aot.programs import cache_pages, cache_slots, compile_head, compile_step, topology_mesh
from mis_core.aot.recurrence import price_recurrence
from mis_core.aot.repeats import Repeats
from mis_core.aot.traffic import plan_requests
from mis_core.models.config import ModelConfig
from mis_core.models.layers import attention_layers, windows_of
from mis_core.models.parallel import backend_for, spread_heads
from mis_core.models.published import PUBLISHED
from mis_core.runner.arrays import StepArrays, step_arrays
from mis_core.runner.buckets import PAIRS, step_shape, token_buckets
from mis_core.runner.memory import state_bytes
from mis_core.runner.read_plan import ReadPlan
from mis_core.scheduler.plan import PAGE_SIZE, StepPlan, StepShape, longest_item
from mis_kernels.aot.chips import CHIPS, Chip
from mis_kernels.aot.price import (
    LAUNCH,
    grid_schedule_of,
    price_attention,
    price_log_sum_exp,
    price_norm_rope,
    price_page_writes,
    price_product,
    schedule_of,
)
from mis_kernels.aot.programs import ProductSize
from mis_kernels.aot.ranges import Range, total
from mis_kernels.aot.targets import TARGETS, Topology
from mis_kernels.backends import Backend
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.tiles import TpuTiles, count_single_pages, count_tiles
from mis_kernels.segments import NOWHERE
from mis_kernels.target import compiling_for


class StepProgram(NamedTuple):
    """A compiled program: its operations, and the bytes of its arguments and temporaries on each device."""

    operations: list[HloOperation]
    memory_bytes: tuple[int, int]


def main(job: Mapping[str, Any]) -> dict[str, Any]:
    """Plan the requests, compile the steps that they need, and price them; return the fields of `StepTimes`."""
    target = TARGETS[job["target"]]
    with compiling_for(target.chip):  # sizes of tiles, blocks and calls depend on it, so all is done within
        return _priced(job, target)


def _priced(job: Mapping[str, Any], target: Topology) -> dict[str, Any]:
    config, data, tensor = PUBLISHED[job["model"]], job["dp"], job["tp"]
    on = topology_mesh(target, data, tensor)
    spread = spread_heads(config, tensor)
    backend = backend_for(spread, jnp.dtype("bfloat16"), on)
    slots = cache_slots(config, target.chip, tensor)
    shape, pages, plans = _plan(job["requests"], job["step_tokens"], backend, data, slots)
    sizes = [next(size for size in token_buckets(shape.tokens) if size >= plan.rows) for plan in plans]
    programs = {
        (plan.is_mixed, size): _read(
            compile_step(
                config,
                on,
                plan,
                dataclasses.replace(shape.room(plan.is_mixed), tokens=size),
                quantization=job["quantization"],
                pages=max(pages, cache_pages(config, target.chip, backend, tensor)),
                slots=slots,
            )
        )
        for (_, size), plan in {(plan.is_mixed, size): plan for plan, size in zip(plans, sizes, strict=True)}.items()
    }
    chip, clock = CHIPS[target.chip], target.clock_ghz * 1e9
    assert isinstance(backend, TpuBackend), "code is made for a TPU"
    heads, layers = spread.attention.on_device(tensor), len(attention_layers(config.layers))
    attends = {False: (backend, schedule_of(job["attention"]))}
    attends[True] = (backend.for_mixed_steps(), schedule_of(job["mixed_attention"]))
    recurrences = {
        int(together): [grid_schedule_of(each) for each in described]
        for together, described in job["recurrence"].items()
    }
    head = [
        _price_head(_read(program).operations, job, config, chip, clock) for program in compile_head(config, on, shape)
    ]
    stages: dict[str, Range] = defaultdict(lambda: Range.of(0.0))
    for plan, size in zip(plans, sizes, strict=True):
        room, (layout, schedule) = shape.room(plan.is_mixed), attends[plan.is_mixed]
        scored, windows, is_recurrent = min(size, room.scored), windows_of(config.layers), config.recurrence is not None
        arrays = step_arrays(backend, room, plan, size, scored, windows, is_recurrent=is_recurrent)
        operations = programs[plan.is_mixed, size].operations
        for stage, seconds in price_program(operations, clock, chip, Repeats(arrays).of).items():
            stages[stage] += seconds
        rows = [shard.rows for shard in plan.shards]
        for tiles, count in _tiles_of_layers(arrays.segments.tiles, config):
            attention = price_attention(
                count_tiles(tiles).tolist(),
                count_single_pages(tiles, PAGE_SIZE).tolist(),
                rows,
                schedule,
                kv_heads=heads.kv_heads,
                head_dim=backend.cache_head_dim,
                blocks=layout.blocks,
                page_size=PAGE_SIZE,
                chip=chip,
                clock_hz=clock,
            )
            stages["attention"] += attention * count
        norm_rope = price_norm_rope(size, job["norm_rope"], heads, chip, clock)
        if not any(ProductSize.read(fields).heads for fields, _ in job["products"].values()):
            stages["norm and RoPE"] += norm_rope * layers
        if config.recurrence is not None:
            here = config.recurrence.on_device(tensor)
            stages[RECURRENCE] += price_recurrence(operations, arrays, recurrences, here, chip, clock)
        for stage, seconds in _price_products(job, size, shape, config, chip, clock).items():
            stages[stage] += seconds
        written = price_page_writes(_written_tokens(arrays), heads.kv_heads, heads.head_dim, chip)
        stages["write_pages"] += written * layers
        reads = ReadPlan(plan)
        calls = reads.pairs.num_calls(PAIRS), reads.normalised.num_calls(backend.normalised_rows)
        for count, seconds in zip(calls, head, strict=True):
            stages["head"] += seconds * count
        stages["launches"] += LAUNCH * (1 + sum(calls))
    largest = max(programs.values(), key=lambda program: program.memory_bytes[1])
    return {
        "steps": len(plans),
        "stages": {name: dataclasses.astuple(seconds) for name, seconds in stages.items()},
        "padded_share": 1 - sum(plan.new_tokens for plan in plans) / sum(size * data for size in sizes),
        "memory_bytes": sum(largest.memory_bytes),
        "state_slots": slots,
        "state_bytes": state_bytes(config, tensor),
    }


def _price_products(
    job: Mapping[str, Any], size: int, shape: StepShape, config: ModelConfig, chip: Chip, clock: float
) -> dict[str, Range]:
    """Return the seconds of a step's products with quantised weights; the last layer makes most for a few rows."""
    stages: dict[str, Range] = defaultdict(lambda: Range.of(0.0))
    attending = len(attention_layers(config.layers))
    for name, (fields, described) in job["products"].items():
        product, schedules = ProductSize.read(fields), [grid_schedule_of(each) for each in described]
        is_of_mlp, is_recurrent = name in ("gate_up", "down"), name in ("qkvz", "recurrent_out")
        layers = len(config.layers) if is_of_mlp else config.recurrent_layers if is_recurrent else attending
        last = size if is_recurrent or name == "qkv" else min(size, shape.scored)
        all_rows, few = (price_product(schedules, rows, product, chip=chip, clock_hz=clock) for rows in (size, last))
        stages["mlp" if is_of_mlp else "projections and norms"] += all_rows * (layers - 1) + few
    return dict(stages)


def _price_head(
    operations: list[HloOperation], job: Mapping[str, Any], config: ModelConfig, chip: Chip, clock: float
) -> Range:
    """Return the seconds of one call of a program of the head, with its kernel if it has one."""
    found = total(price_program(operations, clock, chip).values())
    if not any(each.kind == KERNEL for each in operations):
        return found
    schedule = grid_schedule_of(job["log_sum_exp"])
    return found + price_log_sum_exp(schedule, embed=config.embed, vocab=config.head_rows, chip=chip, clock_hz=clock)


def _plan(
    requests: list[Mapping[str, Any]], step_tokens: int, backend: Backend, shards: int, slots: int
) -> tuple[StepShape, int, list[StepPlan]]:
    """Return the room of a step, the pages of the cache on each device, and the steps of all requests."""
    longest = max(len(body["query"]) + max(map(len, body["items"])) for body in requests)
    context_pages = -(-longest // PAGE_SIZE) + 1
    shape = step_shape(
        backend, step_tokens, pages_per_context=context_pages, shards=shards, longest_item=longest_item(step_tokens)
    )
    pages = (len(requests) + 2) * context_pages
    return shape, pages, plan_requests(requests, shape, pages, slots)


def _read(compiled: jax.stages.Compiled) -> StepProgram:
    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None, "the TPU compiler reports memory"
    assert text is not None, "the TPU compiler writes its program"
    return StepProgram(read_operations(text), (memory.argument_size_in_bytes, memory.temp_size_in_bytes))


def _tiles_of_layers(tiles: TpuTiles, config: ModelConfig) -> Iterator[tuple[TpuTiles, int]]:
    """Yield the tiles of each window, stacked by device, and how many layers visit them."""
    attending = attention_layers(config.layers)
    windows, layers = windows_of(attending), Counter(layer.window for layer in attending)
    if not windows:
        yield tiles, len(attending)
    for number, window in enumerate(windows):
        yield jax.tree.map(lambda x, number=number: x[:, number], tiles), layers[window]


def _written_tokens(arrays: StepArrays) -> int:
    """Return how many tokens go to pages of the device with the most, whole pages as they are copied."""
    pages = np.concatenate([arrays.segments.page_writes[:, None], arrays.exchanged_writes], axis=1)
    return int((pages < NOWHERE).sum((1, 2)).max()) * PAGE_SIZE


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.load(sys.stdin))) + "\n")
