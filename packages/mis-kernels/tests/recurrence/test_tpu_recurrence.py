"""The TPU kernel of recurrent layers: it agrees with the token-by-token reference, has no races, and keeps bits."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from kernel_cases import EMULATED, SMALL
from mis_kernels import CARRIED, CHUNK, EMPTY, NOWHERE, Chunks, RecurrentShape, RecurrentStates, gated_delta
from mis_kernels.backends import ANY_HEADS
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.recurrence import step_heads
from mis_kernels.target import compiling_for
from mis_testing.bits import assert_bits_equal
from mis_testing.tolerances import rounding
from recurrent_cases import SLOTS, Entry, Rows, computed, kernel_of, listed, rows_of, segment, states_of

TOKENS = 256
SHAPE = RecurrentShape(key_heads=3, value_heads=6, key_dim=128, value_dim=128, taps=4)
"""Three grid steps, in each of which two heads share a key head."""
SHAPES = [
    RecurrentShape(1, 1, 128, 128, 4),
    RecurrentShape(5, 5, 128, 128, 2),
    RecurrentShape(8, 8, 128, 128, 4),
    RecurrentShape(3, 3, 128, 128, 3),
]
BACKEND = TpuBackend(ANY_HEADS, "float32", SMALL)
LIMIT = rounding("float32", terms=CHUNK + SHAPE.key_dim, chained=4)
RACES = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
SERVED = [
    *segment(0, 70, EMPTY, 3),  # a query, and items that read what it leaves
    *[(first, length, 3, NOWHERE) for first, length in ((70, 20), (90, 32), (122, 1), (123, 33), (156, 7))],
    *segment(170, 66, 3, 3),  # another query goes on from there, and leaves its own
    (240, 5, 3, NOWHERE),
    (250, 6, 1, NOWHERE),
]
"""A step as an engine plans it."""


@partial(jax.jit, static_argnames=("shape", "interpret"), compiler_options=EMULATED)
def _apply(
    inputs: jax.Array,
    decay: jax.Array,
    rate: jax.Array,
    kernel: jax.Array,
    states: RecurrentStates,
    chunks: Chunks,
    shape: RecurrentShape,
    interpret: bool | pltpu.InterpretParams,
) -> tuple[jax.Array, RecurrentStates]:
    with compiling_for(interpret=interpret, bounds_checks=True):
        return gated_delta(inputs, decay, rate, kernel, states, chunks, shape=shape, backend=BACKEND)


def by_kernel(
    rows: Rows,
    entries: Sequence[Entry],
    interpret: bool | pltpu.InterpretParams,
    shape: RecurrentShape = SHAPE,
    states: RecurrentStates | None = None,
) -> tuple[np.ndarray, RecurrentStates]:
    """Return what the kernel gives, in host memory; behind the inputs are columns that it does not read."""
    states = states_of(shape) if states is None else states
    rows = rows._replace(inputs=jnp.pad(jnp.asarray(rows.inputs), ((0, 0), (0, 256)), constant_values=jnp.nan))
    found, states = _apply(*map(jnp.asarray, rows), kernel_of(shape), states, listed(entries), shape, interpret)
    return np.asarray(found), RecurrentStates(*map(np.asarray, states))


def program(shape: RecurrentShape) -> tuple[Callable, tuple]:
    """Return what tests of a shape have compiled, and arguments."""
    arguments = *map(jnp.asarray, rows_of(TOKENS, shape)), jnp.asarray(kernel_of(shape)), states_of(shape)
    return partial(gated_delta, shape=shape, backend=BACKEND), (*arguments, listed(SERVED))


def assert_agrees(
    rows: Rows,
    entries: Sequence[Entry],
    interpret: bool | pltpu.InterpretParams,
    shape: RecurrentShape = SHAPE,
) -> None:
    """Fail unless rows and all slots are as the reference has them; rows of no chunk are NaN before, and zero after."""
    assert step_heads(len(rows.inputs), rows.inputs.itemsize, shape) is not None
    is_own = np.zeros(len(rows.inputs), bool)
    for first, length, *_ in entries:
        is_own[first : first + length] = True
    given = Rows(*(np.where(is_own[:, None], x, np.nan).astype(x.dtype) for x in rows))
    found, after = by_kernel(given, entries, interpret, shape)
    wanted, states = computed(rows, entries, None, "reference", shape)
    assert not found[~is_own].any()
    for one, other in ((found, wanted), *zip(after, states, strict=True)):
        np.testing.assert_allclose(one, other, rtol=0, atol=LIMIT * np.abs(other).max())


def drawn(seed: int) -> list[Entry]:
    """Draw chunks of any length that read and write any slots, in another order than their rows."""
    random = np.random.default_rng(seed)
    places, row = [], int(random.integers(0, 9))
    while row < TOKENS and len(places) < 14:
        most = min(CHUNK, TOKENS - row)
        length = int(random.integers(1, most + 1) if random.random() < 0.5 else min(random.integers(1, 33), most))
        places.append((row, length))
        row += length + int(random.integers(0, 9) * random.integers(0, 2))
    reads = [int(random.choice([CARRIED, CARRIED, EMPTY, 0, 1, 1, 1])) for _ in places]
    writes = [int(random.choice([NOWHERE, NOWHERE, 0, 1, 5, SLOTS])) for _ in places]
    order = random.permutation(len(places))
    reads[0] = EMPTY
    return [(*places[at], read, write) for at, read, write in zip(order, reads, writes, strict=True)]


@pytest.mark.tpu
def test_a_step_as_it_is_served_agrees_with_the_reference(interpret: bool) -> None:
    assert_agrees(rows_of(TOKENS, SHAPE), SERVED, interpret)


@pytest.mark.tpu
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.full) for n in range(4, 40))])
def test_any_chunks_agree_with_the_reference(seed: int, interpret: bool) -> None:
    assert_agrees(rows_of(TOKENS, SHAPE, seed=seed), drawn(seed), interpret)


@pytest.mark.full
@pytest.mark.tpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layers_of_other_shapes_agree_with_the_reference(shape: RecurrentShape, interpret: bool) -> None:
    assert_agrees(rows_of(TOKENS, shape), SERVED, interpret, shape)


@pytest.mark.full
@pytest.mark.tpu
@pytest.mark.parametrize("tokens", [64, 4096])
def test_steps_of_other_sizes_agree_with_the_reference(tokens: int, interpret: bool) -> None:
    assert_agrees(rows_of(tokens, SHAPE), [*segment(tokens - 64, 40, 2, 1), (tokens - 9, 9, 1, NOWHERE)], interpret)


@pytest.mark.tpu
@pytest.mark.parametrize("rate", [1.0, *(pytest.param(n, marks=pytest.mark.full) for n in (0.999, 0.5))])
def test_one_token_again_and_again_agrees(rate: float, interpret: bool) -> None:
    """All keys are equal, nothing fades: powers of the system's matrix grow, its inverse does not."""
    rows = rows_of(TOKENS, SHAPE, decay=0.0)
    rows.inputs[:] = rows.inputs[0]
    rows.rate[:] = rate
    assert_agrees(rows, SERVED, interpret)


@pytest.mark.tpu
def test_strong_decays_agree_and_lose_no_digits_after_them(interpret: bool) -> None:
    rows = rows_of(TOKENS, SHAPE, decay=-1e-3)
    rows.decay[3::20] = -100
    rows.decay[7::50] = -np.inf
    assert_agrees(rows, SERVED, interpret)


@pytest.mark.full
@pytest.mark.tpu
def test_rows_in_bfloat16_are_computed_in_float32(interpret: bool) -> None:
    rows = rows_of(TOKENS, SHAPE)
    rounded = jnp.asarray(rows.inputs, jnp.bfloat16)
    found, _ = by_kernel(rows._replace(inputs=rounded), SERVED, interpret)
    wanted, _ = computed(rows._replace(inputs=np.asarray(rounded, np.float32)), SERVED, None, "reference", SHAPE)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=LIMIT * np.abs(wanted).max())


@pytest.mark.tpu
def test_an_items_bits_are_those_that_it_has_alone(interpret: bool) -> None:
    """Beside any others, in either window, in another order, and wherever its rows lie."""
    lens = (20, 32, 1, 33, 7, 31)
    items = [rows_of(length, SHAPE, seed=10 + length) for length in lens]

    def step(order: Sequence[int], gap: int) -> dict[int, np.ndarray]:
        whole, entries, row = rows_of(TOKENS, SHAPE, seed=gap), [], gap
        for number in order:
            for x, own in zip(whole, items[number], strict=True):
                x[row : row + lens[number]] = own
            entries.append((row, lens[number], 2, NOWHERE))
            row += lens[number] + gap
        found, _ = by_kernel(whole, entries, interpret)
        return {number: found[row : row + length] for number, (row, length, *_) in zip(order, entries, strict=True)}

    alone = {number: step([number], 0)[number] for number in range(len(lens))}
    for order, gap in ((range(6), 0), (range(5, -1, -1), 3), ((2, 0, 4, 1, 5, 3), 11)):
        for number, found in step(order, gap).items():
            assert_bits_equal(found, alone[number])
    items[0].inputs[5] += 1
    assert not np.array_equal(step([0], 0)[0], alone[0])


@pytest.mark.tpu
@pytest.mark.parametrize("fault", [np.nan, np.inf, 3e38])
def test_an_item_that_overflows_changes_no_other(fault: float, interpret: bool) -> None:
    """Zeros that one item has of another would be NaN in products; values of 3e38 overflow there."""
    rows, entries = rows_of(TOKENS, SHAPE), [(20 * number, 20, 2, NOWHERE) for number in range(5)]
    wanted, _ = by_kernel(rows, entries, interpret)
    for number in (1, 2):  # the second of a block, and the first of the next
        faulty = Rows(*(x.copy() for x in rows))
        faulty.inputs[20 * number + 5] = fault
        found, _ = by_kernel(faulty, entries, interpret)
        is_own = np.arange(TOKENS) // 20 == number
        assert_bits_equal(found[~is_own], wanted[~is_own])
        assert not np.array_equal(found[is_own], wanted[is_own])


@pytest.mark.tpu
def test_a_sequence_in_several_calls_keeps_its_bits(interpret: bool) -> None:
    rows = rows_of(TOKENS, SHAPE)
    whole, after = by_kernel(rows, segment(0, 200, 2, 1), interpret)
    states, parts = states_of(SHAPE), []
    for first, last in ((0, 64), (64, 192), (192, 200)):
        part = rows_of(TOKENS, SHAPE, seed=first)
        for x, own in zip(part, rows.at(slice(first, last)), strict=True):
            x[17 : 17 + last - first] = own
        entries = segment(17, last - first, 1 if first else 2, 1)
        found, states = by_kernel(part, entries, interpret, states=RecurrentStates(*map(jnp.asarray, states)))
        parts.append(found[17 : 17 + last - first])
    assert_bits_equal(np.concatenate(parts), whole[:200])
    for one, other in zip(states, after, strict=True):
        assert_bits_equal(one[1], other[1])


@pytest.mark.parametrize("seed", [None, *(pytest.param(n, marks=pytest.mark.full) for n in range(5))])
def test_no_races_and_nothing_uninitialised(seed: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    shape = RecurrentShape(1, 1, 128, 128, 4) if seed is None else RecurrentShape(5, 5, 128, 128, 4)
    assert_agrees(rows_of(TOKENS, shape), SERVED if seed is None else drawn(seed), RACES, shape)
    assert "RACE DETECTED" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tokens", "shape", "heads"),
    [
        (2048, RecurrentShape(16, 16, 128, 128, 4), 4),
        (2048, RecurrentShape(16, 32, 128, 128, 4), 4),
        (8192, RecurrentShape(16, 16, 128, 128, 4), 2),
        (2048, RecurrentShape(5, 5, 128, 128, 4), 1),
        (2048, RecurrentShape(16, 16, 64, 128, 4), None),
        (2048, RecurrentShape(2, 16, 128, 128, 4), None),
        (65536, RecurrentShape(16, 16, 128, 128, 4), None),
        (32, RecurrentShape(16, 16, 128, 128, 4), None),
    ],
)
def test_what_the_kernel_does_not_take_is_left_to_xla(tokens: int, shape: RecurrentShape, heads: int | None) -> None:
    assert step_heads(tokens, 2, shape) == heads
