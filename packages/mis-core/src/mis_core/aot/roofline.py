"""The least arithmetic and memory traffic of a request, whatever the program does."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from mis_core.models.config import ModelConfig

ITEM_BYTES = 2
"""Of bfloat16."""


def layer_weights(config: ModelConfig) -> int:
    """Return the weights of one layer's products."""
    heads, kv_heads, head_dim = config.attention
    return config.embed * (2 * (heads + kv_heads) * head_dim + 3 * config.mlp)


def weight_bytes(config: ModelConfig) -> int:
    """Return the bytes of a model's weights in bfloat16, norms and biases left out."""
    tables = config.vocab_size + (0 if config.tied else config.head_rows)
    return ITEM_BYTES * (len(config.layers) * layer_weights(config) + tables * config.embed)


def least_flops(config: ModelConfig, request: Mapping[str, Any], *, normalised: bool) -> float:
    """Return the floating-point operations of one request, the query computed once and nothing twice.

    Every token passes every layer, except that queries, output projection and MLP of the last layer are for scored
    tokens only. An attended pair is two products of `head_dim` per head. Keys and values of a last layer that slides
    are counted for all tokens, though windows of scored tokens may not reach all.

    Args:
        config: The model's shape.
        request: Body of `POST /v1/score`, of token ids.
        normalised: Whether full-vocabulary probabilities are asked for.
    """
    query, lens = len(request["query"]), np.array([len(item) for item in request["items"]])
    items = len(lens)
    tokens = query + int(lens.sum())
    heads, kv_heads, head_dim = config.attention
    *others, last = config.layers
    kv_weights = 2 * config.embed * kv_heads * head_dim
    products = 2 * (tokens * len(others) + items) * layer_weights(config) + 2 * tokens * kv_weights
    pairs = sum(
        count * (_seen(query, window) + float((_seen(query + lens, window) - _seen(query, window)).sum()))
        for window, count in Counter(layer.window for layer in others).items()
    )
    last_pairs = float(np.minimum(query + lens, last.window or np.inf).sum())
    attention = 4 * heads * head_dim * (pairs + last_pairs)
    head = 2 * items * config.embed * (config.head_rows if normalised else len(request["label_token_ids"]))
    return float(products + attention + head)


def _seen(tokens: Any, window: int | None) -> Any:
    """Return how many positions the tokens of a sequence see together."""
    sliding = 0 if window is None else np.maximum(np.asarray(tokens) - window, 0)
    rising = tokens - sliding
    return rising * (rising + 1) / 2 + sliding * float(window or 0)


def least_bytes(config: ModelConfig) -> float:
    """Return the bytes that must be read at least once for any number of requests together: the layers' weights."""
    return float(ITEM_BYTES * len(config.layers) * layer_weights(config))
