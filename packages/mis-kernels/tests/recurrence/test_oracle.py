"""Recurrent layers against PyTorch: transformers' convolution, and both of its gated delta rules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernel_cases import ON_CPU, on_host
from mis_kernels import EMPTY, RecurrentShape, RecurrentStates, gated_delta
from mis_kernels.backends import ANY_HEADS, choose
from mis_testing.bits import assert_bits_equal
from mis_testing.grids import part
from mis_testing.tolerances import rounding
from recurrent_cases import (
    LIMIT,
    SHAPE,
    Rows,
    apply,
    assert_close,
    computed,
    expected,
    kernel_of,
    listed,
    rows_of,
    segment,
    states_of,
)

TOKENS, SLOT, TARGET = 256, 2, 4
LENGTHS = (1, 2, 3, 4, 20, 32, 33, 63, 64, 65, 96, 97, 128, 200)
GRID = [(length, rule, read) for length in LENGTHS for rule in ("recurrent", "chunk") for read in (EMPTY, SLOT)]
GROUPED, OF_0_8B = RecurrentShape(3, 9, 16, 48, 2), RecurrentShape(16, 16, 128, 128, 4)


def assert_is_transformers(
    rows: Rows, rule: str = "recurrent", read: int = EMPTY, backend: str = "xla", shape: RecurrentShape = SHAPE
) -> None:
    """Compute a sequence in the middle of a step, and compare its rows and the state after it."""
    length, first = len(rows.inputs), (TOKENS - len(rows.inputs)) // 2
    step = rows_of(TOKENS, shape, seed=1)
    for whole, own in zip(step, rows, strict=True):
        whole[first : first + length] = own
    states = states_of(shape)
    found, after = computed(step, segment(first, length, read, TARGET), states, backend, shape)
    start = None if read == EMPTY else RecurrentStates(*(x[read] for x in states))
    wanted = expected(rows, shape, start, rule)
    assert_close(found[first : first + length], wanted.found)
    assert_close(after.memory[TARGET], wanted.memory)
    np.testing.assert_array_equal(after.inputs[TARGET], wanted.inputs)
    assert not found[:first].any()
    assert not found[first + length :].any()


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("point", part(GRID))
def test_equals_transformers(point: tuple[int, str, int], backend: str) -> None:
    length, rule, read = point
    # Its chunks take differences of sums of logarithms, and so lose digits where decays are strong.
    rows = rows_of(length, strongest=1 if rule == "chunk" else 20)
    assert_is_transformers(rows, rule, read, backend)


@pytest.mark.parametrize("read", [EMPTY, SLOT])
def test_the_reference_equals_transformers(read: int) -> None:
    assert_is_transformers(rows_of(70), "recurrent", read, "reference")


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize(
    "shape",
    [
        RecurrentShape(1, 1, 128, 128, 4),
        GROUPED,
        pytest.param(OF_0_8B, marks=pytest.mark.full),
        pytest.param(OF_0_8B._replace(value_heads=32), marks=pytest.mark.full),
        pytest.param(RecurrentShape(1, 2, 32, 16, 1), marks=pytest.mark.full, id="no row before a row's own"),
        pytest.param(RecurrentShape(1, 2, 32, 16, 9), marks=pytest.mark.full, id="more taps than rows of a chunk"),
        pytest.param(RecurrentShape(1, 2, 24, 8, 4), marks=pytest.mark.full, id="no whole vectors"),
    ],
)
def test_layers_of_other_shapes_equal_transformers(shape: RecurrentShape, backend: str) -> None:
    assert_is_transformers(rows_of(130, shape), read=SLOT, shape=shape, backend=backend)


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize(
    "decay", [0.0, -1e30, *(pytest.param(n, marks=pytest.mark.full) for n in (-1e-4, -1.0, -20.0, -90.0))]
)
def test_decays_of_any_size(decay: float, backend: str) -> None:
    assert_is_transformers(rows_of(150, decay=decay), read=SLOT, backend=backend)


@pytest.mark.parametrize("backend", ON_CPU)
def test_memory_that_is_lost_at_once(backend: str) -> None:
    """The log of a decay that is nothing is minus infinity; transformers' chunks give NaN of it."""
    rows = rows_of(150)
    rows.decay[::7] = -np.inf
    assert_is_transformers(rows, read=SLOT, backend=backend)


@pytest.mark.parametrize("backend", ON_CPU)
def test_what_follows_a_strong_decay_keeps_its_digits(backend: str) -> None:
    rows = rows_of(128, decay=-1e-3)
    rows.decay[3::64] = -100
    assert_is_transformers(rows, backend=backend)


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("rate", [1.0, 0.999, 0.5])
def test_one_token_again_and_again(rate: float, backend: str) -> None:
    """All keys are equal, nothing fades: the inverse is small, but powers of the system's matrix are not."""
    rows = rows_of(200, decay=0.0)
    rows.inputs[:] = rows.inputs[0]
    rows.rate[:] = rate
    assert_is_transformers(rows, read=SLOT, backend=backend)


@pytest.mark.full
@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("repeated", [False, True], ids=["other tokens", "one token"])
def test_a_text_of_5000_tokens_keeps_its_digits(repeated: bool, backend: str) -> None:
    rows = rows_of(5000, decay=-1e-4)
    if repeated:
        rows.inputs[:] = rows.inputs[0]
    states = RecurrentStates.zeros(1, SHAPE)
    with on_host():
        chunks = listed(segment(0, 5000, EMPTY, 0), room=80)
        chosen = choose(ANY_HEADS, "bfloat16", backend)
        found, after = apply(*map(jnp.asarray, rows), kernel_of(), states, chunks, shape=SHAPE, backend=chosen)
    wanted = expected(rows, rule="chunk")  # the other rounds memory 5,000 times
    assert_close(np.asarray(found), wanted.found)
    assert_close(np.asarray(after.memory[0]), wanted.memory)


@pytest.mark.parametrize("backend", ON_CPU)
def test_rows_in_bfloat16_are_computed_in_float32(backend: str) -> None:
    rows = rows_of(100)
    rounded = jnp.asarray(rows.inputs, jnp.bfloat16)
    with on_host():
        found, _ = apply(
            rounded, jnp.asarray(rows.decay), jnp.asarray(rows.rate), kernel_of(), states_of(),
            listed(segment(0, 100)), shape=SHAPE, backend=backend,
        )  # fmt: skip
    wanted = expected(rows._replace(inputs=np.asarray(rounded, np.float32))).found
    assert found.dtype == jnp.float32
    assert_close(np.asarray(found), wanted)


@pytest.mark.parametrize("backend", [*ON_CPU, "reference"])
def test_columns_behind_the_inputs_are_not_read(backend: str) -> None:
    rows, entries = rows_of(40), segment(0, 40, SLOT, TARGET)
    wide = rows._replace(inputs=np.pad(rows.inputs, ((0, 0), (0, 16)), constant_values=np.nan))
    for one, other in zip(*(jax.tree.leaves(computed(x, entries, None, backend)) for x in (wide, rows)), strict=True):
        assert_bits_equal(one, other)


def test_the_limit_is_about_a_hundred_thousandth() -> None:
    assert rounding("float32", terms=1) < LIMIT < 1e-5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shape": SHAPE._replace(value_dim=32)}, r"inputs: expected \[64, 256\], got \[64, 192\]"),
        ({"chunks": listed([])._replace(lens=np.zeros(3, np.int32))}, r"chunks.lens: expected \[16\], got \[3\]"),
        ({"kernel": jnp.zeros((192, 3))}, r"kernel: expected \[192, 4\], got \[192, 3\]"),
        ({"states": RecurrentStates.zeros(2, SHAPE._replace(taps=3))}, r"states.inputs: expected \[2, 3, 192\]"),
        ({"shape": SHAPE._replace(key_heads=3)}, "shape: 4 value heads are not a multiple of 3 key heads"),
        ({"backend": "abacus"}, "'abacus' is unknown"),
    ],
)
def test_shapes_that_do_not_fit_are_named(changed: dict, message: str) -> None:
    arguments = dict(zip(("inputs", "decay", "rate"), map(jnp.asarray, rows_of(64)), strict=True))
    arguments |= {"kernel": jnp.asarray(kernel_of()), "states": states_of(), "chunks": listed([]), "shape": SHAPE}
    with pytest.raises(ValueError, match=message):
        gated_delta(**(arguments | changed))
