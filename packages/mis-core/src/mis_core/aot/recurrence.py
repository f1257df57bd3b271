"""What the TPU kernel of recurrent layers takes in a step. Where XLA computes them, its operations have prices."""

from collections.abc import Iterable, Mapping, Sequence

from mis_core.aot.hlo import KERNEL, HloOperation
from mis_core.aot.price import RECURRENCE, stage_of
from mis_core.aot.roofline import ITEM_BYTES
from mis_core.models.config import ModelConfig
from mis_core.runner.arrays import StepArrays
from mis_core.runner.buckets import token_buckets
from mis_kernels import Chunks, RecurrentShape
from mis_kernels.aot.chips import Chip
from mis_kernels.aot.price import price_gated_delta
from mis_kernels.aot.ranges import Range
from mis_kernels.aot.recurrence import RecurrentSize
from mis_kernels.aot.schedules import GridSchedule
from mis_kernels.backends.tpu.chunk_walk import count_walk
from mis_kernels.backends.tpu.recurrence import step_heads
from mis_kernels.segments import NOWHERE


def recurrent_sizes(config: ModelConfig, tensor: int, step_tokens: int) -> dict[int, RecurrentSize]:
    """Return what the kernel is compiled for on each of `tensor` devices, by the value heads of its grid steps.

    Empty where no layer is recurrent, or the kernel takes no step of up to `step_tokens` tokens.
    """
    if config.recurrence is None:
        return {}
    shape = config.recurrence.on_device(tensor)
    heads = {tokens: step_heads(tokens, ITEM_BYTES, shape) for tokens in token_buckets(step_tokens)}
    return {count: RecurrentSize(shape, tokens) for tokens, count in heads.items() if count is not None}


def price_recurrence(
    operations: Iterable[HloOperation],
    arrays: StepArrays,
    schedules: Mapping[int, Sequence[GridSchedule]],
    shape: RecurrentShape,
    chip: Chip,
    clock_hz: float,
) -> Range:
    """Return the seconds of all kernels of a step, on the device where they take longest; none take none.

    Args:
        operations: Of the compiled step.
        arrays: Of the step, on the host.
        schedules: Of a block and of the state after it, by the value heads of a grid step.
        shape: Of a layer on one device.
        chip: Whose memory states come from.
        clock_hz: Cycles a second.
    """
    layers = sum(each.times for each in operations if each.kind == KERNEL and stage_of(each.scope) == RECURRENCE)
    if not layers:
        return Range.of(0.0)
    heads = step_heads(arrays.token_ids.shape[1], ITEM_BYTES, shape)
    assert heads is not None, "the kernel was compiled"
    assert arrays.chunks is not None, "it computes chunks"
    walks = [count_walk(Chunks(*each), NOWHERE) for each in zip(*arrays.chunks, strict=True)]
    priced = (
        price_gated_delta(schedules[heads], *walk, shape=shape, heads=heads, chip=chip, clock_hz=clock_hz)
        for walk in walks
    )
    return max(priced, key=lambda seconds: seconds.expected) * layers
