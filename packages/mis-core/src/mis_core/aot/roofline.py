"""The least arithmetic and memory traffic of a request, whatever the program does."""

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
    tokens only. An attended pair is two products of `head_dim` per head.

    Args:
        config: The model's shape.
        request: Body of `POST /v1/score`, of token ids.
        normalised: Whether full-vocabulary probabilities are asked for.
    """
    query, lens = len(request["query"]), np.array([len(item) for item in request["items"]])
    items = len(lens)
    tokens = query + int(lens.sum())
    heads, kv_heads, head_dim = config.attention
    others = len(config.layers) - 1
    kv_weights = 2 * config.embed * kv_heads * head_dim
    products = 2 * (tokens * others + items) * layer_weights(config) + 2 * tokens * kv_weights
    pairs = query * (query + 1) / 2 + float((lens * (query + (lens + 1) / 2)).sum())
    last_pairs = float((query + lens).sum())
    attention = 4 * heads * head_dim * (pairs * others + last_pairs)
    head = 2 * items * config.embed * (config.head_rows if normalised else len(request["label_token_ids"]))
    return float(products + attention + head)


def least_bytes(config: ModelConfig) -> float:
    """Return the bytes that must be read at least once for any number of requests together: the layers' weights."""
    return float(ITEM_BYTES * len(config.layers) * layer_weights(config))
