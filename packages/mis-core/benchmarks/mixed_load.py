"""Mixed load on one engine: callers that each wait for their answer, requests of 3, 30 and 500 items.

    python packages/mis-core/benchmarks/mixed_load.py --model FOLDER [--requests 40] [--callers 1 2 4 8 16]

Sizes come at 0.4, 0.4 and 0.2, half of the requests ask for a softmax over the labels, and queries repeat now
and then, as traffic does. Every number of callers gets the same requests, the prefix cache empty at first.
Prints items per second, the median and 95th percentile of latency, and whether every score has the bits
it had with one caller.
"""

import argparse
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mis_core import Engine

SIZES, SHARES, LENGTH = (3, 30, 500), (0.4, 0.4, 0.2), 20
Request = dict[str, object]


def make_requests(count: int, query: int, vocab_size: int) -> list[Request]:
    """Return requests of token ids; about a third repeat an earlier query."""
    rng = np.random.default_rng(0)
    queries = [rng.integers(0, vocab_size, query).tolist() for _ in range(max(2 * count // 3, 1))]
    return [
        {
            "query": queries[int(rng.integers(len(queries)))],
            "items": rng.integers(0, vocab_size, (int(size), LENGTH)).tolist(),
            "label_token_ids": [1, 2],
            "apply_softmax": bool(rng.integers(2)),
        }
        for size in rng.choice(SIZES, count, p=SHARES)
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of a checkpoint")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--query", type=int, default=500, help="tokens of a query")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    options = parser.parse_args()
    expected: list[np.ndarray] = []
    with Engine.from_pretrained(options.model, progress=False) as engine:
        requests = make_requests(options.requests, options.query, engine.vocab_size)

        def ask(request: Request) -> tuple[float, np.ndarray]:
            began = time.perf_counter()
            scores = engine.score(**request).scores  # type: ignore[arg-type]
            return time.perf_counter() - began, scores

        for callers in options.callers:
            engine.flush_cache()
            began = time.perf_counter()
            with ThreadPoolExecutor(callers) as pool:
                found = list(pool.map(ask, requests))
            seconds = time.perf_counter() - began
            latencies = [latency for latency, _ in found]
            scores = [each for _, each in found]
            expected = expected or scores
            same = all(np.array_equal(a, b) for a, b in zip(scores, expected, strict=True))
            percentile = statistics.quantiles(latencies, n=20)[-1]
            sys.stdout.write(
                f"{callers:2} callers: {sum(map(len, scores)) / seconds:7.1f} items/s, "
                f"median {statistics.median(latencies):6.2f} s, p95 {percentile:6.2f} s, "
                f"{'same bits' if same else 'DIFFERENT BITS'}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
