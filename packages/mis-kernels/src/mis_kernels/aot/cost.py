"""Static cost of attention for the canonical request: 2000 tokens of query, 500 items of 20 tokens."""

from typing import Any, NamedTuple

import numpy as np

from mis_kernels.aot.chips import CHIPS
from mis_kernels.aot.price import TILE_KINDS, price_attention
from mis_kernels.aot.programs import ITEM, PAGE_SIZE, extend_step, prefill_step
from mis_kernels.aot.ranges import Range
from mis_kernels.aot.schedules import AttentionSchedule
from mis_kernels.aot.targets import Topology
from mis_kernels.backends.tpu.norm_rope import BLOCK_TOKENS
from mis_kernels.backends.tpu.tiles import TpuBlocks, count_tiles
from mis_kernels.heads import HeadShape

QUERY = 2000
ITEMS = 500
MODEL = "qwen3-0.6b"
LAYERS = 28
EMBED = 1024


class Cost(NamedTuple):
    """Tiles of each kind and blocks, of one layer and KV head; seconds of all."""

    tiles: dict[str, int]
    blocks: int
    seconds: Range


def canonical_cost(
    target: Topology, heads: HeadShape, blocks: TpuBlocks, schedule: AttentionSchedule, layers: int = LAYERS
) -> Cost:
    """Count the tiles of the request's steps and price them by the schedule."""
    per_block = blocks.tokens // ITEM
    rows = -(-ITEMS // per_block) * blocks.tokens
    steps = (prefill_step(-(-QUERY // PAGE_SIZE) * PAGE_SIZE, blocks), extend_step(rows, blocks, QUERY, ITEM))
    counts = np.sum([count_tiles(step.tiles) for step in steps], axis=0)
    visited = sum(-(-step.num_tokens // blocks.tokens) for step in steps)
    layer = price_attention(
        [[int(n) for n in counts]],
        [visited * blocks.tokens],
        schedule,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        blocks=blocks,
        page_size=PAGE_SIZE,
        chip=CHIPS[target.chip],
        clock_hz=target.clock_ghz * 1e9,
    )
    return Cost(dict(zip(TILE_KINDS, (int(n) for n in counts), strict=True)), visited, layer * layers)


def explain(target: Topology, heads: HeadShape, blocks: TpuBlocks, schedule: AttentionSchedule) -> str:
    """Return the figure with what it is made of."""
    cost = canonical_cost(target, heads, blocks, schedule)
    rows = blocks.tokens * heads.group
    best, expected, worst = (
        f"{seconds * 1e3:.1f}" for seconds in (cost.seconds.best, cost.seconds.expected, cost.seconds.worst)
    )
    kinds = ", ".join(
        f"{kind} {n} (and up to {schedule.busy[kind]} that matrix units push back)"
        for kind, n in schedule.tiles.items()
    )
    return "\n".join(
        (
            f"{MODEL} on {target.topology}, query {QUERY}, {ITEMS} items of {ITEM}, bfloat16",
            f"blocks: {blocks.tokens} tokens ({rows} rows), tiles of {blocks.keys} keys",
            f"bundles of a tile of {rows} x {blocks.keys}: {kinds}",
            f"around a tile: {schedule.tile.least} to {schedule.tile.most}, for a page by itself {schedule.page}; "
            f"around a block: {schedule.block.least} to {schedule.block.most}",
            f"tiles of a layer and KV head: {', '.join(f'{n} {kind}' for kind, n in cost.tiles.items())}, "
            f"in {cost.blocks} blocks",
            f"attention: {expected} ms, {best} at best, {worst} at worst",
            "A bundle is a cycle. Not counted: everything but attention.",
        )
    )


def explain_glue(target: Topology, heads: HeadShape, row: dict[str, Any]) -> str:
    """Return the cycles per token and layer of norm, projection, and the norm and RoPE kernel, with their formula."""
    step, tokens, estimated = row["bundles"]["step"], row["tokens"], row["xla_cycles"]
    total = estimated / tokens + step * heads.kv_heads / BLOCK_TOKENS
    return "\n".join(
        (
            f"glue = {estimated} cycles / {tokens} tokens"
            f" + {step} bundles x {heads.kv_heads} KV heads / {BLOCK_TOKENS} tokens"
            f" = {total:.1f} cycles per token and layer = {total * 12_000 * LAYERS / target.clock_ghz / 1e6:.1f} ms",
            "The first term is XLA's own estimate for the RMS norm and the q, k, v projection, the second the kernel's",
            "grid step. Not counted: stalls, copies between HBM and VMEM where they do not hide behind arithmetic.",
        )
    )
