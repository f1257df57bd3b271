"""Every native path on any x86-64 CPU: instructions that it lacks are emulated, as they are described, and counted."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from count_tiles import (
    ATTENTION,
    COLUMNS,
    DEPTH,
    EMBED,
    FEW_ROWS,
    INT8_COLUMNS,
    INT8_DEPTH,
    INT8_ROWS,
    LOGIT_ROWS,
    ROWS,
    VOCAB,
)
from emulation import (
    ALL,
    CPU,
    EVERYTHING,
    KERNELS,
    NEEDED,
    OURS,
    SINGLE,
    compiled,
    counted_by,
    environment,
)
from single_instructions import SMALLEST, call, flushed, numbers
from tile_counts import Tiles, of_attention, of_logits, of_product

ROOT = KERNELS.parents[1]
pytestmark = pytest.mark.skipif("MIS_MAX_ISA" in os.environ, reason="needs a CPU without a limit: sets its own")
HAS_AVX512, HAS_AMX = CPU >= NEEDED, NEEDED | {"amx_tile", "amx_bf16", "amx_int8"} <= CPU
NEEDS_AVX512 = pytest.mark.skipif(not HAS_AVX512, reason="needs a CPU with AVX-512 in bfloat16, to compare with")
NEEDS_AMX = pytest.mark.skipif(not HAS_AMX, reason="needs a CPU with AMX, to compare with")


@pytest.fixture(scope="module")
def emulated() -> ctypes.CDLL:
    return ctypes.CDLL(str(compiled(EVERYTHING, SINGLE)))


@pytest.fixture(scope="module")
def executed() -> ctypes.CDLL:
    library = ctypes.CDLL(str(compiled((), SINGLE)))
    assert not HAS_AMX or library.mis_request_tile_registers() == 0
    return library


def narrowed(x: np.ndarray) -> np.ndarray:
    """Return float64 rounded once to float32, denormals flushed: judged when rounded to 24 bits, as CPUs do."""
    mantissa, exponent = np.frexp(x)
    rounded = np.where(np.isfinite(x), np.ldexp(np.rint(np.ldexp(mantissa, 24)), exponent - 24), x)
    return np.where(np.abs(rounded) < SMALLEST, np.copysign(0.0, x), rounded).astype(np.float32)


def fused(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return x * y + z of bfloat16, bfloat16 and float32, rounded once, denormals flushed before and after.

    A product of two numbers of 8 bits is exact in float64. The sum is rounded to odd there, so that rounding it again,
    to 24 bits, is as if the exact sum were rounded (S. Boldo, G. Melquiond, IEEE Transactions on Computers 57, 2008).
    """
    with np.errstate(all="ignore"):
        product = flushed(x.astype(np.float32)).astype(np.float64) * flushed(y.astype(np.float32))
        added = flushed(z).astype(np.float64)
        total = product + added
        part = total - product
        lost = (product - (total - part)) + (added - part)
        to_odd = np.isfinite(total) & (lost != 0) & (total.view(np.int64) % 2 == 0)
        return narrowed(np.where(to_odd, np.nextafter(total, np.where(lost > 0, np.inf, -np.inf)), total))


def added(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the sum of float32, rounded once (float64 has bits enough for that), denormals flushed."""
    with np.errstate(all="ignore"):
        return narrowed(flushed(x).astype(np.float64) + flushed(y))


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    """Fail unless bits are equal, of NaN but that both are."""
    assert np.isnan(expected).sum() < expected.size / 2
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    there = ~np.isnan(expected)
    np.testing.assert_array_equal(found[there].view(np.uint32), expected[there].view(np.uint32))


def tile_operands(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    c, a, b = (numbers(shape, np.float32, seed + i) for i, shape in enumerate([(16, 16), (16, 32), (16, 32)]))
    tame = np.random.default_rng(seed).random((16, 1)) < 0.8  # rows and pairs of ordinary numbers, or all sums are NaN
    a = np.where(tame, np.nan_to_num(a, nan=1.5, posinf=-2.5, neginf=1e-39), a)
    b = np.nan_to_num(b, nan=0.75, posinf=1e-40, neginf=3.0)
    return c, a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("seed", range(4))
def test_a_product_of_tiles_in_bfloat16_is_the_described_one(emulated: ctypes.CDLL, seed: int) -> None:
    """Intel's manual: first and second numbers of pairs are summed apart; both are added, then what was there."""
    c, a, b = tile_operands(seed)
    sums = np.zeros((2, 16, 16), np.float32)
    for k in range(16):
        for i in range(2):
            sums[i] = fused(a[:, 2 * k + i, None], b[None, k, i::2], sums[i])
    expected = added(c, added(*sums))
    assert_same(call(emulated, "mis_tile_dpbf16ps", c, a.view(np.uint16), b.view(np.uint16)), expected)


def test_a_product_of_tiles_in_int8_is_exact_and_wraps(emulated: ctypes.CDLL) -> None:
    random = np.random.default_rng(0)
    c = random.integers(-(2**31), 2**31, (16, 16)).astype(np.int32)
    a, b = (random.integers(-128, 128, (16, 64)).astype(np.int8) for _ in range(2))
    weight = b.reshape(16, 16, 4).transpose(0, 2, 1).reshape(64, 16)
    expected = (c.astype(np.int64) + a.astype(np.int64) @ weight.astype(np.int64)).astype(np.int32)
    np.testing.assert_array_equal(call(emulated, "mis_tile_dpbssd", c, a, b), expected)


@pytest.mark.parametrize("seed", range(4))
def test_a_product_of_pairs_is_the_described_one(emulated: ctypes.CDLL, seed: int) -> None:
    """Intel's manual: the second numbers' product is added before the first numbers'."""
    c, a, b = (numbers(shape, dtype, seed) for shape, dtype in [((16,), np.float32), *[((32,), np.float32)] * 2])
    a, b = a.astype(ml_dtypes.bfloat16), b[::-1].astype(ml_dtypes.bfloat16)
    expected = fused(a[::2], b[::2], fused(a[1::2], b[1::2], c))
    assert_same(call(emulated, "mis_dpbf16_ps", c, a.view(np.uint16), b.view(np.uint16)), expected)


def test_rounding_to_bfloat16_is_to_even_and_flushes(emulated: ctypes.CDLL) -> None:
    x = np.concatenate(
        [numbers((8,), np.float32, 3), np.float32([1 + 2**-8, 1 + 3 * 2**-8, 1e-39, -0.0, 3.4e38] + [1] * 3)]
    )
    found, expected = (
        call(emulated, "mis_cvtneps_pbh", np.zeros(16, np.uint16), x),
        flushed(x).astype(ml_dtypes.bfloat16),
    )
    is_nan = np.isnan(expected)
    assert np.isnan(found.view(ml_dtypes.bfloat16)[is_nan]).all()
    np.testing.assert_array_equal(found[~is_nan], expected.view(np.uint16)[~is_nan])  # with the sign of a zero


@NEEDS_AMX
@pytest.mark.parametrize("seed", range(4))
def test_tiles_have_the_bits_of_the_cpus(emulated: ctypes.CDLL, executed: ctypes.CDLL, seed: int) -> None:
    c, a, b = tile_operands(seed)
    given = c, a.view(np.uint16), b.view(np.uint16)
    assert_same(call(emulated, "mis_tile_dpbf16ps", *given), call(executed, "mis_tile_dpbf16ps", *given))
    given = c.view(np.int32), a.view(np.int8), b.view(np.int8)
    np.testing.assert_array_equal(*(call(each, "mis_tile_dpbssd", *given) for each in (emulated, executed)))


@NEEDS_AVX512
@pytest.mark.parametrize("seed", range(4))
def test_vectors_have_the_bits_of_the_cpus(emulated: ctypes.CDLL, executed: ctypes.CDLL, seed: int) -> None:
    c, x, y = (numbers((16,), np.float32, seed + i) for i in range(3))
    a, b = (numbers((32,), np.float32, seed + i).astype(ml_dtypes.bfloat16).view(np.uint16) for i in range(2))
    found, expected = (call(each, "mis_dpbf16_ps", c, a, b) for each in (emulated, executed))
    assert_same(found, expected)
    rounded = [call(each, "mis_cvtneps_pbh", np.zeros(16, np.uint16), x) for each in (emulated, executed)]
    np.testing.assert_array_equal(*rounded)
    powers = np.nan_to_num(np.clip(y, -200, 200), nan=0.5)
    assert_same(*(call(each, "mis_scalef_ps", c, x, powers) for each in (emulated, executed)))


SOME_ON_TILES = (
    f"{OURS}/test_packed.py::test_equals_numpy[1-shape2]",
    f"{OURS}/test_packed.py::test_a_pair_is_gated[shape1]",
    f"{OURS}/test_packed.py::test_a_rows_bits_do_not_depend_on_how_many_there_are[plain-some]",
    f"{OURS}/glue/test_logits.py::test_a_rows_bits_do_not_depend_on_how_many_there_are",
    f"{OURS}/test_int8.py::test_sums_are_those_of_numpy[shape1]",
    f"{OURS}/test_int8.py::test_a_residual_is_added_to_the_rounded_product[bfloat16-shape0]",
    f"{OURS}/attention/test_native.py::test_bits_of_an_item_cut_by_a_block",
    f"{OURS}/attention/test_native.py::test_every_group_and_width_of_head[1-32]",
    f"{OURS}/attention/test_native.py::test_capped_logits_give_what_the_reference_gives[5.0-15.0]",
    f"{OURS}/attention/test_decoding.py::test_a_decoded_row_has_the_bits_of_a_prefilled_one[native]",
)
NO_NEED = pytest.mark.skipif(
    HAS_AVX512 and not HAS_AMX, reason="needs a CPU that does not choose these paths by itself: all tests run on them"
)


@pytest.mark.parametrize(
    ("largest", "selected"),
    [
        pytest.param("AMX", SOME_ON_TILES, id="tiles"),
        pytest.param("AMX", ALL, id="tiles-all", marks=pytest.mark.full),
        # CPUs with AVX-512 and no AMX run these paths in all tests.
        pytest.param("AVX512_BF16", ALL, id="vectors-all", marks=[NO_NEED, pytest.mark.full]),
    ],
)
@pytest.mark.timeout(3600)  # of all tests of those paths
def test_native_paths_pass_on_emulated_instructions(largest: str, selected: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not full and not tpu_aot"]
    command += [*selected, f"--deselect={OURS}/test_emulated.py", "-rN"]
    env = {**os.environ, **environment(largest)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout or "-k" in selected, done.stdout[-6000:]


@pytest.fixture(scope="module")
def counts() -> dict[str, dict[str, int]]:
    return counted_by(Path(__file__).parent / "support" / "count_tiles.py")


def test_a_product_loads_one_tile_for_each_multiplication(counts: dict[str, dict[str, int]]) -> None:
    found, blocks, passes = counts["product"], ROWS * COLUMNS // 32**2, -(-DEPTH // 512)
    tiles = Tiles.counted(found)
    assert tiles == of_product(ROWS, DEPTH, COLUMNS)
    assert tiles.loaded == tiles.multiplied + 4 * blocks * (passes - 1)  # sums of the passes before
    assert found["stored"] == 4 * blocks * passes
    assert (found["zeroed"], found["multiplied_int8"]) == (4 * blocks, 0)


@pytest.mark.parametrize("rows", FEW_ROWS)
def test_a_product_of_few_rows_has_no_others(counts: dict[str, dict[str, int]], rows: int) -> None:
    """Weights are loaded once, and sums stay in tiles over the whole depth."""
    found, halves, weights = counts[f"product of {rows}"], -(-rows // 16), COLUMNS * DEPTH // (16 * 32)
    assert found["rows"] == rows * weights
    assert Tiles.counted(found) == of_product(rows, DEPTH, COLUMNS)
    assert found["zeroed"] == found["stored"] == halves * COLUMNS // 16
    assert found["configured"] <= COLUMNS // 32  # once for each thread


@pytest.mark.parametrize("rows", LOGIT_ROWS)
def test_logits_load_each_token_once_for_32_rows(counts: dict[str, dict[str, int]], rows: int) -> None:
    found, depth = counts[f"logits of {rows}"], EMBED // 32
    row_tiles, token_tiles = -(-rows // 16), -(-VOCAB // 16)
    assert found["rows"] == VOCAB * row_tiles * depth  # the rows of these products are tokens
    assert Tiles.counted(found) == of_logits(rows, EMBED, VOCAB)
    assert found["stored"] == found["zeroed"] == token_tiles * row_tiles


def test_a_token_with_its_own_context_has_its_groups_rows(counts: dict[str, dict[str, int]]) -> None:
    found, case = counts["single tokens"], ATTENTION["single tokens"]
    assert found["rows"] == found["multiplied_bfloat16"] * case.group


@pytest.mark.parametrize("rows", INT8_ROWS)
def test_a_product_in_int8_has_no_other_rows(counts: dict[str, dict[str, int]], rows: int) -> None:
    """All are multiplied in tiles; weights of many rows stay in the first-level cache while they are needed."""
    found, halves, strips = counts[f"int8 product of {rows}"], -(-rows // 16), -(-rows // 32)
    tiles, pairs, passes = INT8_COLUMNS // 16, -(-INT8_COLUMNS // 32), 1 if rows <= 32 else -(-INT8_DEPTH // 1024)
    depth = INT8_DEPTH // 64
    assert (found["multiplied_int8"], found["multiplied_bfloat16"]) == (halves * tiles * depth, 0)
    assert found["rows"] == rows * tiles * depth
    assert found["stored"] == halves * tiles * passes
    assert found["zeroed"] == halves * tiles
    sums_again = halves * tiles * (passes - 1)
    assert found["loaded"] == (halves * pairs + strips * tiles) * depth + sums_again


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_multiplies_no_keys_that_nobody_sees(counts: dict[str, dict[str, int]], name: str) -> None:
    assert Tiles.counted(counts[name]) == of_attention(ATTENTION[name])
