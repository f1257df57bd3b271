"""The gated delta rule in C++, by JAX's foreign function interface.

Key heads are spread over threads; XLA:CPU would compute one operation of the loop after the other, on one core. Rows
are computed as they are, not padded to a common number. States stay where they are.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mis_kernels.backends.xla import recurrence
from mis_kernels.recurrence import Chunks, RecurrentShape, RecurrentStates
from mis_kernels.storage import to_bits

_VECTOR = 16  # float32 numbers in a vector


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
    """Arguments and result as in `mis_kernels.gated_delta`; XLA's where rows of a head are no whole vectors."""
    if shape.key_dim % _VECTOR or shape.value_dim % _VECTOR:
        return recurrence.gated_delta(inputs, decay, rate, kernel, states, chunks, shape=shape)
    out = jax.ShapeDtypeStruct((len(inputs), shape.value_heads, shape.value_dim), jnp.float32)
    slots = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), states)
    call = jax.ffi.ffi_call("mis_gated_delta", (out, *slots), input_output_aliases={4: 1, 5: 2})
    lists, read = map(jnp.asarray, chunks), to_bits(inputs[:, : shape.channels])
    found, *left = call(read, decay, rate, kernel, *states, *lists, key_heads=np.int32(shape.key_heads))
    return found, RecurrentStates(*left)
