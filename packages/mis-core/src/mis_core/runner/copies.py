"""Copies of recurrent states between devices: a query's for the items of a spread request."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Int32

from mis_core.models.parallel import DATA
from mis_core.scheduler.plan import StepPlan
from mis_core.scheduler.recurrence import MOST_COPIES
from mis_kernels import RecurrentStates
from mis_kernels.segments import NOWHERE, IntArray


class StateCopies(NamedTuple):
    """States that go from one device along `DATA` to others: a row for each device, or one row inside the step.

    Attributes:
        sends: Slot of each state on the device that has it, `NOWHERE` on all others.
        receives: Slot that it goes to on this device, or `NOWHERE`.
        count: How many there are; the same for all devices.
    """

    sends: Int32[IntArray, "devices copies"]
    receives: Int32[IntArray, "devices copies"]
    count: Int32[IntArray, " devices"]

    @classmethod
    def of(cls, plan: StepPlan) -> "StateCopies":
        """Return those of a step."""
        devices = len(plan.shards)
        sends, receives = (np.full((devices, MOST_COPIES), NOWHERE, np.int32) for _ in range(2))
        for number, copy in enumerate(plan.copies):
            sends[copy.shard, number] = copy.slot
            for shard, slot in copy.copies.items():
                receives[shard, number] = slot
        return cls(sends, receives, np.full(devices, len(plan.copies), np.int32))


def copy_states(states: RecurrentStates, copies: StateCopies, slots: int) -> RecurrentStates:
    """Copy states of all layers to other devices; within a `shard_map` over `DATA`.

    Args:
        states: Slots of all recurrent layers on this device.
        copies: Which go where.
        slots: Slots of one layer on a device.
    """
    layers = len(states.memory) // slots

    def once(number: Array, states: RecurrentStates) -> RecurrentStates:
        copy, layer = number // layers, number % layers
        sent, received = jnp.asarray(copies.sends)[copy], jnp.asarray(copies.receives)[copy]

        def copied(stored: Array) -> Array:
            def of_slot(slot: Array) -> Array:
                return layer * slots + jnp.minimum(slot, slots - 1)

            mine, old = (lax.dynamic_index_in_dim(stored, of_slot(slot), keepdims=False) for slot in (sent, received))
            # Bits are summed, all but one device's being zero: a sum of floats would turn -0 into 0.
            bits = jnp.where(sent < slots, lax.bitcast_convert_type(mine, jnp.int32), 0)
            theirs = lax.bitcast_convert_type(lax.psum(bits, DATA), stored.dtype)
            return lax.dynamic_update_index_in_dim(
                stored, jnp.where(received < slots, theirs, old), of_slot(received), 0
            )

        return jax.tree.map(copied, states)

    return lax.fori_loop(0, copies.count * layers, once, states)
