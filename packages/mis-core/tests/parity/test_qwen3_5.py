"""Qwen3.5: the decoder computes what transformers does, with attention and recurrence written out plainly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float32

from mis_core.models.config import ModelConfig, read_model_config
from mis_core.models.decoder import Decoder
from mis_core.models.parallel import make_mesh
from mis_core.models.weights import load_decoder
from mis_kernels import from_bits
from mis_kernels.recurrence import RecurrentShape
from mis_testing.oracle import PointwiseOracle

pytestmark = pytest.mark.parity

TOKENS = 128
CLOSE = 1e-4

MODELS: dict[str, dict[str, Any]] = {
    "grouped heads, tied": {},
    "three recurrent layers of four, untied": {
        "num_hidden_layers": 8,
        "full_attention_interval": 4,
        "tie_word_embeddings": False,
        "partial_rotary_factor": 0.25,
    },
}
FULL_ONLY: dict[str, dict[str, Any]] = {
    "as many key heads": {"linear_num_key_heads": 4},
    "listed layers": {
        "num_hidden_layers": 6,
        "layer_types": ("linear_attention", "linear_attention", "full_attention") * 2,
    },
    "attention alone": {"layer_types": ("full_attention",) * 4},
    "yarn of a part of the head, new spelling": {
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
        "rope_spelling": "new",
    },
    "whole heads rotated, one KV head": {"partial_rotary_factor": 1.0, "num_key_value_heads": 1},
    "a convolution of two": {"linear_conv_kernel_dim": 2},
    "float32 files, shards": {"dtype": "float32", "shards": 2},
}


def recur_plainly(shape: RecurrentShape) -> Callable:
    """Return a `recur` for one sequence, token by token: equation 10 of arXiv 2412.06464."""

    def recur(inputs: Array, decay: Array, rate: Array, kernel: Array, cache: Any, number: Array) -> tuple[Array, Any]:
        padded = jnp.pad(inputs.astype(jnp.float32), ((shape.taps - 1, 0), (0, 0)))
        taps = [padded[tap : tap + len(inputs)] * kernel[:, tap] for tap in range(shape.taps)]
        mixed = jax.nn.silu(sum(taps))
        width = shape.key_heads * shape.key_dim
        q, k = (mixed[:, begin : begin + width].reshape(-1, shape.key_heads, shape.key_dim) for begin in (0, width))
        v = mixed[:, 2 * width :].reshape(-1, shape.value_heads, shape.value_dim)
        q, k = (x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
        q, k = (jnp.repeat(x, shape.value_heads // shape.key_heads, axis=1) for x in (q * shape.key_dim**-0.5, k))

        def token(state: Array, of: tuple[Array, ...]) -> tuple[Array, Array]:
            q, k, v, decay, rate = of
            state = state * jnp.exp(decay)[:, None, None]
            learnt = rate[:, None] * (v - jnp.einsum("hkv,hk->hv", state, k))
            state = state + jnp.einsum("hk,hv->hkv", k, learnt)
            return state, jnp.einsum("hkv,hk->hv", state, q)

        state = jnp.zeros((shape.value_heads, shape.key_dim, shape.value_dim), jnp.float32)
        _, output = lax.scan(token, state, (q, k, v, decay, rate))
        return output, cache

    return recur


def attend_plainly(config: ModelConfig) -> Callable:
    def attend(q: Array, k: Array, v: Array, cache: Any, layer: Array) -> tuple[Array, Any]:
        k, v = (jnp.repeat(x, config.attention.group, axis=1).astype(jnp.float32) for x in (k, v))
        logits = jnp.einsum("qhd,khd->hqk", q.astype(jnp.float32), k) * config.attention_scale
        weights = jax.nn.softmax(jnp.where(jnp.tri(len(q), dtype=bool), logits, -jnp.inf))
        return jnp.einsum("hqk,khd->qhd", weights, v).astype(q.dtype), cache

    return attend


def hidden_states(decoder: Decoder, ids: np.ndarray) -> Float32[np.ndarray, "rows embed"]:
    """Return the final-normed hidden states of every token of one sequence."""
    graph, weights = nnx.split(decoder)
    config, mesh = decoder.config, make_mesh(1, 1)
    recur = None if config.recurrence is None else recur_plainly(config.recurrence)

    def step(weights: Any, ids: Array) -> Array:
        rows = jnp.arange(len(ids))
        return nnx.merge(graph, weights)(ids, rows, rows, attend_plainly(config), None, recur)[0]

    run = jax.shard_map(step, mesh=mesh, in_specs=(P(), P()), out_specs=P(), check_vma=False)
    return np.asarray(jax.jit(run)(weights, jnp.asarray(ids)).astype(jnp.float32))


def load(path: Path, dtype: str = "float32") -> Decoder:
    return load_decoder(path, read_model_config(path), jnp.dtype(dtype), progress=False)


def sequence(config: ModelConfig) -> np.ndarray:
    return np.random.default_rng(0).integers(0, config.vocab_size - 64, TOKENS).astype(np.int32)


def logprobs(decoder: Decoder, ids: np.ndarray) -> Float32[np.ndarray, "rows vocab"]:
    head = np.asarray(from_bits(decoder.head_weight).astype(jnp.float32))
    logits = hidden_states(decoder, ids) @ head.T
    return np.asarray(jax.nn.log_softmax(logits))


def expected(path: Path, ids: np.ndarray) -> Float32[np.ndarray, "rows vocab"]:
    oracle = PointwiseOracle(path)
    torch = oracle._torch
    with torch.inference_mode():
        logits = oracle._model(torch.tensor(ids[None].astype(np.int64)), use_cache=False).logits[0]
        return torch.log_softmax(logits.float(), -1).numpy()


@pytest.mark.parametrize("name", [*MODELS, *(pytest.param(name, marks=pytest.mark.full) for name in FULL_ONLY)])
def test_log_probabilities_are_those_of_transformers(name: str, checkpoint_factory: Callable[..., Path]) -> None:
    path = checkpoint_factory("qwen3_5", **(MODELS | FULL_ONLY)[name])
    decoder = load(path)
    ids = sequence(decoder.config)
    np.testing.assert_allclose(logprobs(decoder, ids), expected(path, ids), atol=CLOSE, rtol=0)
