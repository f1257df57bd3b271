"""Milliseconds of what a decode step does behind its layers: logits of the whole vocabulary, and drawing from them.

    python packages/mis-bench/benchmarks/draw.py [--vocab 151936] [--embed 1024] [--rows 1 16] [--calls 20]

Random weights in bfloat16, random logits; each line is the median of the calls. Beside it is the time in which as many
threads as there are cores read the head: no product is faster.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mis_core.requests import Sampling
from mis_core.runner.sampling import SAMPLED_ROWS, DrawArrays, next_tokens
from mis_core.scheduler.plan import SLOTS
from mis_core.scheduler.reading import Draws
from mis_kernels.backends import choose
from mis_kernels.heads import HeadShape

BIAS = {"bias_ids": np.arange(300, dtype=np.int32), "bias": np.ones(300, np.float32)}
KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "greedy": ({"temperature": 0.0}, 0),
    "greedy, most probable": ({"temperature": 0.0}, 20),
    "bias and penalty": ({"temperature": 0.0, "frequency_penalty": 0.5, **BIAS}, 0),
    "temperature": ({}, 0),
    "top-k": ({"top_k": 20}, 0),
    "top-p": ({"top_p": 0.95}, 0),
    "top-k and top-p": ({"top_k": 20, "top_p": 0.95}, 0),
}


def median_ms(calls: int, call: Callable[..., Any], *arrays: Any) -> float:
    """Return the median of the milliseconds of calls, without the first ones."""
    times = []
    for _ in range(calls + 3):
        began = time.perf_counter()
        jax.block_until_ready(call(*arrays))
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times[3:])


def draws_of(rows: int, how: dict[str, Any], top_tokens: int) -> DrawArrays:
    """Return how so many rows are drawn from, each at a place of its own."""
    numbers = np.arange(rows, dtype=np.int32)
    keys = np.stack([numbers, numbers], 1)
    draws = Draws(numbers, numbers, keys, numbers, Sampling(keys, **how), numbers, top_tokens=top_tokens)
    return DrawArrays.of([draws], 0, SAMPLED_ROWS)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=151_936, help="tokens (default: 151936)")
    parser.add_argument("--embed", type=int, default=1024, help="elements of a hidden state (default: 1024)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16], help="rows (default: 1 16)")
    parser.add_argument("--calls", type=int, default=20, help="calls of each (default: 20)")
    options = parser.parse_args()
    backend, rng = choose(HeadShape(16, 8, 128), "bfloat16"), np.random.default_rng(0)
    weight = jnp.asarray(rng.standard_normal((options.vocab, options.embed), np.float32), jnp.bfloat16)
    stored = weight.view(backend.storage_dtype)
    parts = np.array_split(np.asarray(stored).reshape(-1).view(np.int64), os.cpu_count() or 1)
    with ThreadPoolExecutor(len(parts)) as pool:
        read = median_ms(options.calls, lambda: list(pool.map(np.max, parts)))
    sys.stdout.write(f"{backend.name}: head of {stored.nbytes / 1e6:.0f} MB, read in {read:.1f} ms\n")
    multiply = jax.jit(backend.logits)
    draw = jax.jit(partial(next_tokens, group=backend.drawn_rows), donate_argnums=(3, 4))
    slots = [jnp.zeros(SLOTS, jnp.int32), jnp.zeros((SLOTS, options.vocab), jnp.int32)]
    logits = jnp.asarray(3 * rng.standard_normal((SAMPLED_ROWS, options.vocab), np.float32))

    def drawn(*arrays: Any) -> Any:
        tokens, *slots[:] = draw(logits, *arrays, *slots)
        return tokens

    for rows in options.rows:
        hidden = jnp.asarray(rng.standard_normal((rows, options.embed), np.float32), jnp.bfloat16)
        sys.stdout.write(f"{rows} rows: product {median_ms(options.calls, multiply, hidden, stored):.2f} ms")
        for name, (how, top_tokens) in KINDS.items():
            arrays = np.array([rows], np.int32), draws_of(rows, how, top_tokens)
            sys.stdout.write(f"; {name} {median_ms(options.calls, drawn, *arrays):.2f}")
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
