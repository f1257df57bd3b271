"""Requests per second of an engine that many callers ask at once, each with its own query and a few items.

    python packages/mis-core/benchmarks/callers.py [--model FOLDER] [--dtype float32] [--callers 1 8 32] [--seconds 10]

Without a model, six layers of SmolLM2's shape with random weights. Callers wait for an answer before they ask again. A
load is named by its items and their tokens, and those of the query: `3x30/300`. Queries are new for every request, but
in loads that are `known`: there they are one of forty that are cached.
"""

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mis_core import Engine
from mis_testing.checkpoint import tiny_checkpoint
from mis_testing.shapes import SHAPES

LOADS = {
    "16x20/200": (16, 20, 200, 0),
    "3x30/300": (3, 30, 300, 0),
    "1x15/60": (1, 15, 60, 0),
    "1x15/60 known": (1, 15, 60, 40),
}
"""Items of a request, tokens of each, tokens of a query, and how many queries are known; 0: none."""


def requests_of(load: tuple[int, int, int, int], vocab_size: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Yield requests; those of known queries begin with one for each."""
    items, length, query, known = load
    queries = itertools.cycle(rng.integers(0, vocab_size, (known, query)).tolist())
    while True:
        yield {
            "query": next(queries) if known else rng.integers(0, vocab_size, query).tolist(),
            "items": rng.integers(0, vocab_size, (items, length)).tolist(),
            "label_token_ids": [5, 9],
        }


def rate(engine: Engine, requests: Iterator[dict[str, Any]], callers: int, seconds: float) -> float:
    """Return requests per second."""
    lock, counts = threading.Lock(), [0] * callers
    began = time.perf_counter()

    def call(number: int) -> None:
        while time.perf_counter() - began < seconds:
            with lock:
                request = next(requests)
            engine.score(**request)
            counts[number] += 1

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder of a checkpoint; default: random weights")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=[*LOADS])
    parser.add_argument("--seconds", type=float, default=10, help="of each load and number of callers")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        sizes = SHAPES["smollm2-135m"] | {"num_hidden_layers": 6}
        model = options.model or str(tiny_checkpoint(Path(folder) / "model", **sizes))
        with Engine.from_pretrained(model, dtype=options.dtype) as engine:
            sys.stdout.write(f"{'load':16}" + "".join(f"{callers:>10}" for callers in options.callers) + "  callers\n")
            for name in options.loads:
                load = LOADS[name]
                requests = requests_of(load, engine.vocab_size, rng)
                for _ in range(load[3]):
                    engine.score(**next(requests))
                rates = [rate(engine, requests, callers, options.seconds) for callers in options.callers]
                sys.stdout.write(f"{name:16}" + "".join(f"{each:10.2f}" for each in rates) + "  requests/s\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
