"""The native product with a head: against NumPy, and the same bits of a row beside any others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernel_cases import NEEDS_NATIVE
from mis_kernels import to_bits
from mis_kernels.backends import ANY_HEADS, Backend
from mis_kernels.backends.native.backend import NativeBackend
from mis_kernels.backends.native.calls import fits_logits, logits
from mis_kernels.backends.xla.backend import XlaCpuBackend
from mis_testing.tolerances import rounding

MOST = 70


def arguments(vocab: int, embed: int) -> tuple[jax.Array, jax.Array]:
    random = np.random.default_rng((vocab, embed))
    shapes = (MOST, embed), (vocab, embed)
    hidden, head = (jnp.asarray(random.standard_normal(shape), jnp.bfloat16) for shape in shapes)
    return hidden, head


def exact(hidden: jax.Array, head: jax.Array) -> np.ndarray:
    return np.asarray(hidden, np.float64) @ np.asarray(head, np.float64).T


def of_sums(embed: int) -> float:
    """How far two orders of adding a logit's products may lie apart; logits reach five standard deviations."""
    return rounding("float32", terms=embed, magnitude=5 * embed**0.5)


@NEEDS_NATIVE
@pytest.mark.parametrize(("vocab", "embed"), [(1, 32), (5, 64), (192, 96), (391, 1024)], ids=str)
def test_logits_are_those_of_numpy(vocab: int, embed: int) -> None:
    """Vocabularies of one token, less than a block, one unit of work, and three that end within a block."""
    given = arguments(vocab, embed)
    found = np.asarray(logits(*given))
    np.testing.assert_allclose(found, exact(*given), atol=of_sums(embed), rtol=0)
    as_bits = logits(given[0], to_bits(given[1]))
    np.testing.assert_array_equal(np.asarray(as_bits).view(np.uint32), found.view(np.uint32))


@NEEDS_NATIVE
def test_a_rows_bits_do_not_depend_on_how_many_there_are() -> None:
    hidden, head = arguments(391, 96)
    whole = np.asarray(logits(hidden, head)).view(np.uint32)
    for count in (1, 2, 3, 4, 5, 16, 33, 69):
        for first in (0, MOST - count):
            some = np.asarray(logits(hidden[first : first + count], head)).view(np.uint32)
            np.testing.assert_array_equal(some, whole[first : first + count])


@pytest.mark.parametrize(
    ("backend", "embed"),
    [
        (XlaCpuBackend, 48),
        (XlaCpuBackend, 64),
        (NativeBackend, 48),
        pytest.param(NativeBackend, 64, marks=NEEDS_NATIVE),
    ],
)
def test_backends_agree_about_logits(backend: type[Backend], embed: int) -> None:
    """Plain XLA reads the head in pieces, of which the last overlaps; a width that is not native is XLA's."""
    hidden, head = arguments(8195, embed)
    assert fits_logits(embed) == (embed == 64)
    found = np.asarray(jax.jit(backend(ANY_HEADS, "bfloat16").logits)(hidden, to_bits(head)))
    np.testing.assert_allclose(found, exact(hidden, head), atol=of_sums(embed), rtol=0)
