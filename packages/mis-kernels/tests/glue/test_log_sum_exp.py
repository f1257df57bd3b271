"""The log-sum-exp of a TPU's kernel and of native logits against SciPy."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from kernel_cases import EMULATED, NEEDS_NATIVE, SMALL
from mis_kernels.backends import ANY_HEADS, Backend
from mis_kernels.backends.native.backend import NativeBackend
from mis_kernels.backends.native.calls import log_sum_exp
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.head import tpu_log_sum_exp
from mis_kernels.backends.xla.backend import XlaCpuBackend
from mis_kernels.target import compiling_for
from mis_testing.bits import assert_bits_equal
from mis_testing.grids import part
from mis_testing.tolerances import rounding

ROWS, EMBED = 128, 256
CAP = 12.0  # of logits whose standard deviation is 16


def arguments(vocab: int, dtype: str, embed: int = EMBED, scale: float = 1.0) -> tuple[jax.Array, jax.Array]:
    random = np.random.default_rng(vocab)
    hidden, head = random.normal(size=(ROWS, embed)) * scale, random.normal(size=(vocab, embed))
    return jnp.asarray(hidden, dtype), jnp.asarray(head, dtype)


@partial(jax.jit, static_argnames=("interpret", "cap"), compiler_options=EMULATED)
def _computed(hidden: jax.Array, head: jax.Array, interpret: bool, cap: float | None) -> jax.Array:
    with compiling_for(interpret=interpret):
        return tpu_log_sum_exp(hidden, head, cap)


def computed(hidden: jax.Array, head: jax.Array, interpret: bool, cap: float | None = None) -> np.ndarray:
    return np.asarray(_computed(hidden, head, interpret, cap))


def by_scipy(hidden: jax.Array, head: jax.Array, cap: float | None = None) -> np.ndarray:
    wide = (np.asarray(x, np.float64) for x in (hidden, head))
    first, second = wide
    logits = first @ second.T
    return logsumexp(logits if cap is None else cap * np.tanh(logits / cap), axis=1)


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    """Compare within what orders of adding a logit's products, and then as many exponentials again, may differ by."""
    atol = rounding("float32", terms=EMBED, chained=2, magnitude=np.abs(wanted).max())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


@pytest.mark.tpu
@pytest.mark.parametrize(
    "point", part([*itertools.product([256, 257, 4096, 4100, 9000], ["bfloat16", "float32"])], one_in=2)
)
def test_it_is_that_of_scipy(point: tuple[int, str], interpret: bool) -> None:
    """Vocabularies of one piece, one token more, whole blocks, and blocks that end within and behind a piece."""
    vocab, dtype = point
    given = arguments(vocab, dtype)
    assert_close(computed(*given, interpret), by_scipy(*given))


@pytest.mark.tpu
@pytest.mark.parametrize("scale", [0.0, 1e-3, 300.0], ids=["equal logits", "flat", "one stands out"])
def test_logits_of_any_size_neither_overflow_nor_vanish(scale: float, interpret: bool) -> None:
    given = arguments(9000, "bfloat16", scale=scale)
    found = computed(*given, interpret)
    assert np.all(np.isfinite(found))
    assert_close(found, by_scipy(*given))


@pytest.mark.tpu
@pytest.mark.parametrize("vocab", [257, pytest.param(9000, marks=pytest.mark.full)])
def test_capped_logits_are_summed(vocab: int, interpret: bool) -> None:
    """Logits reach five times the cap; what is behind the vocabulary's end counts nothing."""
    given = arguments(vocab, "bfloat16")
    found = computed(*given, interpret, CAP)
    assert_close(found, by_scipy(*given, CAP))
    assert np.all(np.abs(found - by_scipy(*given)) > 1)


@pytest.mark.tpu
def test_logits_far_below_zero_count(interpret: bool) -> None:
    hidden, head = (jnp.ones((ROWS, EMBED), "bfloat16"), jnp.full((300, EMBED), -64.0, "bfloat16"))
    assert_close(computed(hidden, head, interpret), np.full(ROWS, -64.0 * EMBED + np.log(300)))


@pytest.mark.tpu
def test_a_rows_bits_do_not_depend_on_its_neighbours(interpret: bool) -> None:
    hidden, head = arguments(4100, "bfloat16")
    other = hidden.at[1:].set(jnp.nan)
    assert_bits_equal(computed(other, head, interpret)[0], computed(hidden, head, interpret)[0])


def test_what_does_not_fit_is_refused_and_left_to_others() -> None:
    backend = TpuBackend(ANY_HEADS, "bfloat16", SMALL)

    def fuses(backend: Backend, rows: int, vocab: int, embed: int) -> bool:
        hidden, head = (jax.ShapeDtypeStruct((length, embed), jnp.bfloat16) for length in (rows, vocab))
        return all(
            jax.eval_shape(partial(backend.log_sum_exp, cap=cap), hidden, head) is not None for cap in (None, CAP)
        )

    assert fuses(backend, 256, 151_936, 1024)
    assert not fuses(backend, 64, 151_936, 1024)
    assert not fuses(backend, 256, 1, 1024)
    assert not fuses(backend, 256, 49_152, 576)
    with pytest.raises(ValueError, match="64 rows of 256 and 300 tokens"):
        tpu_log_sum_exp(jnp.ones((64, EMBED)), jnp.ones((300, EMBED)))
    assert not fuses(XlaCpuBackend(ANY_HEADS, "bfloat16"), 256, 151_936, 1024)


def natively(hidden: jax.Array, head: jax.Array, cap: float | None = None) -> np.ndarray:
    return np.asarray(jax.jit(log_sum_exp, static_argnames="cap")(hidden, head, cap=cap))


@NEEDS_NATIVE
@pytest.mark.parametrize("scale", [0.0, 1.0, 300.0], ids=["equal logits", "usual", "one stands out"])
def test_that_of_native_logits_is_that_of_scipy(scale: float) -> None:
    given = arguments(9001, "bfloat16", scale=scale)
    assert_close(natively(*given), by_scipy(*given))


@NEEDS_NATIVE
def test_that_of_capped_native_logits_is_that_of_scipy() -> None:
    given = arguments(9001, "bfloat16")
    assert_close(natively(*given, CAP), by_scipy(*given, CAP))


@NEEDS_NATIVE
def test_that_of_native_logits_has_the_same_bits_beside_any_rows() -> None:
    hidden, head = arguments(4100, "bfloat16")
    for cap in (None, CAP):
        assert_bits_equal(natively(hidden.at[1:].set(jnp.nan), head, cap)[0], natively(hidden, head, cap)[0])


@NEEDS_NATIVE
def test_rows_of_zeros_that_fill_have_logits_of_zero() -> None:
    """The rows before them have the bits that they have alone, whatever their number."""
    hidden, head = arguments(4100, "bfloat16")
    whole = natively(hidden, head)
    for live in (0, 1, 20, 33, 127):
        found = natively(hidden.at[live:].set(0), head)
        assert_bits_equal(found[:live], whole[:live])
        assert_close(found[live:], np.full(ROWS - live, np.log(4100)))


@NEEDS_NATIVE
def test_heads_that_native_logits_do_not_take_are_left_to_others() -> None:
    backend = NativeBackend(ANY_HEADS, "bfloat16")
    assert backend.log_sum_exp(*arguments(300, "bfloat16", embed=64)) is not None
    assert backend.log_sum_exp_rows == backend.normalised_rows == 128
    for vocab, embed, dtype in ((1, 64, "bfloat16"), (300, 48, "bfloat16"), (300, 64, "float32")):
        assert backend.log_sum_exp(*arguments(vocab, dtype, embed=embed)) is None
