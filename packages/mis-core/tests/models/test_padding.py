"""Rows of padding are zeros in every layer, so that products may pass over them."""

from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from mis_core.models.config import read_model_config
from mis_core.models.decoder import PADDING
from mis_core.models.weights import load_decoder


@pytest.mark.parametrize("family", ["qwen3", "qwen2"])  # with norms of heads, and with biases of keys and values
def test_hidden_states_of_padding_are_zeros(family: str, checkpoint_factory: Callable[..., Path]) -> None:
    path = checkpoint_factory(family)
    decoder = load_decoder(path, read_model_config(path), jnp.dtype("float32"))
    seen = np.array([True, False, True] + [False] * 61)

    def attend(q: Array, k: Array, v: Array, cache: None, layer: Array) -> tuple[Array, None]:
        return jnp.where(seen[:, None, None], q, 0), cache  # padding sees nothing

    tokens = jnp.where(seen, 7, PADDING).astype(jnp.int32)
    hidden, _ = decoder(tokens, jnp.arange(64, dtype=jnp.int32), jnp.arange(64, dtype=jnp.int32), attend, None)
    assert not np.asarray(hidden[~seen]).any()
    assert np.abs(np.asarray(hidden[seen])).min(axis=1).all()
