"""Rows of padding are zeros in every layer, so that products may pass over them."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import Array
from jax.sharding import PartitionSpec as P

from mis_core.models.config import read_model_config
from mis_core.models.decoder import PADDING
from mis_core.models.parallel import make_mesh
from mis_core.models.weights import load_decoder


@pytest.mark.parametrize("family", ["qwen3", "qwen2"])  # with norms of heads, and with biases of keys and values
def test_hidden_states_of_padding_are_zeros(family: str, checkpoint_factory: Callable[..., Path]) -> None:
    path = checkpoint_factory(family)
    graph, weights = nnx.split(load_decoder(path, read_model_config(path), jnp.dtype("float32"), progress=False))
    seen = np.array([True, False, True] + [False] * 61)

    def attend(q: Array, k: Array, v: Array, cache: None, layer: Array, rows: object) -> tuple[Array, None]:
        return jnp.where(seen[:, None, None], q, 0), cache  # padding sees nothing

    def run(weights: nnx.State, tokens: Array, rows: Array) -> Array:
        return nnx.merge(graph, weights)(tokens, rows, rows, attend, None)[0]

    tokens, rows = jnp.where(seen, 7, PADDING).astype(jnp.int32), jnp.arange(64, dtype=jnp.int32)
    on_mesh = jax.shard_map(run, mesh=make_mesh(1, 1), in_specs=P(), out_specs=P(), check_vma=False)
    hidden = np.asarray(jax.jit(on_mesh)(weights, tokens, rows))
    assert not hidden[~seen].any()
    assert hidden[seen].any(axis=1).all()
