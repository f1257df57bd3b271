"""The least arithmetic and memory traffic of a request, whatever the program does."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mis_core.models.config import ModelConfig
from mis_core.models.layers import Layer, attention_layers
from mis_kernels.recurrence import CHUNK, RecurrentShape

ITEM_BYTES = 2
"""Of bfloat16."""


def layer_weights(config: ModelConfig, layer: Layer) -> int:
    """Return the weights of a layer's products."""
    mlp = 3 * config.embed * config.mlp
    if (recurrence := layer.recurrence) is not None:
        values = recurrence.value_heads * recurrence.value_dim
        return mlp + config.embed * (recurrence.channels + 2 * values + 2 * recurrence.value_heads)
    heads, kv_heads, head_dim = layer.heads
    gates = heads if config.family.gates_attention else 0
    return mlp + config.embed * (2 * (heads + kv_heads) + gates) * head_dim


def weights_of_layers(config: ModelConfig) -> int:
    """Return the weights of the products of all layers."""
    return sum(layer_weights(config, layer) for layer in config.layers)


def weight_bytes(config: ModelConfig) -> int:
    """Return the bytes of a model's weights in bfloat16, norms and biases left out."""
    tables = config.vocab_size + (0 if config.tied else config.head_rows)
    return ITEM_BYTES * (weights_of_layers(config) + tables * config.embed)


class LeastFlops(NamedTuple):
    """Floating-point operations of one request, by what computes them."""

    products: float  # of layers
    attention: float
    head: float
    recurrence: float


def least_flops(config: ModelConfig, request: Mapping[str, Any], *, normalised: bool) -> float:
    """Return the sum of `least_flops_by_part`."""
    return sum(least_flops_by_part(config, request, normalised=normalised))


def least_flops_by_part(config: ModelConfig, request: Mapping[str, Any], *, normalised: bool) -> LeastFlops:
    """Return the floating-point operations of one request, the query computed once and nothing twice.

    Every token passes every layer, except that queries, output projection and MLP of the last layer are for scored
    tokens only. An attended pair is two products of `head_dim` per head. Keys and values of a last layer that slides
    are counted for all tokens, though windows of scored tokens may not reach all. Of recurrent layers, `chunk_flops`
    are counted.

    Args:
        config: The model's shape.
        request: Body of `POST /v1/score`, of token ids.
        normalised: Whether full-vocabulary probabilities are asked for.
    """
    query, lens = len(request["query"]), np.array([len(item) for item in request["items"]], np.int64)
    items = len(lens)
    tokens = query + int(lens.sum())
    heads, kv_heads, head_dim = config.attention
    *others, last = config.layers
    kv_weights = 2 * config.embed * kv_heads * head_dim
    weights = weights_of_layers(config) - layer_weights(config, last)
    products = 2 * (tokens * weights + items * layer_weights(config, last)) + 2 * tokens * kv_weights
    pairs = sum(
        count * (_seen(query, window) + float((_seen(query + lens, window) - _seen(query, window)).sum()))
        for window, count in Counter(layer.window for layer in attention_layers(others)).items()
    )
    last_pairs = float(np.minimum(query + lens, last.window or np.inf).sum())
    attention = 4 * heads * head_dim * (pairs + last_pairs)
    head = 2 * items * config.embed * (config.head_rows if normalised else len(request["label_token_ids"]))
    recurrence = 0 if config.recurrence is None else config.recurrent_layers * _chunks_flops(config, query, lens)
    return LeastFlops(float(products), float(attention), float(head), float(recurrence))


def least_glue_bytes(config: ModelConfig, request: Mapping[str, Any], item_bytes: int = ITEM_BYTES) -> float:
    """Return the bytes that norms and RoPE of one request read and write, each row once, of numbers of `item_bytes`.

    Every layer norms its rows twice, and rotates queries and keys after the first; keys and values lie beside them. The
    second norm of the last layer, and the final norm, are for scored tokens only. Norms after a layer's parts, which
    some families have, are not counted.
    """
    items = len(request["items"])
    tokens = len(request["query"]) + sum(map(len, request["items"]))
    heads, kv_heads, head_dim = config.attention
    norms = (2 * len(config.layers) - 1) * tokens + 2 * items
    rotated = len(attention_layers(config.layers)) * tokens * (heads + 2 * kv_heads) * head_dim
    return float(2 * item_bytes * (norms * config.embed + rotated))


def chunk_flops(shape: RecurrentShape, rows: Any, *, is_last: bool) -> Any:
    """Return the operations of a chunk of a recurrent layer, with its triangular system solved by substitution.

    Queries and keys meet keys in each key head, and what they find meets values in each value head. Both meet the
    memory, which then learns the keys' values. A row is substituted into all later ones. Of 64 rows and heads of
    128 x 128 a row takes `6 * 64 * 128 + 6 * 128 * 128` in a head, and `64 * 128` for substitution.

    Args:
        shape: Of the layer.
        rows: Of the chunk; a number or an array of them.
        is_last: Whether nobody reads the memory after it.
    """
    key, value = shape.key_dim, shape.value_dim
    within = rows * rows * (4 * shape.key_heads * key + 3 * shape.value_heads * value)
    return within + (4 if is_last else 6) * rows * shape.value_heads * key * value


def _chunks_flops(config: ModelConfig, query: int, lens: np.ndarray) -> float:
    """Return the operations of all chunks of a recurrent layer: of the query, and of items of some lengths."""
    shape = config.recurrence
    assert shape is not None, "a layer is recurrent"

    def whole(count: Any) -> Any:
        return count * chunk_flops(shape, CHUNK, is_last=False)

    of_query = whole(query // CHUNK) + chunk_flops(shape, query % CHUNK, is_last=False)
    before_last = np.maximum(lens - 1, 0) // CHUNK
    of_items = whole(before_last) + chunk_flops(shape, lens - CHUNK * before_last, is_last=True)
    return float(of_query + of_items.sum())


def _seen(tokens: Any, window: int | None) -> Any:
    """Return how many positions the tokens of a sequence see together."""
    sliding = 0 if window is None else np.maximum(np.asarray(tokens) - window, 0)
    rising = tokens - sliding
    return rising * (rising + 1) / 2 + sliding * float(window or 0)


def least_bytes(config: ModelConfig) -> float:
    """Return the bytes that must be read at least once for any number of requests together: the layers' weights."""
    return float(ITEM_BYTES * weights_of_layers(config))
