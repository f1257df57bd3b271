"""Prices of kernels and exchanges, by hand."""

import pytest

from mis_kernels.aot.chips import CHIPS
from mis_kernels.aot.price import price_attention, price_exchange, price_norm_rope, price_page_writes


def test_attention_is_priced_by_the_device_with_the_most_tiles() -> None:
    bundles = {"full": 100, "limited": 200, "masked": 300, "rest": 50}
    tiles, rows = [[1, 0, 0], [1, 1, 1]], [512, 1024]
    seconds = price_attention(tiles, rows, bundles, kv_heads=2, block_tokens=512, clock_hz=1e9)
    assert seconds == pytest.approx(2 * (600 + 3 * 64 + 2 * 50) / 1e9)


def test_a_sum_over_devices_goes_around_the_ring_twice() -> None:
    chip = CHIPS["v6e"]
    gathered = price_exchange("all-gather-start", 65536, 4, chip)
    assert gathered == pytest.approx(0.75 * 65536 / (chip.link_bytes / 2))
    assert price_exchange("all-reduce", 65536, 4, chip) == pytest.approx(2 * gathered)


def test_a_kernel_pays_for_each_block_and_a_copy_for_each_byte_twice() -> None:
    one = price_norm_rope(1, {"step": 300}, 8, 1e9)
    assert one == pytest.approx(8 * 300 / 1e9)
    assert price_norm_rope(4096, {"step": 300}, 8, 1e9) > 8 * one
    assert price_page_writes(64, 8, 128, CHIPS["v5e"]) == pytest.approx(2 * 2 * 2 * 64 * 8 * 128 / 0.82e12)
