"""The operations of recurrent layers: arguments are checked here, and computed by the backend that fits."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int32

from mis_kernels.backends import ANY_HEADS, Backend, choose
from mis_kernels.recurrence import Chunks, RecurrentShape, RecurrentStates
from mis_kernels.segments import IntArray


def gated_delta(
    inputs: Float[Array, "tokens columns"],
    decay: Float32[Array, "tokens value_heads"],
    rate: Float32[Array, "tokens value_heads"],
    kernel: Float32[Array, "channels taps"],
    states: RecurrentStates,
    chunks: Chunks,
    *,
    shape: RecurrentShape,
    backend: Backend | str | None = None,
) -> tuple[Float32[Array, "tokens value_heads value_dim"], RecurrentStates]:
    """Apply the gated delta rule (arXiv 2412.06464) to the rows of a step, and a short convolution before it.

    Each channel is convolved causally, then SiLU is applied, and each row's channels become queries, keys and values.
    Queries and keys have length one, queries are scaled by `key_dim ** -0.5`. Row by row, a head's memory fades, learns
    the row's value at its key, and is read at its query.

    Args:
        inputs: What goes into the convolution: the queries of all heads, then the keys, then the values. bf16 or f32.
            Columns behind these are not read: a product that made them, too, need not be cut.
        decay: Log of the factor by which memory fades at each row, at most 0.
        rate: How much of the difference between a row's value and what memory has at its key is learnt, 0 to 1.
        kernel: Factors of the convolution, a row's own the last.
        states: Slots; donate them to keep updates in place.
        chunks: Which rows go on from which state, in the order in which they are computed.
        shape: Of the layer.
        backend: The backend or its name; default: the first that fits.

    Returns:
        What each row reads, zero for rows of no chunk; and the slots with the states that chunks left.

    Raises:
        ValueError: shapes do not fit together; names the argument.

    Numerics: computes in f32. On CPUs, with `native` and with `xla`, what a chunk gives has bits that depend on its own
    rows, their number and the state before it, and on nothing else: a sequence that is parted after a multiple of
    `CHUNK` rows keeps its bits, wherever its rows lie.
    """
    lists = {f"chunks.{name}": (getattr(chunks, name), chunks.rows.shape) for name in ("lens", "reads", "writes")}
    lists["chunks.count"] = chunks.count, ()
    _check_recurrence(inputs, decay, rate, kernel, states, shape, **lists)
    chosen = backend if isinstance(backend, Backend) else choose(ANY_HEADS, inputs.dtype.name, backend)
    with jax.named_scope(f"gated_delta_{chosen.name}"):
        return chosen.gated_delta(inputs, decay, rate, kernel, states, chunks, shape=shape)


def gated_delta_decode(
    inputs: Float[Array, "rows columns"],
    decay: Float32[Array, "rows value_heads"],
    rate: Float32[Array, "rows value_heads"],
    kernel: Float32[Array, "channels taps"],
    states: RecurrentStates,
    slots: Int32[IntArray, " sequences"],
    *,
    shape: RecurrentShape,
    backend: Backend | str | None = None,
) -> tuple[Float32[Array, "rows value_heads value_dim"], RecurrentStates]:
    """Apply the gated delta rule to the next token of each of several sequences, in its recurrent form.

    This is `gated_delta` for chunks of one row whose states stay in their slots. It reads a state once and multiplies
    no matrices, so a row has not the bits that it has as part of a longer chunk.

    Args:
        inputs: As in `gated_delta`, a row for each sequence.
        decay: Likewise.
        rate: Likewise.
        kernel: Likewise.
        states: Slots; donate them to keep updates in place.
        slots: Slot of each row's state, all different. `NOWHERE`, or any number past the last slot: nobody reads the
            row, nor any behind it.
        shape: Of the layer.
        backend: The backend or its name; default: the first that fits.

    Returns:
        What each row reads, zero for rows that nobody reads; and the slots with the states after these tokens.

    Raises:
        ValueError: shapes do not fit together; names the argument.

    Numerics: computes in f32. A row's bits depend on its arguments and its state, and not on other rows or how many
    there are.
    """
    _check_recurrence(inputs, decay, rate, kernel, states, shape, slots=(slots, (len(inputs),)))
    chosen = backend if isinstance(backend, Backend) else choose(ANY_HEADS, inputs.dtype.name, backend)
    with jax.named_scope(f"gated_delta_decode_{chosen.name}"):
        return chosen.gated_delta_decode(inputs, decay, rate, kernel, states, jnp.asarray(slots), shape=shape)


def _check_recurrence(
    inputs: Array,
    decay: Array,
    rate: Array,
    kernel: Array,
    states: RecurrentStates,
    shape: RecurrentShape,
    **others: tuple[IntArray, tuple[int, ...]],
) -> None:
    if shape.value_heads % shape.key_heads:
        raise ValueError(f"shape: {shape.value_heads} value heads are not a multiple of {shape.key_heads} key heads")
    tokens, slots, last = len(inputs), len(states.memory), shape.taps - 1
    expected = {
        "inputs": (inputs, (tokens, max(inputs.shape[1], shape.channels))),
        "decay": (decay, (tokens, shape.value_heads)),
        "rate": (rate, (tokens, shape.value_heads)),
        "kernel": (kernel, (shape.channels, shape.taps)),
        "states.memory": (states.memory, (slots, shape.value_heads, shape.key_dim, shape.value_dim)),
        "states.inputs": (states.inputs, (slots, last, shape.channels)),
        **others,
    }
    for name, (array, wanted) in expected.items():
        if array.shape != wanted:
            raise ValueError(f"{name}: expected {list(wanted)}, got {list(array.shape)}")
