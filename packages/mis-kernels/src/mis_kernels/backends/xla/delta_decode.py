"""The recurrent form of the gated delta rule in plain XLA: a token of each of several sequences.

A loop computes one sequence after another. So what it gives has bits that do not depend on how many there are.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from mis_kernels.backends.xla.delta_rule import queries_keys_values
from mis_kernels.recurrence import RecurrentShape, RecurrentStates


def gated_delta_decode(
    inputs: Array,
    decay: Array,
    rate: Array,
    kernel: Array,
    states: RecurrentStates,
    slots: Array,
    *,
    shape: RecurrentShape,
) -> tuple[Array, RecurrentStates]:
    """Compute row after row. Arguments and result as in `mis_kernels.gated_delta_decode`."""
    inputs, kernel = inputs[:, : shape.channels].astype(jnp.float32), kernel.T
    fades = jnp.exp(decay)

    def token(row: Array, carry: tuple[Array, RecurrentStates]) -> tuple[Array, RecurrentStates]:
        out, states = carry
        slot = slots[row]
        start = jax.tree.map(lambda stored: lax.dynamic_index_in_dim(stored, slot, keepdims=False), states)
        window = jnp.concatenate([start.inputs, inputs[row, None]])
        both, v = queries_keys_values(window, kernel, 1, shape)
        q, k = jnp.repeat(both, shape.value_heads // shape.key_heads, axis=0).swapaxes(0, 1)[..., None]
        memory = start.memory * fades[row][:, None, None]
        known = (memory * k).sum(1)
        memory = memory + k * ((v[:, 0] - known) * rate[row][:, None])[:, None]
        out = lax.dynamic_update_index_in_dim(out, (memory * q).sum(1), row, 0)
        new = RecurrentStates(memory, window[1:])
        return out, jax.tree.map(lambda stored, x: lax.dynamic_update_index_in_dim(stored, x, slot, 0), states, new)

    nothing = jnp.zeros((len(inputs), shape.value_heads, shape.value_dim), jnp.float32)
    count = (slots < len(states.memory)).sum()
    return lax.fori_loop(0, count, token, (nothing, states))
