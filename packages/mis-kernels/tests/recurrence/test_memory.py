"""Slots are updated in place: the operation takes no memory for those that it does not write."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from kernel_cases import ON_CPU
from mis_kernels import RecurrentStates, gated_delta
from mis_kernels.backends import ANY_HEADS, choose
from recurrent_cases import SHAPE, kernel_of, listed, rows_of


def temporary_bytes(slots: int, donated: bool, backend: str) -> int:
    """Return the temporary memory of a step on so many slots."""
    chosen = choose(ANY_HEADS, "bfloat16", backend)
    apply = jax.jit(partial(gated_delta, shape=SHAPE, backend=chosen), donate_argnums=4 if donated else ())
    arguments = *map(jnp.asarray, rows_of(64)), kernel_of(), RecurrentStates.zeros(slots, SHAPE), listed([])
    memory = apply.lower(*arguments).compile().memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes


@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize(("donated", "grows"), [(True, False), pytest.param(False, True, marks=pytest.mark.full)])
def test_memory_grows_with_slots_only_if_they_are_not_donated(donated: bool, grows: bool, backend: str) -> None:
    few, many = (temporary_bytes(slots, donated, backend) for slots in (10, 1000))
    of_slots = sum(x.nbytes for x in RecurrentStates.zeros(990, SHAPE))
    assert (many - few > of_slots // 2) == grows
