"""The compiled programs that read a step's scored rows, each on the device that computed it."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Wrapped

from mis_core.models.parallel import DATA, TENSOR
from mis_core.runner.head import label_logits, log_sum_exp, most_probable
from mis_core.runner.sampling import SAMPLED_ROWS, count_written, hold_logits, next_tokens


class Reads(NamedTuple):
    """Programs that take a decoder's state, and arrays of all devices along `DATA` side by side.

    Rows are numbered on their device, from 0, so no device sends anything to another along `DATA`.

    Attributes:
        choose_rows: `(hidden, rows)` to these rows, without a state.
        label_logits: `(weights, hidden, pair_row, pair_label)`, see `mis_core.runner.head`.
        log_sum_exp: `(weights, hidden, rows)`.
        most_probable: `(weights, rows of hidden)`.
        hold_logits: By number of rows, rising, `(weights, rows of hidden, logits)`, see `mis_core.runner.sampling`;
            logits are donated.
        next_tokens: `(logits, count, how, last, counts)`, without a state; the last two are donated.
        count_written: `(counts, slot, tokens, is_first)`, without a state; `counts` are donated.
    """

    choose_rows: Wrapped
    label_logits: Wrapped
    log_sum_exp: Wrapped
    most_probable: Wrapped
    hold_logits: dict[int, Wrapped]
    next_tokens: Wrapped
    count_written: Wrapped


def make_reads(graph: Any, weights: Any, mesh: Mesh) -> Reads:
    """Return the programs of a model, ready to be called or lowered.

    Args:
        graph: The decoder's graph, from `nnx.split`.
        weights: Its state; shapes are enough.
        mesh: Devices with axes `DATA` and `TENSOR`.
    """
    is_sharded = mesh.shape[TENSOR] > 1

    def on_each_device(read: Callable[..., Any], donated: tuple[int, ...] = (), sharding: Any = None) -> Wrapped:
        # Along `TENSOR` the compiler cuts products as weights are; a kernel takes arrays that nothing cuts any more.
        axes = {DATA} if is_sharded else {DATA, TENSOR}

        def on_all(weights: Any, *arrays: Any) -> Any:
            specs = P(), *[P(DATA)] * len(arrays)
            each = jax.shard_map(
                lambda weights, *arrays: read(nnx.merge(graph, weights), *arrays),
                mesh=mesh,
                in_specs=specs,
                out_specs=P(DATA),
                axis_names=axes,
                check_vma=False,  # loops carry values that start out the same everywhere
            )
            return each(weights, *arrays)

        return jax.jit(on_all, donate_argnums=donated, out_shardings=sharding)

    each, decoder = P(DATA), nnx.merge(graph, weights)
    options = dict(decoder.backend.brief) or None
    by_row = NamedSharding(mesh, each)
    # A row has the same bits in all numbers of rows. 2 or 4 take as long as 8: the time is that of reading weights.
    takes_few = not is_sharded and decoder.backend.takes_few_rows(decoder.config.embed)
    counts = [1, 8, 16, 32, SAMPLED_ROWS] if takes_few else [SAMPLED_ROWS]
    choose_rows = jax.shard_map(lambda hidden, rows: hidden[rows], mesh=mesh, in_specs=(each, each), out_specs=each)
    count = jax.shard_map(count_written, mesh=mesh, in_specs=(each,) * 4, out_specs=each)
    draw = partial(next_tokens, at_a_time=decoder.backend.drawn_rows)
    draw = jax.shard_map(draw, mesh=mesh, in_specs=(each,) * 5, out_specs=each, check_vma=False)
    held = {
        rows: on_each_device(partial(hold_logits, rows=rows, is_sharded=is_sharded), (2,), by_row) for rows in counts
    }
    return Reads(
        choose_rows=jax.jit(choose_rows, out_shardings=by_row),
        label_logits=on_each_device(label_logits),
        log_sum_exp=on_each_device(partial(log_sum_exp, is_sharded=is_sharded)),
        most_probable=on_each_device(most_probable),
        hold_logits=held,
        next_tokens=jax.jit(draw, donate_argnums=(3, 4), out_shardings=by_row, compiler_options=options),
        count_written=jax.jit(count, donate_argnums=0, out_shardings=by_row, compiler_options=options),
    )
