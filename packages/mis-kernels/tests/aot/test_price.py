"""Prices of kernels, copies and exchanges, by hand."""

import json

import pytest

from mis_kernels.aot.chips import CHIPS
from mis_kernels.aot.price import (
    price_attention,
    price_copy,
    price_exchange,
    price_gated_delta,
    price_log_sum_exp,
    price_norm_rope,
    price_page_writes,
    price_product,
    schedule_of,
)
from mis_kernels.aot.programs import ProductSize
from mis_kernels.aot.ranges import Range, total
from mis_kernels.aot.schedules import Around, AttentionSchedule, GridSchedule
from mis_kernels.backends.tpu.head import block_tokens
from mis_kernels.backends.tpu.products import ProductSizes
from mis_kernels.backends.tpu.tiles import TpuBlocks
from mis_kernels.heads import HeadShape
from mis_kernels.recurrence import RecurrentShape

SCHEDULE = AttentionSchedule(
    tiles={"full": 100_000, "limited": 200_000, "masked": 300_000, "near": 50_000, "anew": 900_000},
    busy={"full": 10, "limited": 20, "masked": 30, "near": 0, "anew": 40},
    tile=Around(60, 100),
    page=5,
    block=Around(50, 70),
)
BLOCKS = TpuBlocks(tokens=512, keys=512, strip=256, key_step=256)


def attention(
    tiles: list[list[int]], rows: list[int], schedule: AttentionSchedule = SCHEDULE, *, single_pages: int = 0
) -> Range:
    sizes = {"kv_heads": 2, "head_dim": 128, "blocks": BLOCKS, "page_size": 64}
    return price_attention(tiles, [single_pages] * len(rows), rows, schedule, **sizes, chip=CHIPS["v6e"], clock_hz=1e9)


def test_attention_is_priced_by_the_device_with_the_most_tiles() -> None:
    found = attention([[1, 0, 0, 0], [1, 1, 1, 1]], [512, 1024])
    assert found.best == pytest.approx(2 * (650_000 + 4 * 60 + 2 * 50) / 1e9)
    assert found.expected == pytest.approx(2 * (650_000 + 30 + 4 * 80 + 2 * 0.02 * 40 + 2 * 60) / 1e9)
    assert found.worst == pytest.approx(2 * (650_000 + 60 + 4 * 100 + 2 * 40 + 2 * 70) / 1e9)


def test_pages_that_are_copied_one_by_one_are_paid_for() -> None:
    alone, more = attention([[1, 0, 0, 0]], [512]), attention([[1, 0, 0, 0]], [512], single_pages=3)
    assert more.best - alone.best == pytest.approx(2 * 3 * 5 / 1e9)


def test_a_tile_takes_at_least_the_time_to_read_it() -> None:
    """Two tiles are on their way while one is worked on."""
    quick = SCHEDULE._replace(tiles=dict.fromkeys(SCHEDULE.tiles, 1), block=Around(0, 0))
    bytes_of_a_tile = 2 * 2 * 512 * 128
    assert attention([[1, 0, 0, 0]], [1], quick).best == pytest.approx((0.3e-6 + bytes_of_a_tile / 1.64e12) / 2 * 2)


def test_a_schedule_survives_json() -> None:
    written = SCHEDULE._asdict() | {"tile": [60, 100], "block": [50, 70]}
    assert schedule_of(written) == SCHEDULE


def test_a_sum_over_devices_goes_around_the_ring_twice() -> None:
    chip = CHIPS["v6e"]
    gathered = price_exchange("all-gather-start", 65536, 4, chip)
    assert gathered == pytest.approx(0.75 * 65536 / (chip.link_bytes / 2))
    assert price_exchange("all-reduce", 65536, 4, chip) == pytest.approx(2 * gathered)


def test_a_kernel_pays_for_its_blocks_and_at_worst_for_its_bytes() -> None:
    def price(size: int, step: int, *heads: int) -> Range:
        return price_norm_rope(size, step, HeadShape(*heads or (16, 8, 128)), CHIPS["v5e"], 1e9)

    slow = price(4096, 1_000_000)
    assert slow == Range.of(slow.best)
    assert slow.best == pytest.approx(4 * 8 * 1_000_000 / 1e9)
    assert price(512, 300).best == pytest.approx(8 * 150 / 1e9)
    assert price(512, 300, 8, 2, 256).best == pytest.approx(2 * 300 / 1e9)  # blocks of half as many tokens
    assert price(512, 300, 32, 8, 64).best == pytest.approx(300 / 1e9)  # and of all heads together
    quick = price(4096, 1)
    assert quick.best < quick.expected < quick.worst == pytest.approx(2 * 4096 * 8 * 4 * 128 * 2 / 0.82e12 / 0.7)


def test_log_sum_exp_costs_its_blocks_or_reading_them() -> None:
    chip, sizes = CHIPS["v6e"], {"embed": 1024, "vocab": 5000, "chip": CHIPS["v6e"], "clock_hz": 1e9}
    assert block_tokens(1024, 2) == 2048
    slow = price_log_sum_exp(GridSchedule(1_000_000, 0, Around(0, 0)), **sizes)
    assert slow == Range.of(3 * 1e-3)
    quick = price_log_sum_exp(GridSchedule(1, 0, Around(0, 0)), **sizes)
    assert quick.best == pytest.approx(3 * (0.3e-6 + 2048 * 1024 * 2 / chip.bytes))


def test_a_copy_pays_for_what_does_not_hide() -> None:
    chip = CHIPS["v6e"]
    open_to_all = price_copy(1.64e9, 0.0, chip)
    assert (open_to_all.best, open_to_all.expected, open_to_all.worst) == pytest.approx((0.0, 1e-3 / 0.83, 1e-3 / 0.7))
    assert price_copy(1.64e9, 1e-3, chip).expected == pytest.approx(1e-3 / 0.83 - 1e-3)
    assert price_copy(1.64e9, float("inf"), chip) == Range.of(0.0)
    assert price_page_writes(64, 8, 128, CHIPS["v5e"]).best == pytest.approx(2 * 2 * 2 * 64 * 8 * 128 / 0.82e12)


def test_ranges_add_up_and_scale() -> None:
    assert total([Range(1, 2, 3), Range.of(1), Range(0, 1, 2) * 2]) == Range(2, 5, 8)


def test_a_product_waits_for_one_weight_and_overlaps_the_rest() -> None:
    size = ProductSize(1024, 4096, 1, normed=True, residual=False)
    sizes = ProductSizes.of(4096, size.depth, size.columns, size.parts)
    assert sizes.grid(4096, size.columns) == (1, 2, 4)
    first, other = (GridSchedule(bundles, 0, Around(0, 0)) for bundles in (2_000_000, 1_000_000))
    weight = 0.3e-6 + 1024 * 2048 / CHIPS["v6e"].bytes
    slow = price_product([first, other], 4096, size, chip=CHIPS["v6e"], clock_hz=1e9)
    assert slow.best == pytest.approx(weight + 4 * 2e-3 + 4 * 1e-3)
    quick = GridSchedule(1, 0, Around(0, 0))
    written, read = 2 * 1024 * 2048, 2 * 1024 * 1024
    moved = 4 * (2 * written + read) + 1024 * 2048
    found = price_product([quick, quick], 4096, size, chip=CHIPS["v6e"], clock_hz=1e9)
    assert found.best == pytest.approx(weight + 8 * 0.3e-6 + moved / CHIPS["v6e"].bytes)


def test_a_projection_pays_for_its_rotation_tables() -> None:
    heads = HeadShape(16, 8, 128)
    size = ProductSize(1024, 4096, 1, normed=True, residual=False, heads=heads)
    assert size.grid_sizes(4096).grid(4096, 4096) == (1, 2, 4)
    apart = size._replace(heads=None)
    quick, chip = GridSchedule(1, 0, Around(0, 0)), CHIPS["v6e"]
    both = [price_product([quick, quick], 4096, each, chip=chip, clock_hz=1e9).best for each in (size, apart)]
    assert both[0] - both[1] == pytest.approx(2 * 2 * 4 * 4096 * 128 / chip.bytes)
    assert ProductSize.read(json.loads(json.dumps(size))) == size
    assert ProductSize.read(json.loads(json.dumps(apart))) == apart


def test_a_recurrent_layer_pays_for_blocks_states_and_fetches() -> None:
    schedules = [GridSchedule(4000, 400, Around(50, 150)), GridSchedule(800, 200, Around(50, 150))]
    shape, chip = RecurrentShape(16, 32, 128, 128, 4), CHIPS["v6e"]

    def price(blocks: int, kept: int, fetched: int) -> Range:
        counts = {"blocks": blocks, "kept": kept, "fetched": fetched}
        return price_gated_delta(schedules, **counts, shape=shape, heads=4, chip=chip, clock_hz=1e9)

    assert price(10, 0, 0).best == pytest.approx(8 * 10 * 4050 / 1e9)
    assert price(10, 0, 0).expected == pytest.approx(8 * 10 * (4000 + 200 + 100) / 1e9)
    assert price(10, 3, 0).worst == pytest.approx(8 * (10 * 4550 + 3 * 1000) / 1e9)
    fetched = price(10, 3, 2).best - price(10, 3, 0).best
    assert fetched == pytest.approx(8 * 2 * (0.3e-6 + 4 * 4 * 128 * 128 / chip.bytes))
