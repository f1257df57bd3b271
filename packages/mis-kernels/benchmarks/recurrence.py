"""What a recurrent layer takes: a query's rows, one chunk after another, and many short items behind one state.

    python packages/mis-kernels/benchmarks/recurrence.py [--query 2048] [--items 100] [--item 20] [--json]

The layer is Qwen3.5-0.8B's, 16 heads of 128 by 128, rows in bfloat16. Rounds alternate. What is printed: milliseconds
of both, the least of all rounds, by the clock and of the CPU; and billions of operations in a second of the clock,
where each row counts as one of a full chunk.
"""

import argparse
import json
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from mis_kernels import CARRIED, CHUNK, EMPTY, NOWHERE, Chunks, RecurrentShape, RecurrentStates, gated_delta

SHAPE, SLOTS = RecurrentShape(16, 16, 128, 128, 4), 20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--query", type=int, default=2048, help="tokens of the query")
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--item", type=int, default=20, help=f"tokens of each item, {CHUNK} at most")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backend", default=None, help="xla or reference; default: the first that fits")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    tokens = -(-max(options.query, options.items * options.item) // CHUNK) * CHUNK
    begins = np.arange(0, options.query, CHUNK)
    query = listed(
        begins,
        np.minimum(CHUNK, options.query - begins),
        np.where(begins == 0, EMPTY, CARRIED),
        np.where(begins == begins[-1], 0, NOWHERE),
    )
    items = listed(np.arange(options.items) * options.item, options.item, 0, NOWHERE)
    cases = {"query": (options.query, query), "items": (options.items * options.item, items)}
    apply = jax.jit(partial(gated_delta, shape=SHAPE, backend=options.backend), donate_argnums=4)
    arguments, states = tensors(tokens), RecurrentStates.zeros(SLOTS, SHAPE)
    found: dict[str, object] = {"jax": jax.__version__, "device": jax.devices()[0].device_kind}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for number in range(options.rounds + 1):
        for name, (_, chunks) in cases.items():
            began, began_cpu = time.perf_counter(), time.process_time()
            out, states = apply(*arguments, states, chunks)
            out.block_until_ready()
            if number:  # the first compiles
                times[name].append((time.perf_counter() - began, time.process_time() - began_cpu))
    each_row = SHAPE.value_heads * SHAPE.key_dim * 6 * (CHUNK + SHAPE.value_dim)
    for name, (rows, _) in cases.items():
        clock, cpu = (min(column) for column in zip(*times[name], strict=True))
        found |= {f"{name}_ms": clock * 1e3, f"{name}_cpu_ms": cpu * 1e3}
        found[f"{name}_gflops"] = rows * each_row / clock / 1e9
    text = json.dumps(found) if options.json else "\n".join(f"{name:14} {value}" for name, value in found.items())
    sys.stdout.write(text + "\n")


def listed(rows: np.ndarray, lens: np.ndarray | int, reads: np.ndarray | int, writes: np.ndarray | int) -> Chunks:
    """Return chunks on the device; one number stands for all."""
    lists = (jnp.asarray(np.broadcast_to(x, rows.shape), jnp.int32) for x in (rows, lens, reads, writes))
    return Chunks(*lists, jnp.asarray(len(rows), jnp.int32))


def tensors(tokens: int) -> tuple[jax.Array, ...]:
    """Return inputs, logs of decays, rates and the convolution's factors."""
    random = np.random.default_rng(0)
    of_heads = tokens, SHAPE.value_heads
    return (
        jnp.asarray(random.standard_normal((tokens, SHAPE.channels)), jnp.bfloat16),
        jnp.asarray(-np.exp(random.uniform(-6, 1, of_heads)), jnp.float32),
        jnp.asarray(random.uniform(0, 1, of_heads), jnp.float32),
        jnp.asarray(random.standard_normal((SHAPE.channels, SHAPE.taps)) / 2, jnp.float32),
    )


if __name__ == "__main__":
    main()
