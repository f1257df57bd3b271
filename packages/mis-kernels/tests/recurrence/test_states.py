"""Where states come from and go to: forks, chains, sequences in several calls; and the bits that all of these keep."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_cases import ON_CPU
from mis_kernels import CARRIED, CHUNK, EMPTY, NOWHERE, RecurrentStates
from mis_testing.bits import assert_bits_equal
from recurrent_cases import (
    SHAPE,
    SLOTS,
    Entry,
    Rows,
    assert_close,
    computed,
    expected,
    listed,
    rows_of,
    segment,
    states_of,
)

TOKENS = 256


def alone(rows: Rows, read: int = EMPTY, backend: str = "xla") -> tuple[np.ndarray, RecurrentStates]:
    """Compute a sequence at the beginning of a step that has nothing else; return its rows, and its state."""
    length, step = len(rows.inputs), Rows(*(np.zeros((TOKENS, x.shape[1]), np.float32) for x in rows))
    for whole, own in zip(step, rows, strict=True):
        whole[:length] = own
    found, after = computed(step, segment(0, length, read, 0), backend=backend)
    return found[:length], state_of(after, 0)


def state_of(states: RecurrentStates, slot: int) -> RecurrentStates:
    return RecurrentStates(*(x[slot] for x in states))


@pytest.mark.parametrize("backend", ON_CPU)
def test_items_start_from_a_slot_filled_in_the_same_call(backend: str) -> None:
    step, items = rows_of(TOKENS), [(100, 20), (120, 1), (121, 66), (190, 3)]
    before = states_of()
    entries = [*segment(0, 100, EMPTY, 3), *(entry for item in items for entry in segment(*item, 3))]
    found, after = computed(step, entries, before, backend)
    for first, length in items:
        joined = step.at(np.r_[0:100, first : first + length])
        assert_close(found[first : first + length], expected(joined).found[100:])
    others = [slot for slot in range(SLOTS) if slot != 3]
    for slots, old in zip(after, before, strict=True):
        assert_bits_equal(slots[others], np.asarray(old)[others])


@pytest.mark.parametrize("backend", ON_CPU)
def test_successive_chunks_may_read_and_write_one_slot(backend: str) -> None:
    step = rows_of(TOKENS)
    entries = [(0, 10, EMPTY, 1), (30, 64, 1, 1), (10, 5, EMPTY, 2), (94, 7, 1, 1)]
    found, after = computed(step, entries, backend=backend)
    wanted = expected(step.at(np.r_[0:10, 30:101]))
    assert_close(found[np.r_[0:10, 30:101]], wanted.found)
    assert_close(after.memory[1], wanted.memory)
    np.testing.assert_array_equal(after.inputs[1], wanted.inputs)


@pytest.mark.parametrize("backend", ON_CPU)
def test_a_sequence_in_several_calls_keeps_its_bits(backend: str) -> None:
    rows = rows_of(200)
    whole, state = alone(rows, 2, backend)
    states, parts = states_of(), []
    for first, last in ((0, 64), (64, 192), (192, 200)):
        part = rows_of(TOKENS, seed=first)
        for x, own in zip(part, rows.at(slice(first, last)), strict=True):
            x[17 : 17 + last - first] = own
        found, states = computed(part, segment(17, last - first, 2 if first == 0 else 5, 5), states, backend)
        parts.append(found[17 : 17 + last - first])
    assert_bits_equal(np.concatenate(parts), whole)
    for one, other in zip(state_of(states, 5), state, strict=True):
        assert_bits_equal(one, other)


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("tokens", [65, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 5, 64, 200, 1000))])
def test_steps_of_any_size_give_the_same_bits(tokens: int, backend: str) -> None:
    length = min(tokens, 70)
    rows = rows_of(tokens).at(slice(tokens - length, tokens))
    found, _ = computed(rows_of(tokens), segment(tokens - length, length), backend=backend)
    assert_bits_equal(found[tokens - length :], alone(rows, backend=backend)[0])
    assert found.shape == (tokens, SHAPE.value_heads, SHAPE.value_dim)


@pytest.mark.parametrize("backend", ON_CPU)
def test_a_step_without_chunks_changes_nothing(backend: str) -> None:
    before = states_of()
    found, after = computed(rows_of(TOKENS), [], before, backend)
    assert not found.any()
    for slots, old in zip(after, before, strict=True):
        assert_bits_equal(slots, np.asarray(old))


@pytest.mark.parametrize("backend", ON_CPU)
def test_what_no_chunk_has_may_be_nan(backend: str) -> None:
    rows, step = rows_of(20), rows_of(TOKENS)
    for whole, own in zip(step, rows, strict=True):
        whole[:] = np.nan
        whole[50:70] = own
    states = RecurrentStates(*(x.at[:2].set(jnp.nan) for x in states_of()))
    found, after = computed(step, segment(50, 20, EMPTY, 1), states, backend)
    wanted, state = alone(rows, backend=backend)
    assert_bits_equal(found[50:70], wanted)
    for one, other in zip(state_of(after, 1), state, strict=True):
        assert_bits_equal(one, other)
    assert np.isnan(after.memory[0]).all()


def test_chunks_of_a_layer_are_shifted_and_what_is_no_slot_stays() -> None:
    chunks = listed([(0, 1, CARRIED, NOWHERE), (1, 1, EMPTY, 4), (2, 1, 0, 0)], room=3).shift(10)
    assert np.asarray(chunks.reads).tolist() == [CARRIED, EMPTY, 10]
    assert np.asarray(chunks.writes).tolist() == [NOWHERE, 14, 10]
    assert np.asarray(chunks.rows).tolist() == [0, 1, 2]


@st.composite
def packings(draw: st.DrawFn) -> tuple[list[tuple[int, int, int, int]], int]:
    """Draw segments as (first row, rows, slot, seed), in some order of rows and another of computation."""
    lens = draw(st.lists(st.integers(1, 90), min_size=1, max_size=5))
    gaps = draw(st.lists(st.integers(0, 12), min_size=len(lens), max_size=len(lens)))
    drawn, row = [], 0
    for number, (length, gap) in enumerate(zip(lens, gaps, strict=True)):
        if row + gap + length <= TOKENS:
            drawn.append((row + gap, length, draw(st.sampled_from([EMPTY, 0, 3])), number + 1))
            row += gap + length
    return draw(st.permutations(drawn)), draw(st.integers(0, 99))


@pytest.mark.parametrize("backend", ON_CPU)
@given(packing=packings())
def test_a_segment_has_the_same_bits_wherever_it_lies(
    backend: str, packing: tuple[list[tuple[int, int, int, int]], int]
) -> None:
    segments, seed = packing
    step, entries = rows_of(TOKENS, seed=100 + seed), []
    for number, (first, length, slot, own) in enumerate(segments):
        for whole, rows in zip(step, rows_of(length, seed=own), strict=True):
            whole[first : first + length] = rows
        entries += segment(first, length, slot, 4 if number == 0 else NOWHERE)
    found, after = computed(step, entries, backend=backend)
    for number, (first, length, slot, own) in enumerate(segments):
        wanted, state = alone(rows_of(length, seed=own), slot, backend)
        assert_bits_equal(found[first : first + length], wanted)
        if number == 0:
            for one, other in zip(state_of(after, 4), state, strict=True):
                assert_bits_equal(one, other)


@st.composite
def lists(draw: st.DrawFn) -> list[Entry]:
    """Draw chunks whose rows follow each other, in some order of computation; slots are read and written at random."""
    lens = draw(st.lists(st.integers(1, CHUNK), min_size=1, max_size=8))
    firsts = np.cumsum([0, *lens]).tolist()
    places = [place for place in zip(firsts, lens, strict=False) if sum(place) <= TOKENS]
    reads, writes = st.sampled_from([EMPTY, CARRIED, 0, 1, 2]), st.sampled_from([NOWHERE, 0, 1])
    return [(*place, draw(reads), draw(writes)) for place in draw(st.permutations(places))]


@pytest.mark.parametrize("backend", ON_CPU)
@given(entries=lists())
def test_lists_of_any_chunks_give_what_the_reference_gives(backend: str, entries: list[Entry]) -> None:
    step = rows_of(TOKENS, seed=len(entries))
    found, after = computed(step, entries, backend=backend)
    wanted, state = computed(step, entries, backend="reference")
    assert_close(found, wanted)
    assert_close(after.memory, state.memory)
    np.testing.assert_array_equal(after.inputs, state.inputs)


def late(entries: list[Entry]) -> list[Entry]:
    """Have the last chunk start from the state before the one that it should start from."""
    first, length, _, write = entries[-1]
    return [(*entries[0][:3], 1), *entries[1:-1], (first, length, 1, write)]


def swapped(x: np.ndarray) -> np.ndarray:
    return np.roll(x, 1, axis=1)


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("fault", ["none", "late state", "no inputs before", "swapped heads", "no decay", "row missed"])
def test_planted_faults_are_found(fault: str, backend: str) -> None:
    rows, entries, states = rows_of(3 * CHUNK, strongest=0.1), segment(0, 3 * CHUNK, 2), states_of()
    wanted = expected(rows, start=state_of(states, 2)).found
    if fault == "late state":
        entries = late(entries)
    if fault == "no inputs before":
        states = states._replace(inputs=jnp.zeros_like(states.inputs))
    changed = {
        "no decay": rows._replace(decay=np.zeros_like(rows.decay)),
        "row missed": rows._replace(rate=np.where(np.arange(3 * CHUNK)[:, None] == 70, 0, rows.rate)),
        "swapped heads": rows._replace(rate=swapped(rows.rate), decay=swapped(rows.decay)),
    }
    found, _ = computed(changed.get(fault, rows), entries, states, backend)
    if fault == "none":
        assert_close(found, wanted)
        return
    with pytest.raises(AssertionError):
        assert_close(found, wanted)
