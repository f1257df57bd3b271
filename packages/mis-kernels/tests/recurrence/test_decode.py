"""The recurrent form, a token of each of several sequences, against transformers' rule and against itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernel_cases import on_host
from mis_kernels import NOWHERE, RecurrentShape, RecurrentStates, gated_delta_decode
from mis_testing.bits import assert_bits_equal
from recurrent_cases import SHAPE, SLOTS, Rows, assert_close, expected, kernel_of, rows_of, states_of

decode = jax.jit(gated_delta_decode, static_argnames=("shape", "backend"))


def decoded(
    rows: Rows, slots: list[int], states: RecurrentStates, shape: RecurrentShape = SHAPE, backend: str = "xla"
) -> tuple[np.ndarray, RecurrentStates]:
    """Return what a token of each sequence gives, in host memory."""
    with on_host():
        found, states = decode(
            *map(jnp.asarray, rows), kernel_of(shape), states, np.array(slots, np.int32), shape=shape, backend=backend
        )
    return np.asarray(found), states


@pytest.mark.parametrize("backend", ["xla", "reference"])
def test_columns_behind_the_inputs_are_not_read(backend: str) -> None:
    rows = rows_of(2)
    wide = rows._replace(inputs=np.pad(rows.inputs, ((0, 0), (0, 16)), constant_values=np.nan))
    found, after = decoded(wide, [4, 0], states_of(), backend=backend)
    wanted, states = decoded(rows, [4, 0], states_of(), backend=backend)
    for one, other in ((found, wanted), *zip(after, states, strict=True)):
        assert_bits_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("backend", ["xla", "reference"])
@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        RecurrentShape(3, 9, 16, 48, 2),
        pytest.param(RecurrentShape(16, 32, 128, 128, 4), marks=pytest.mark.full),
    ],
)
def test_sequences_go_on_token_by_token(shape: RecurrentShape, backend: str) -> None:
    slots, tokens = [4, 0, 3], 9
    sequences = [rows_of(tokens, shape, seed=number) for number in range(len(slots))]
    before = states = states_of(shape)
    parts = []
    for token in range(tokens):
        step = Rows(*(np.stack(parts) for parts in zip(*(each.at(token) for each in sequences), strict=True)))
        found, states = decoded(step, slots, states, shape, backend)
        parts.append(found)
    for number, (slot, rows) in enumerate(zip(slots, sequences, strict=True)):
        wanted = expected(rows, shape, RecurrentStates(*(x[slot] for x in before)))
        assert_close(np.stack(parts)[:, number], wanted.found)
        assert_close(np.asarray(states.memory[slot]), wanted.memory)
        np.testing.assert_array_equal(states.inputs[slot], wanted.inputs)


def test_a_row_has_the_same_bits_among_any_others() -> None:
    rows, states = rows_of(SLOTS), states_of()
    together, after = decoded(rows, [*range(SLOTS)], states)
    for slot in range(SLOTS):
        alone, own = decoded(rows.at(slice(slot, slot + 1)), [slot], states)
        assert_bits_equal(alone[0], together[slot])
        for one, other in zip(own, after, strict=True):
            assert_bits_equal(np.asarray(one[slot]), np.asarray(other[slot]))


def test_rows_that_nobody_reads_are_zero_and_change_no_state() -> None:
    states = states_of()
    found, after = decoded(rows_of(4), [2, NOWHERE, NOWHERE, NOWHERE], states)
    assert found[0].any()
    assert not found[1:].any()
    others = [slot for slot in range(SLOTS) if slot != 2]
    for one, other in zip(after, states, strict=True):
        assert_bits_equal(np.asarray(one)[others], np.asarray(other)[others])


def test_slots_of_another_length_are_named() -> None:
    with pytest.raises(ValueError, match=r"slots: expected \[4\], got \[3\]"):
        decoded(rows_of(4), [0, 1, 2], states_of())
