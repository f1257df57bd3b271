"""The gated delta rule token by token, as its recurrence says (arXiv 2412.06464, equation 10): the oracle."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from mis_kernels.recurrence import CARRIED, Chunks, RecurrentShape, RecurrentStates


def gated_delta(
    inputs: Array,
    decay: Array,
    rate: Array,
    kernel: Array,
    states: RecurrentStates,
    chunks: Chunks,
    *,
    shape: RecurrentShape,
) -> tuple[Array, RecurrentStates]:
    """Compute one token after the other. Arguments and result as in `mis_kernels.gated_delta`."""
    rows, lens, reads, writes, count = map(jnp.asarray, chunks)
    inputs = inputs[:, : shape.channels]
    each_key_head, keys = shape.value_heads // shape.key_heads, shape.key_heads * shape.key_dim

    def token(row: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        memory, last, out = carry
        window = jnp.concatenate([last, inputs[row, None].astype(jnp.float32)])
        mixed = jax.nn.silu((window * kernel.T).sum(0))
        q, k, v = jnp.split(mixed, (keys, 2 * keys))
        q, k = (jnp.repeat(x.reshape(shape.key_heads, -1), each_key_head, axis=0) for x in (q, k))
        q, k = (x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
        v = v.reshape(shape.value_heads, -1)
        memory = memory * jnp.exp(decay[row])[:, None, None]
        known = (memory * k[:, :, None]).sum(1)
        memory = memory + k[:, :, None] * ((v - known) * rate[row][:, None])[:, None, :]
        found = (memory * q[:, :, None]).sum(1) * shape.key_dim**-0.5
        return memory, window[1:], out.at[row].set(found)

    def chunk(number: Array, carry: tuple[RecurrentStates, RecurrentStates, Array]) -> tuple:
        states, left, out = carry
        read = reads[number]
        start = jax.tree.map(
            lambda stored, left: jnp.where(read >= 0, stored[read], jnp.where(read == CARRIED, left, 0)), states, left
        )
        first = rows[number]
        *after, out = lax.fori_loop(first, first + lens[number], token, (*start, out))
        left = RecurrentStates(*after)
        states = jax.tree.map(lambda stored, new: stored.at[writes[number]].set(new, mode="drop"), states, left)
        return states, left, out

    nothing = jnp.zeros((len(inputs), shape.value_heads, shape.value_dim), jnp.float32)
    left = jax.tree.map(lambda stored: jnp.zeros(stored.shape[1:], stored.dtype), states)
    states, _, out = lax.fori_loop(0, count, chunk, (states, left, nothing))
    return out, states


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
    """Compute a chunk of one token for each row. Arguments and result as in `mis_kernels.gated_delta_decode`."""
    rows, count = jnp.arange(len(slots)), (slots < len(states.memory)).sum()
    chunks = Chunks(rows, jnp.ones_like(rows), slots, slots, count)
    return gated_delta(inputs, decay, rate, kernel, states, chunks, shape=shape)
