"""Attention of an extension step as a share of the machine's matrix product rate, both in one run.

    python packages/mis-kernels/benchmarks/extend_attention.py [--tokens 1280] [--context 2000] [--json]

The step: items of 20 tokens behind one cached context; 8 KV heads with 2 query heads each, head_dim 128,
bfloat16. The work counted is 4 x tokens x context x heads x head_dim floating-point operations, the
products with the context alone; attention to an item's own tokens, masks and softmax are time without
counted work. The rate to compare with is a 1280 x 1024 x 6144 product with float32 output, taken
before and after each round. Rounds alternate; medians are reported.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from mis_kernels import from_bits, lay_out, segment_attention, to_bits
from mis_kernels.backends import LaidOut, choose
from mis_kernels.heads import HeadShape

KV_HEADS, GROUP, HEAD_DIM, PAGE, ITEM = 8, 2, 128, 64, 20
LAYERS = 8  # in one program, as in a model: temporaries are allocated once


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1280, help="new tokens, a multiple of 64")
    parser.add_argument("--context", type=int, default=2000, help="cached tokens")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--backend", default=None, help="native, xla or tpu; default: the first that fits")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    attention, product = attention_program(options.tokens, options.context, options.backend), product_program()
    flops = 4 * options.tokens * options.context * KV_HEADS * GROUP * HEAD_DIM
    product_rates, attention_rates = [], []
    for _ in range(options.rounds):
        product_rates.append(2 * 1280 * 1024 * 6144 / best_seconds(product, 5))
        attention_rates.append(flops * LAYERS / best_seconds(attention, 2))
        product_rates.append(2 * 1280 * 1024 * 6144 / best_seconds(product, 5))
    found = {
        "tokens": options.tokens,
        "context": options.context,
        "product_gflops": statistics.median(product_rates) / 1e9,
        "attention_gflops": statistics.median(attention_rates) / 1e9,
        "share": statistics.median(attention_rates) / statistics.median(product_rates),
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
    }
    text = json.dumps(found) if options.json else "\n".join(f"{name:18} {value}" for name, value in found.items())
    sys.stdout.write(text + "\n")


def attention_program(tokens: int, context: int, backend: str | None) -> Callable[[], Array]:
    """Return a compiled chain of `LAYERS` attentions on random tensors."""
    chosen = choose(HeadShape(KV_HEADS * GROUP, KV_HEADS, HEAD_DIM), "bfloat16", backend)
    rng = np.random.default_rng(0)

    def tensor(*shape: int) -> Array:
        return jnp.asarray(rng.standard_normal(shape, dtype=np.float32), jnp.bfloat16)

    pages = -(-context // PAGE)
    q, k, v = tensor(tokens, KV_HEADS * GROUP, HEAD_DIM), *(tensor(tokens, KV_HEADS, HEAD_DIM) for _ in range(2))
    keep = to_bits if jax.default_backend() == "cpu" else lambda x: x
    caches = [keep(tensor(KV_HEADS, LAYERS * pages, PAGE, HEAD_DIM)) for _ in range(2)]
    items = tokens // ITEM

    def ints(values: object) -> np.ndarray:
        return np.asarray(values, np.int32)

    segments = lay_out(
        starts=ints(np.arange(items) * ITEM),
        lens=ints([ITEM] * items),
        context_ids=ints([0] * items),
        context_lens=ints([context] * items),
        paged=np.zeros(items, bool),
        page_table=ints([np.arange(pages)]),
        page_size=PAGE,
        tokens=tokens,
        backend=chosen,
    )

    def chain(q: Array, k: Array, v: Array, k_pages: Array, v_pages: Array, segments: LaidOut) -> Array:
        def layer(q: Array, index: Array) -> tuple[Array, None]:
            here = segments.shift_pages(index * pages)
            q = from_bits(to_bits(q))
            return segment_attention(q, k, v, k_pages, v_pages, here, scale=HEAD_DIM**-0.5, backend=chosen), None

        return lax.scan(layer, q, jnp.arange(LAYERS))[0]

    compiled = jax.jit(chain)
    arguments = jax.device_put((q, k, v, *caches, segments))
    return lambda: compiled(*arguments)


def product_program() -> Callable[[], Array]:
    """Return the product whose rate stands for the machine's."""
    a, b = jnp.ones((1280, 1024), jnp.bfloat16), jnp.ones((1024, 6144), jnp.bfloat16)
    compiled = jax.jit(lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32))
    return lambda: compiled(a, b)


def best_seconds(program: Callable[[], Array], repeats: int) -> float:
    """Return the shortest of a few runs, after one that does not count."""
    program().block_until_ready()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        program().block_until_ready()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


if __name__ == "__main__":
    main()
