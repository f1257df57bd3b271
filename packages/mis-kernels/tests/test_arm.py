"""The native library on ARM CPUs: what plain C++ computes on x86-64, to the bit, when an emulator runs it.

Nobody has run it on a CPU yet. `nox -s tests_arm` runs the tests that need the compiler and the emulator.
"""

import ctypes
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from arm import NEEDS_ARM, compile_for_arm, record, repeat
from emulation import ALL, KERNELS, OF_ARM, OURS, SINGLE, compiled
from mis_kernels.backends.native.library import FUNCTIONS
from single_instructions import SMALLEST, call, flushed, numbers

MOST_BYTES = 4 << 30  # of recorded calls
STRANGE = """
import jax.numpy as jnp, numpy as np
from mis_kernels.backends.native import library
from mis_kernels.backends.native.calls import logits
from single_instructions import numbers
def rows(count, seed):
    x = np.zeros((count, 64), np.float32)
    x[:, [0, 1, 32, 33]] = numbers((count, 4), np.float32, seed)  # one lane, two pairs: sums of others are zeros
    return jnp.asarray(x, jnp.bfloat16)
assert library.why_not() is None
logits(rows(32, 0), rows(600, 1)).block_until_ready()
"""
pytestmark = pytest.mark.skipif("MIS_MAX_ISA" in os.environ, reason="needs a CPU without a limit: sets its own")


def to_odd(x: np.float64, exact: Fraction) -> np.float32:
    """Return a sum or product as float32: cut off, and odd where anything was cut off; denormals are zeros.

    Args:
        x: The same as float64 has it, which tells NaN, infinities and signs of zeros.
        exact: If x is finite.
    """
    if not np.isfinite(x) or x == 0:
        return np.float32(x)
    if abs(exact) < SMALLEST:
        return np.copysign(np.float32(0), np.float32(x))
    unit = Fraction(2) ** (int(np.frexp(x)[1]) - 24)
    if abs(exact) < unit * 2**23:  # float64 was rounded up to a power of two
        unit /= 2
    whole = int(abs(exact) // unit)
    odd = whole | (whole * unit != abs(exact))
    return np.copysign(np.float32(min(float(odd * unit), np.inf)), np.float32(np.sign(x)))


def exactly(x: np.float32) -> Fraction:
    return Fraction(float(x)) if np.isfinite(x) else Fraction(0)


def product(x: np.float32, y: np.float32) -> np.float32:
    return to_odd(np.float64(x) * np.float64(y), exactly(x) * exactly(y))


def total(x: np.float32, y: np.float32) -> np.float32:
    return to_odd(np.float64(x) + np.float64(y), exactly(x) + exactly(y))


@pytest.mark.parametrize("seed", range(4))
def test_a_product_of_pairs_is_the_one_arm_describes(seed: int) -> None:
    """BFDotAdd: both products are added, then what was there; each is rounded to odd, and there is one NaN."""
    library = ctypes.CDLL(str(compiled(OF_ARM, SINGLE)))
    c, *operands = (numbers((size,), np.float32, seed + 10 * size) for size in (16, 32, 33))
    a, b = (x[:32].astype(ml_dtypes.bfloat16) for x in operands)
    x, y, z = flushed(a.astype(np.float32)), flushed(b.astype(np.float32)), flushed(c)
    with np.errstate(all="ignore"):
        pairs = [total(product(x[i], y[i]), product(x[i + 1], y[i + 1])) for i in range(0, 32, 2)]
        expected = np.array([total(*each) for each in zip(z, pairs, strict=True)], np.float32)
    found = call(library, "mis_dpbf16_ps", c, a.view(np.uint16), b.view(np.uint16))
    expected = np.where(np.isnan(expected), np.uint32(0x7FC00000), expected.view(np.uint32))
    np.testing.assert_array_equal(found.view(np.uint32), expected)


def test_every_intrinsic_of_the_library_is_there_for_arm() -> None:
    """Also what is compiled at night only."""
    files = [file for file in (KERNELS / "native").iterdir() if file.suffix in {".cc", ".h"}]
    files = [file for file in files if file.name not in {"arm.h", "avx2.h"}]
    used = set(re.findall(r"\b_(?:mm\d*|tile)_\w+", "".join(file.read_text() for file in files)))
    assert {"_mm512_dpbf16_ps", "_mm512_loadu_ps", "_mm_prefetch", "_tile_loadd"} <= used
    there = (KERNELS / "native" / "arm.h").read_text()
    assert [name for name in sorted(used) if f" {name}(" not in there] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the library, and room for calls, which are too large to be kept."""
    path = tmp_path_factory.mktemp("arm")
    compile_for_arm(path / "native.so")
    yield path
    shutil.rmtree(path)


def calls_of(folder: Path, name: str, *command: str) -> list[Path]:
    calls = folder / name
    calls.mkdir()
    record(calls, command)
    return sorted(calls.iterdir())


@NEEDS_ARM
@pytest.mark.full
@pytest.mark.timeout(3600)  # of all tests of native paths
def test_what_native_tests_compute_has_the_same_bits(folder: Path) -> None:
    tests = "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not tpu_aot", *ALL
    others = f"--deselect={OURS}/test_emulated.py", f"--deselect={OURS}/test_arm.py"
    calls = calls_of(folder, "calls", *tests, *others)
    assert sum(path.stat().st_size for path in calls) < MOST_BYTES
    counts, differences = repeat(folder / "native.so", calls)
    assert differences == []
    assert counts == Counter(path.name.partition("-")[0] for path in calls)
    assert set(counts) == set(FUNCTIONS)


@NEEDS_ARM
@pytest.mark.full
def test_strange_numbers_have_the_same_bits(folder: Path) -> None:
    calls = calls_of(folder, "strange", "-c", STRANGE)
    assert repeat(folder / "native.so", calls) == ({"mis_logits": 1}, [])


@NEEDS_ARM
@pytest.mark.full
def test_another_bit_is_noticed(folder: Path) -> None:
    (file,) = calls_of(folder, "changed", "-c", STRANGE)
    written = bytearray(file.read_bytes())
    size = (4 * 32 * 600).to_bytes(8, "little")  # stands before the logits
    logits = np.frombuffer(written, np.uint32, 32 * 600, written.rindex(size) + len(size))
    changed = int(np.flatnonzero(np.isfinite(logits.view(np.float32)))[7])
    logits[changed] ^= 1
    file.write_bytes(written)
    counts, differences = repeat(folder / "native.so", [file])
    assert counts == {"mis_logits": 1}
    assert differences == [f"{file}: result 0 has other bits at {changed}"]


@NEEDS_ARM
@pytest.mark.full
def test_a_call_that_is_not_whole_is_noticed(folder: Path) -> None:
    (file,) = calls_of(folder, "short", "-c", STRANGE)
    file.write_bytes(file.read_bytes()[:-1])
    counts, (difference,) = repeat(folder / "native.so", [file])
    assert counts == {}
    assert difference.endswith("the file is not whole")
