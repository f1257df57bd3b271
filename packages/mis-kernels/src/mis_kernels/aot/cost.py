"""Static cost of attention for the canonical request: 2000 tokens of query, 500 items of 20 tokens."""

from typing import Any, NamedTuple

import numpy as np

from mis_kernels.aot.programs import ITEM, PAGE_SIZE, extend_step, prefill_step
from mis_kernels.aot.targets import Target
from mis_kernels.backends.tpu.norm_rope import BLOCK_TOKENS
from mis_kernels.backends.tpu.tiles import TpuBlocks, count_tiles
from mis_kernels.heads import HeadShape

QUERY = 2000
ITEMS = 500
MODEL = "qwen3-0.6b"
LAYERS = 28
EMBED = 1024
FETCH_BUNDLES = 64
"""Bundles around a tile's arithmetic that every tile executes: the loop, and starting and awaiting copies."""


class Cost(NamedTuple):
    """Tiles of each kind and blocks, of one layer and KV head; milliseconds of all."""

    tiles: dict[str, int]
    blocks: int
    milliseconds: float


def canonical_cost(
    target: Target, heads: HeadShape, blocks: TpuBlocks, bundles: dict[str, int], layers: int = LAYERS
) -> Cost:
    """Count the tiles of the request's steps and price them by the schedule."""
    per_block = blocks.tokens // ITEM
    rows = -(-ITEMS // per_block) * blocks.tokens
    steps = (prefill_step(-(-QUERY // PAGE_SIZE) * PAGE_SIZE, blocks), extend_step(rows, blocks, QUERY, ITEM))
    counts = np.sum([count_tiles(step.tiles) for step in steps], axis=0)
    tiles = dict(zip(("full", "limited", "masked"), (int(n) for n in counts), strict=True))
    visited = sum(-(-step.num_tokens // blocks.tokens) for step in steps)
    cycles = sum(n * (bundles[kind] + FETCH_BUNDLES) for kind, n in tiles.items()) + visited * bundles["rest"]
    return Cost(tiles, visited, cycles * heads.kv_heads * layers / target.clock_ghz / 1e6)


def explain(target: Target, heads: HeadShape, blocks: TpuBlocks, bundles: dict[str, int]) -> str:
    """Return the figure with its formula."""
    cost = canonical_cost(target, heads, blocks, bundles)
    parts = " + ".join(f"{n} {kind} x ({bundles[kind]} + {FETCH_BUNDLES})" for kind, n in cost.tiles.items())
    per_head = f"{parts} + {cost.blocks} blocks x {bundles['rest']}"
    rows, scale = blocks.tokens * heads.group, f"{heads.kv_heads} KV heads x {LAYERS} layers / {target.clock_ghz} GHz"
    bodies = ", ".join(f"{kind} {n}" for kind, n in bundles.items() if kind != "rest")
    return "\n".join(
        (
            f"{MODEL} on {target.topology}, query {QUERY}, {ITEMS} items of {ITEM}, bfloat16",
            f"blocks: {blocks.tokens} tokens ({rows} rows), tiles of {blocks.keys} keys",
            f"bundles of a tile of {rows} x {blocks.keys}: {bodies}",
            f"attention = ({per_head}) x {scale} = {cost.milliseconds:.1f} ms",
            "A bundle is taken as a cycle. The last term charges a block with all code outside the tiles' arithmetic,",
            "branches not taken included. Not counted: stalls, waiting for memory, copies of pages that are not",
            "contiguous, launch, and everything but attention.",
        )
    )


def explain_glue(target: Target, heads: HeadShape, row: dict[str, Any]) -> str:
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
