"""Time of steps: cycles of the compiler, schedules of kernels, bytes of copies and of what devices exchange."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from mis_kernels.aot.chips import Chip
from mis_kernels.aot.cost import FETCH_BUNDLES
from mis_kernels.glue.pallas_tpu import BLOCK_TOKENS

_WIRED = 0.5  # of a chip's links, in slices of one host

TILE_KINDS = ("full", "limited", "masked")

Stages = Mapping[str, float]
"""Seconds by stage."""


def stage_of(scope: str) -> str:
    """Return the stage of an operation from the named scopes it was traced under."""
    parts = scope.split("/")
    for stage in ("embed", "write_pages", "label_logits", "log_sum_exp"):
        if stage in parts:
            return stage
    for stage in ("mlp", "attention"):
        if stage in parts:
            return "projections and norms" if stage == "attention" else stage
    return "rest"


def price_program(
    operations: Iterable[Mapping[str, Any]], clock_hz: float, chip: Chip, *, writes_pages: bool
) -> dict[str, float]:
    """Price everything but kernels; return seconds by stage.

    Args:
        operations: As the worker describes them.
        clock_hz: Cycles a second.
        chip: For what devices exchange.
        writes_pages: Whether the step takes the branch that writes to the cache, the second of its conditional.
    """
    stages: dict[str, float] = defaultdict(float)
    for operation in operations:
        if operation["branch"] is not None and bool(operation["branch"]) != writes_pages:
            continue
        if operation["bytes"]:
            stages["exchange"] += operation["times"] * _exchange(operation, chip)
        elif operation["cycles"] is not None:
            stages[stage_of(operation["scope"])] += operation["cycles"] * operation["times"] / clock_hz
    return dict(stages)


def _exchange(operation: Mapping[str, Any], chip: Chip) -> float:
    """Return the seconds of a collective on a ring: every device sends all parts but its own once, a sum twice."""
    rounds = 2 if operation["kind"].startswith("all-reduce") else 1
    share = (operation["devices"] - 1) / operation["devices"]
    return rounds * share * operation["bytes"] / (chip.link_bytes * _WIRED)


def price_attention(
    step: Mapping[str, Any], bundles: Mapping[str, int], kv_heads: int, block_tokens: int, clock_hz: float
) -> float:
    """Return the seconds of one layer's attention on the device with the most work.

    Args:
        step: As the worker describes it.
        bundles: Bundles of each kind of tile and of a block's beginning and end, from the kernel's schedule.
        kv_heads: KV heads of a device.
        block_tokens: Tokens of a block.
        clock_hz: Cycles a second; a bundle is taken as a cycle.
    """
    cycles = [
        sum(count * (bundles[kind] + FETCH_BUNDLES) for kind, count in zip(TILE_KINDS, tiles, strict=True))
        + -(-rows // block_tokens) * bundles["rest"]
        for tiles, rows in zip(step["tiles"], step["rows"], strict=True)
    ]
    return max(cycles) * kv_heads / clock_hz


def price_norm_rope(size: int, bundles: int, kv_heads: int, clock_hz: float) -> float:
    """Return the seconds of one layer's norm and RoPE kernel: a grid step per block of tokens and KV head."""
    return -(-size // BLOCK_TOKENS) * kv_heads * bundles / clock_hz


def price_page_writes(new_tokens: int, kv_heads: int, head_dim: int, chip: Chip) -> float:
    """Return the seconds of copying one layer's keys and values of bfloat16 into pages: read once, written once."""
    return 2 * 2 * 2 * new_tokens * kv_heads * head_dim / chip.bytes
