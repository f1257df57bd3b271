"""The walk of the TPU kernel over chunks: which are computed together, which states are kept and fetched."""

import numpy as np
import pytest

from mis_kernels import CARRIED, EMPTY, NOWHERE, Chunks
from mis_kernels.backends.tpu.chunk_walk import WalkCounts, count_walk

Listed = tuple[int, int, int]
"""Rows of a chunk, what it reads, what it writes."""

QUERY = [(64, EMPTY, NOWHERE), (20, CARRIED, 5)]


def walked(entries: list[Listed], slots: int = NOWHERE) -> WalkCounts:
    """Walk over chunks that are listed before others, which do not count."""
    lens, reads, writes = np.array([*entries, (9, EMPTY, NOWHERE), (9, 7, 7)], np.int32).T
    return count_walk(Chunks(lens, lens, reads, writes, np.array(len(entries), np.int32)), slots)


@pytest.mark.parametrize(
    ("entries", "counts"),
    [
        ([], (0, 0, 0)),
        (QUERY, (2, 2, 0)),
        ([(64, EMPTY, NOWHERE)] * 2, (2, 0, 0)),
        ([(20, 5, NOWHERE), (32, 5, NOWHERE)], (1, 0, 1)),
        ([(20, 5, NOWHERE), (33, 5, NOWHERE)], (2, 0, 1)),  # too many rows
        ([(20, 5, NOWHERE)] * 5, (3, 0, 1)),
        ([(20, 5, NOWHERE), (20, 4, NOWHERE)], (2, 0, 2)),  # different states
        ([(20, EMPTY, NOWHERE)] * 2, (1, 0, 0)),
        ([(20, 5, 6), (20, 5, NOWHERE)], (2, 1, 1)),  # a state that is stored
        ([(20, 5, 5), (20, 5, NOWHERE)], (2, 1, 2)),  # and read again
        ([*QUERY, *[(20, 5, NOWHERE)] * 4], (4, 2, 1)),
    ],
)
def test_blocks_states_and_fetches_are_those_of_the_walk(entries: list[Listed], counts: tuple[int, int, int]) -> None:
    assert walked(entries) == counts


def test_a_write_past_the_last_slot_keeps_no_state() -> None:
    assert walked([(20, 1, 8)] * 2, slots=8) == (1, 0, 1)
    assert walked([(20, 1, 7)] * 2, slots=8) == (2, 2, 1)
