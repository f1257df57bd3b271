"""Print, as JSON, what each call on tiles executes: `{name: {instruction: times}}`. `emulation` has the environment."""

import json
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from emulation import take_counts
from kernel_cases import Case, Segment
from mis_kernels import segment_attention
from mis_kernels.backends.native import calls as native
from mis_kernels.backends.native import int8, library
from mis_kernels.backends.native.packed import PackedWeight, pack
from mis_kernels.quantized import QuantizedWeight

ROWS, DEPTH, COLUMNS = 64, 1056, 96  # three passes over the summands
FEW_ROWS = (1, 5, 16, 20)
VOCAB, EMBED, LOGIT_ROWS = 100, 64, (1, 16, 40)  # the last four tokens are no tile
INT8_ROWS, INT8_DEPTH, INT8_COLUMNS = (5, 64, 72), 1152, 80  # two passes; the last 16 columns are half as wide
ATTENTION = {
    "an item behind a context": Case([Segment(20)], contexts=(100,), kv_heads=1, group=1, head_dim=64),
    "an item longer than a tile": Case([Segment(300)], kv_heads=1, group=1, head_dim=32),
    "a group of heads": Case([Segment(5)], contexts=(257,), kv_heads=2, group=7, head_dim=96),
    "single tokens": Case([Segment(1, context=c) for c in range(3)], (40, 300, 1), kv_heads=1, group=2, head_dim=64),
}


def product(rows: int) -> object:
    random = np.random.default_rng(0)
    x = jnp.asarray(random.standard_normal((rows, DEPTH)), jnp.bfloat16)
    weight = random.integers(0, 2**14, (1, DEPTH, COLUMNS)).astype(np.uint16)
    return PackedWeight(jnp.asarray(pack(weight))).at_layer(jnp.int32(0)).product(x)


def logits(rows: int) -> object:
    return native.logits(jnp.ones((rows, EMBED), jnp.bfloat16), jnp.ones((VOCAB, EMBED), jnp.bfloat16))


def int8_product(rows: int) -> object:
    random = np.random.default_rng(0)
    values = random.integers(-9, 9, (1, INT8_DEPTH, INT8_COLUMNS)).astype(np.int8)
    weight = int8.tile(QuantizedWeight(values, np.ones((1, INT8_COLUMNS), np.float32)), INT8_DEPTH)
    return jax.tree.map(jnp.asarray, weight).at_layer(jnp.int32(0)).product(jnp.ones((rows, INT8_DEPTH)))


if __name__ == "__main__":
    assert library.has_tiles(), library.why_not()
    assert library.has_int8_tiles()
    calls = {"product": partial(product, ROWS)}
    calls |= {f"int8 product of {rows}": partial(int8_product, rows) for rows in INT8_ROWS}
    calls |= {f"product of {rows}": partial(product, rows) for rows in FEW_ROWS}
    calls |= {f"logits of {rows}": partial(logits, rows) for rows in LOGIT_ROWS}
    for name, case in ATTENTION.items():
        arrays = case.arrays(jnp.bfloat16, "native")
        calls[name] = lambda arrays=arrays: segment_attention(**arrays)
    found = {}
    for name, call in calls.items():
        take_counts()
        jax.block_until_ready(call())
        found[name] = take_counts()
    sys.stdout.write(json.dumps(found) + "\n")
