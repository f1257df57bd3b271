"""Seconds of what has no estimate by the compiler: kernels, by their schedules, and copies and exchanges, by bytes."""

from collections.abc import Mapping, Sequence

from mis_kernels.aot.chips import Chip
from mis_kernels.aot.cost import FETCH_BUNDLES
from mis_kernels.aot.targets import run_job
from mis_kernels.backends.tpu.norm_rope import BLOCK_TOKENS
from mis_kernels.heads import HeadShape

TILE_KINDS = ("full", "limited", "masked")

_WIRED = 0.5  # of a chip's links, in slices of one host

Bundles = Mapping[str, int]
"""Bundles of each part of a kernel, from its schedule; a bundle is taken as a cycle."""


def kernel_bundles(target: str, heads: HeadShape) -> tuple[Bundles, Bundles]:
    """Compile the kernels alone; return the bundles of attention's tiles and of the norm and RoPE kernel.

    Args:
        target: A name in `TARGETS`.
        heads: Of one device.

    Raises:
        RuntimeError: the compiler refused one.
    """
    (attention,) = run_job(target, {"what": "kernels", "heads": [heads]})
    (glue,) = run_job(target, {"what": "glue", "heads": [heads]})
    return attention["bundles"], glue["bundles"]


def price_attention(
    tiles: Sequence[Sequence[int]],
    rows: Sequence[int],
    bundles: Bundles,
    *,
    kv_heads: int,
    block_tokens: int,
    clock_hz: float,
) -> float:
    """Return the seconds of one layer's attention on the device with the most work.

    Args:
        tiles: By device, how many of each of `TILE_KINDS`.
        rows: By device, tokens that are computed.
        bundles: Of each kind of tile, and of a block's beginning and end.
        kv_heads: KV heads of a device.
        block_tokens: Tokens of a block.
        clock_hz: Cycles a second.
    """
    cycles = [
        sum(count * (bundles[kind] + FETCH_BUNDLES) for kind, count in zip(TILE_KINDS, counts, strict=True))
        + -(-tokens // block_tokens) * bundles["rest"]
        for counts, tokens in zip(tiles, rows, strict=True)
    ]
    return max(cycles) * kv_heads / clock_hz


def price_norm_rope(size: int, bundles: Bundles, kv_heads: int, clock_hz: float) -> float:
    """Return the seconds of one layer's norm and RoPE kernel: a grid step per block of tokens and KV head."""
    return -(-size // BLOCK_TOKENS) * kv_heads * bundles["step"] / clock_hz


def price_page_writes(new_tokens: int, kv_heads: int, head_dim: int, chip: Chip) -> float:
    """Return the seconds of copying one layer's keys and values of bfloat16 into pages: read once, written once."""
    return 2 * 2 * 2 * new_tokens * kv_heads * head_dim / chip.bytes


def price_exchange(kind: str, num_bytes: int, devices: int, chip: Chip) -> float:
    """Return the seconds of a collective on a ring: every device sends all parts but its own once, a sum twice.

    Args:
        kind: Opcode, such as `all-reduce`.
        num_bytes: Size of its result.
        devices: How many take part.
        chip: Of each device.
    """
    rounds = 2 if kind.startswith("all-reduce") else 1
    share = (devices - 1) / devices
    return rounds * share * num_bytes / (chip.link_bytes * _WIRED)
