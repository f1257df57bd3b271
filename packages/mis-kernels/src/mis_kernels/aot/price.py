"""Seconds of what has no estimate by the compiler: kernels, by their schedules, and copies and exchanges, by bytes.

Everything is a range. What is not known is assumed here, in one place; `docs/runbooks/estimate.md` lists it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mis_kernels.aot.chips import Chip
from mis_kernels.aot.programs import (
    PRODUCT_ROWS,
    STEP_TOKENS,
    AttentionSize,
    HeadSize,
    ProductSize,
    glue_program,
    head_program,
    kernel_program,
    mixed_kernel_program,
    product_program,
)
from mis_kernels.aot.ranges import Range
from mis_kernels.aot.schedules import Around, AttentionSchedule, GridSchedule
from mis_kernels.aot.worker import run_job
from mis_kernels.backends.tpu.fetch import AHEAD
from mis_kernels.backends.tpu.head import block_tokens, fits
from mis_kernels.backends.tpu.norm_rope import grid_block
from mis_kernels.backends.tpu.tiles import TpuBlocks
from mis_kernels.heads import HeadShape
from mis_kernels.recurrence import RecurrentShape

TILE_KINDS = ("full", "limited", "masked", "near")

BUSY = Range(0.0, 0.5, 1.0)
"""Part of the cycles that matrix units without a queue would add; real units have a queue, of unpublished depth."""
SCATTERED = Range(0.0, 0.02, 1.0)
"""Part of the context's tiles whose pages do not follow one another: none in a fresh cache; in a full one up to 0.012
for queries of 200 to 6,000 tokens (`mis_core.cache.free_pages`); all if something else keeps groups apart."""
LATENCY = Range(0.3e-6, 0.4e-6, 0.8e-6)
"""Seconds until a copy from HBM begins to arrive: steps of 128 x 128 x 128 of a product in Pallas, which wait for
little else, were timed at 0.35 us on v5e (JAX's guide) and 0.43 us on v6e (SachinKonan/SkyRLTpu, commit aa07394)."""
HBM = Range(1.0, 1 / 0.83, 1 / 0.7)
"""Time of a copy against the nominal rate: 0.83 of it was measured on v6e (tpu-recipes, microbenchmarks, 2025-04)."""
LAUNCH = Range(0.0, 10e-6, 25e-6)
"""Seconds between two programs that were dispatched ahead; not published."""

_WIRED = 0.5  # of a chip's links, in slices of one host
_BYTES = 2  # of bfloat16
_TABLE_BYTES = 4  # of float32
_STATE_BYTES = 4


class KernelSchedules(NamedTuple):
    """Schedules of a model's kernels: attention, a step of norm and RoPE in bundles, the log-sum-exp if it is fused."""

    attention: AttentionSchedule
    mixed_attention: AttentionSchedule
    norm_rope: int
    log_sum_exp: GridSchedule | None


def kernel_schedules(
    target: str,
    heads: HeadShape,
    *,
    rows: int,
    embed: int,
    vocab: int,
    window: int | None = None,
    cap: float | None = None,
    head_cap: float | None = None,
) -> KernelSchedules:
    """Compile the kernels alone.

    Args:
        target: A name in `TARGETS`.
        heads: Of one device.
        window: Of layers that slide, if some do: attention then looks at both ends of what a row sees.
        rows: Of a call of the log-sum-exp on one device.
        embed: Width of the model.
        vocab: Rows of its head.
        cap: Of the logits of attention; None: there is none.
        head_cap: Of the logits of the head, likewise.

    Raises:
        RuntimeError: the compiler refused one.
    """
    size = AttentionSize(heads, window, cap)
    (attention,), (mixed,) = (run_job(target, make, [size]) for make in (kernel_program, mixed_kernel_program))
    (glue,) = run_job(target, glue_program, [heads])
    fused = None
    if fits(rows, vocab, embed):
        (head,) = run_job(target, head_program, [HeadSize(rows, embed, vocab, head_cap)])
        fused = head["schedule"]
    return KernelSchedules(attention["schedule"], mixed["schedule"], glue["bundles"]["step"], fused)


def schedule_of(fields: Mapping[str, Any]) -> AttentionSchedule:
    """Return the schedule that was written as JSON."""
    tile, block = Around(*fields["tile"]), Around(*fields["block"])
    return AttentionSchedule(dict(fields["tiles"]), dict(fields["busy"]), tile, fields["page"], block)


def grid_schedule_of(fields: Mapping[str, Any]) -> GridSchedule:
    """Return the schedule that was written as JSON."""
    return GridSchedule(fields["body"], fields["busy"], Around(*fields["around"]))


def price_attention(
    tiles: Sequence[Sequence[int]],
    single_pages: Sequence[int],
    rows: Sequence[int],
    schedule: AttentionSchedule,
    *,
    kv_heads: int,
    head_dim: int,
    blocks: TpuBlocks,
    page_size: int,
    chip: Chip,
    clock_hz: float,
) -> Range:
    """Return the seconds of one layer's attention on the device with the most work.

    A tile takes its arithmetic, what surrounds it, and the starting of single copies where pages are scattered or too
    few, or the time until its keys and values have come, whichever is longer.

    Args:
        tiles: By device, how many of each of `TILE_KINDS`.
        single_pages: By device, pages of parts of tiles that are not whole: each is copied by itself.
        rows: By device, tokens that are computed.
        schedule: Of the kernel.
        kv_heads: KV heads of a device.
        head_dim: Width of a head.
        blocks: Sizes of the kernel's blocks.
        page_size: Tokens in a page.
        chip: Whose memory the tiles come from.
        clock_hz: Cycles a second.
    """
    page = schedule.page / blocks.parts  # each part has a loop over its pages
    pages = SCATTERED * (page * blocks.keys / page_size)
    arrived = _arrival(2 * _BYTES * blocks.keys * head_dim, chip)
    kinds = []
    for kind in TILE_KINDS:
        if kind not in schedule.tiles:  # no block visits such a tile
            kinds.append(Range.of(0.0))
            continue
        cycles = Range.of(schedule.tiles[kind]) + BUSY * schedule.busy[kind] + _around(schedule.tile)
        # Of masked tiles many are of new tokens, which have no pages, as those of near tiles.
        cycles = cycles + pages if kind in ("full", "limited") else cycles
        kinds.append(_longer(cycles * (1 / clock_hz), arrived * (1 / AHEAD)))
    block = _around(schedule.block) * (1 / clock_hz)

    def seconds(counts: Sequence[int], singles: int, tokens: int) -> Range:
        whole = block * -(-tokens // blocks.tokens) + Range.of(singles * page / clock_hz)
        for kind, count in zip(kinds, counts, strict=True):
            whole = whole + kind * count
        return whole * kv_heads

    return max(map(seconds, tiles, single_pages, rows), key=lambda each: each.expected)


def price_norm_rope(size: int, step: int, heads: HeadShape, chip: Chip, hz: float) -> Range:
    """Return the seconds of one layer's norm and RoPE kernel: a grid step per block of tokens and of KV heads.

    Blocks of fewer tokens, where a step is not of whole ones, are taken to need their share of a whole one.

    At worst all that it reads and writes passes through HBM, and takes longer than the arithmetic.
    """
    tokens, together = grid_block(STEP_TOKENS, heads, _BYTES)
    arithmetic = size / tokens * (heads.kv_heads // together) * step / hz
    passed = 2 * size * heads.kv_heads * (heads.group + 2) * heads.head_dim * _BYTES / chip.bytes
    worst = max(arithmetic, passed * HBM.worst)
    return Range(arithmetic, (arithmetic + max(arithmetic, passed)) / 2, worst)


def price_log_sum_exp(schedule: GridSchedule, *, embed: int, vocab: int, chip: Chip, clock_hz: float) -> Range:
    """Return the seconds of one call: a grid step per block of the vocabulary, which is read while the last is used."""
    tokens = block_tokens(embed, _BYTES)
    return price_grid_step(schedule, tokens * embed * _BYTES, chip, clock_hz) * -(-vocab // tokens)


def product_schedules(target: str, sizes: Sequence[ProductSize]) -> list[list[GridSchedule]]:
    """Compile products with quantised weights; return the schedules of each, that of steps which quantise rows first.

    Raises:
        RuntimeError: the compiler refused one.
    """
    return [row["schedules"] for row in run_job(target, product_program, sizes)]


def price_product(
    schedules: Sequence[GridSchedule], rows: int, size: ProductSize, *, chip: Chip, clock_hz: float
) -> Range:
    """Return the seconds of one product: the first of the weight must arrive, the others arrive while steps run."""
    sizes = size.grid_sizes(rows)
    groups, blocks, steps = sizes.grid(rows, size.columns)
    weight = size.parts * size.depth * sizes.columns
    moved = _BYTES * sizes.rows * sizes.columns * (1 + size.residual)
    if size.heads:
        moved += 2 * _TABLE_BYTES * sizes.rows * size.heads.head_dim
    # Bodies are unrolled by rows, or loops over them.
    share = sizes.rows / size.grid_sizes(PRODUCT_ROWS).rows
    schedules = [each._replace(body=round(each.body * share), busy=round(each.busy * share)) for each in schedules]
    first = price_grid_step(schedules[0], moved + _BYTES * sizes.rows * size.depth, chip, clock_hz)
    other = price_grid_step(schedules[-1], moved, chip, clock_hz)
    during = price_grid_step(schedules[-1], moved + weight, chip, clock_hz)
    block = first * steps + (other * (steps - 1) + during) * (blocks - 1)
    return (_arrival(weight, chip) + block) * groups


def price_gated_delta(
    schedules: Sequence[GridSchedule],
    blocks: int,
    kept: int,
    fetched: int,
    *,
    shape: RecurrentShape,
    heads: int,
    chip: Chip,
    clock_hz: float,
) -> Range:
    """Return the seconds of one recurrent layer: of blocks one after the other, for some value heads at a time.

    Args:
        schedules: Of a block of one or two chunks, and of the state after a chunk.
        blocks: How many there are.
        kept: Chunks whose state is carried or stored.
        fetched: How often a state is fetched from a slot, for which blocks wait.
        shape: Of the layer.
        heads: Value heads of a grid step.
        chip: Whose memory states come from.
        clock_hz: Cycles a second.
    """
    block, state = schedules
    cycles = Range.of(block.body) + BUSY * block.busy + _around(block.around)
    after = Range.of(state.body) + BUSY * state.busy
    memory = _STATE_BYTES * heads * shape.key_dim * shape.value_dim
    step = (cycles * blocks + after * kept) * (1 / clock_hz) + _arrival(memory, chip) * fetched
    return step * (shape.value_heads // heads)


def price_grid_step(schedule: GridSchedule, num_bytes: float, chip: Chip, clock_hz: float) -> Range:
    """Return the seconds of a grid step, or until what it needs has come from HBM, whichever is longer."""
    step = Range.of(schedule.body) + BUSY * schedule.busy + _around(schedule.around)
    return _longer(step * (1 / clock_hz), _arrival(num_bytes, chip))


def price_copy(num_bytes: float, hidden: float, chip: Chip) -> Range:
    """Return the seconds that a copy to or from HBM takes beyond what runs beside it.

    Args:
        num_bytes: What is copied.
        hidden: Seconds between its start and the moment it is waited for.
        chip: Whose memory it is.
    """
    taken = HBM * (num_bytes / chip.bytes)
    return Range(0.0, max(0.0, taken.expected - hidden), max(0.0, taken.worst - hidden / 2))


def price_page_writes(new_tokens: int, kv_heads: int, head_dim: int, chip: Chip) -> Range:
    """Return the seconds of copying one layer's keys and values of bfloat16 into pages: read once, written once."""
    return HBM * (2 * 2 * _BYTES * new_tokens * kv_heads * head_dim / chip.bytes)


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


def _arrival(num_bytes: float, chip: Chip) -> Range:
    """Return the seconds until a copy from HBM has arrived."""
    return LATENCY + HBM * (num_bytes / chip.bytes)


def _longer(a: Range, b: Range) -> Range:
    """Return what two take that run beside each other."""
    return Range(max(a.best, b.best), max(a.expected, b.expected), max(a.worst, b.worst))


def _around(bundles: Around) -> Range:
    """Return the bundles of branches of which some are taken."""
    return Range(bundles.least, (bundles.least + bundles.most) / 2, bundles.most)
