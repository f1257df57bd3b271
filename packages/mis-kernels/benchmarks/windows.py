"""What a sliding window saves: attention of a query's layer with one and without, in one run.

    python packages/mis-kernels/benchmarks/windows.py [--query 8000] [--window 512] [--backend native] [--json]

The query is computed in chunks of 2,048 tokens, each behind the pages of those before; heads are Gemma 3 1B's, 4 query
heads on one KV head of 256, in bfloat16. Rounds alternate. What is printed: seconds of both (medians), their ratio, the
ratio of the keys that rows see, and the one over the other, which is 1 where time follows what is seen.
"""

import argparse
import json
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mis_kernels import lay_out, segment_attention, to_bits
from mis_kernels.backends import Backend, LaidOut, choose
from mis_kernels.heads import HeadShape
from mis_kernels.segments import NO_WINDOW

HEADS, PAGE, CHUNK = HeadShape(4, 1, 256), 64, 2048


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--query", type=int, default=8000, help="tokens of the query")
    parser.add_argument("--window", type=int, default=512, help="positions that a token sees")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backend", default=None, help="native, xla or tpu; default: the first that fits")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    backend = choose(HEADS, "bfloat16", options.backend)
    steps = {window: chunks(backend, options.query, window) for window in (options.window, NO_WINDOW)}
    q, k, v, pages = tensors(options.query)

    @jax.jit
    def attend(segments: LaidOut, q: Array, k: Array, v: Array, pages: Array) -> Array:
        return segment_attention(q, k, v, pages, pages, segments, scale=HEADS.head_dim**-0.5, backend=backend)

    times: dict[int, list[float]] = {window: [] for window in steps}
    for number in range(options.rounds + 1):
        for window, of_window in steps.items():
            began = time.perf_counter()
            for segments in of_window:
                attend(segments, q, k, v, pages).block_until_ready()
            if number:  # the first compiles
                times[window].append(time.perf_counter() - began)
    slides, whole = (statistics.median(times[window]) for window in (options.window, NO_WINDOW))
    position = np.arange(options.query) + 1
    seen = np.minimum(position, options.window).sum() / position.sum()
    found = {
        "backend": backend.name, "query": options.query, "window": options.window, "seconds": slides,
        "seconds_without": whole, "time_ratio": slides / whole, "seen_ratio": float(seen),
        "over": slides / whole / float(seen), "jax": jax.__version__, "device": jax.devices()[0].device_kind,
    }  # fmt: skip
    text = json.dumps(found) if options.json else "\n".join(f"{name:16} {value}" for name, value in found.items())
    sys.stdout.write(text + "\n")


def chunks(backend: Backend, query: int, window: int) -> list[LaidOut]:
    """Return the steps of a query, of equal size."""
    table = np.arange(-(-query // PAGE), dtype=np.int32)[None]
    made = []
    for begin in range(0, query, CHUNK):
        segments = lay_out(
            starts=np.zeros(1, np.int32),
            lens=np.array([min(CHUNK, query - begin)], np.int32),
            context_ids=np.zeros(1, np.int32),
            context_lens=np.array([begin], np.int32),
            paged=np.ones(1, bool),
            page_table=table,
            page_size=PAGE,
            tokens=CHUNK,
            backend=backend,
            window=window,
        )
        made.append(jax.tree.map(jnp.asarray, segments))
    return made


def tensors(query: int) -> tuple[Array, Array, Array, Array]:
    """Return queries, keys and values of a chunk, and pages that serve as keys and values of the whole query."""
    rng = np.random.default_rng(0)

    def tensor(*shape: int) -> Array:
        return jnp.asarray(rng.standard_normal(shape, dtype=np.float32), jnp.bfloat16)

    heads, kv_heads, head_dim = HEADS
    pages = tensor(kv_heads, -(-query // PAGE), PAGE, head_dim)
    kept = to_bits(pages) if jax.default_backend() == "cpu" else pages
    return tensor(CHUNK, heads, head_dim), *(tensor(CHUNK, kv_heads, head_dim) for _ in range(2)), kept


if __name__ == "__main__":
    main()
