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
from safetensors.numpy import load_file

from larger_models import larger_checkpoint, with_classes
from mis_core import Engine
from mis_core.checkpoints.directory import DirectoryCheckpoint
from mis_core.models import recurrent, rope, tensors, weights
from mis_core.models.config import ModelConfig, read_model_config
from mis_core.models.decoder import Decoder
from mis_core.models.parallel import make_mesh
from mis_core.models.weights import load_decoder
from mis_kernels import from_bits, gated_delta
from mis_kernels.backends.native import library
from mis_kernels.backends.xla.backend import XlaCpuBackend
from mis_kernels.recurrence import CARRIED, CHUNK, EMPTY, Chunks, RecurrentShape, RecurrentStates
from mis_kernels.segments import NOWHERE
from mis_testing.bits import assert_bits_equal
from mis_testing.options import SMALL_ENGINE
from mis_testing.oracle import PointwiseOracle
from mis_testing.tolerances import assert_scores_close

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
        inputs = inputs[:, : shape.channels].astype(jnp.float32)
        padded = jnp.pad(inputs, ((shape.taps - 1, 0), (0, 0)))
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
    def attend(q: Array, k: Array, v: Array, cache: Any, layer: Array, rows: Any) -> tuple[Array, Any]:
        k, v = (jnp.repeat(x, config.attention.group, axis=1).astype(jnp.float32) for x in (k, v))
        logits = jnp.einsum("qhd,khd->hqk", q.astype(jnp.float32), k) * config.attention_scale
        weights = jax.nn.softmax(jnp.where(jnp.tri(len(q), dtype=bool), logits, -jnp.inf))
        return jnp.einsum("hqk,khd->qhd", weights, v).astype(q.dtype), cache

    return attend


def recur_in_chunks(shape: RecurrentShape) -> Callable:
    """Return a `recur` for one sequence, by the kernels' operation."""

    def recur(inputs: Array, decay: Array, rate: Array, kernel: Array, cache: Any, number: Array) -> tuple[Array, Any]:
        starts = jnp.arange(0, len(inputs), CHUNK)
        reads = jnp.full(len(starts), CARRIED).at[0].set(EMPTY)
        full = jnp.full(len(starts), CHUNK)
        chunks = Chunks(starts, full, reads, jnp.full(len(starts), NOWHERE), jnp.int32(len(starts)))
        states = RecurrentStates.zeros(1, shape)
        return gated_delta(inputs, decay, rate, kernel, states, chunks, shape=shape, backend="xla")[0], cache

    return recur


def hidden_states(
    decoder: Decoder, ids: np.ndarray, rows: np.ndarray | None = None, make_recur: Callable = recur_plainly
) -> Float32[np.ndarray, "rows embed"]:
    """Return the final-normed hidden states of some rows of one sequence; default: of all."""
    graph, state = nnx.split(decoder)
    config, mesh = decoder.config, make_mesh(1, 1)
    recur = None if config.recurrence is None else make_recur(config.recurrence)

    def step(state: Any, ids: Array, rows: Array) -> Array:
        positions = jnp.arange(len(ids))
        return nnx.merge(graph, state)(ids, positions, rows, attend_plainly(config), None, recur)[0]

    run = jax.shard_map(step, mesh=mesh, in_specs=(P(), P(), P()), out_specs=P(), check_vma=False)
    rows = np.arange(len(ids), dtype=np.int32) if rows is None else rows
    return np.asarray(jax.jit(run)(state, jnp.asarray(ids), jnp.asarray(rows)).astype(jnp.float32))


def load(path: Path, dtype: str = "float32", quantization: str = "none") -> Decoder:
    config = read_model_config(path)
    return load_decoder(path, config, jnp.dtype(dtype), progress=False, quantization=quantization)


def sequence() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 900, TOKENS).astype(np.int32)


def logits(decoder: Decoder, make_recur: Callable = recur_plainly) -> Float32[np.ndarray, "rows vocab"]:
    head = np.asarray(from_bits(decoder.head_weight).astype(jnp.float32))
    return hidden_states(decoder, sequence(), make_recur=make_recur) @ head.T


def logprobs(decoder: Decoder, make_recur: Callable = recur_plainly) -> Float32[np.ndarray, "rows vocab"]:
    return np.asarray(jax.nn.log_softmax(logits(decoder, make_recur)))


def expected(path: Path, dtype: str = "float32") -> Float32[np.ndarray, "rows vocab"]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), attn_implementation="eager")
    with torch.inference_mode():
        logits = model.eval()(torch.tensor(sequence()[None].astype(np.int64)), use_cache=False).logits[0]
        return torch.log_softmax(logits.float(), -1).numpy()


def assert_equal_to_transformers(path: Path, make_recur: Callable = recur_plainly) -> None:
    np.testing.assert_allclose(logprobs(load(path), make_recur), expected(path), atol=CLOSE, rtol=0)


@pytest.mark.parametrize("name", [*MODELS, *(pytest.param(name, marks=pytest.mark.full) for name in FULL_ONLY)])
def test_log_probabilities_are_those_of_transformers(name: str, checkpoint_factory: Callable[..., Path]) -> None:
    assert_equal_to_transformers(checkpoint_factory("qwen3_5", **(MODELS | FULL_ONLY)[name]))


def test_so_they_are_with_the_kernels_operation(checkpoint_factory: Callable[..., Path]) -> None:
    assert_equal_to_transformers(checkpoint_factory("qwen3_5"), recur_in_chunks)


@pytest.mark.skipif(library.why_not() is not None, reason=f"needs the native library: {library.why_not()}")
def test_so_they_are_with_native_products(checkpoint_factory: Callable[..., Path]) -> None:
    path = checkpoint_factory("qwen3_5")
    decoder = load(path, "bfloat16")
    assert decoder.backend.name == "native"
    assert_scores_close(logprobs(decoder), expected(path, "bfloat16"), "bfloat16", "logprob")


@pytest.mark.usefixtures("plain_weights")
def test_so_they_are_where_norms_are_folded(
    checkpoint_factory: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(XlaCpuBackend, "folds_norms", True)
    assert_equal_to_transformers(checkpoint_factory("qwen3_5"))


def test_chosen_rows_have_the_bits_of_all(checkpoint_factory: Callable[..., Path]) -> None:
    decoder, rows = load(checkpoint_factory("qwen3_5")), np.arange(64, dtype=np.int32) * 2
    assert_bits_equal(hidden_states(decoder, sequence(), rows), hidden_states(decoder, sequence())[rows])


def test_a_classifier_has_the_values_of_transformers(
    checkpoint_factory: Callable[..., Path], oracle_factory: Callable[..., PointwiseOracle]
) -> None:
    path = checkpoint_factory("qwen3_5", head_labels=("no", "yes", "perhaps"))
    theirs = oracle_factory(path, "float32").head_values([sequence().tolist()])
    np.testing.assert_allclose(logits(load(path))[-1:], theirs, atol=CLOSE, rtol=0)


@pytest.mark.usefixtures("plain_weights")
def test_int8_leaves_the_rates_as_they_are(checkpoint_factory: Callable[..., Path]) -> None:
    path = checkpoint_factory("qwen3_5")
    exact, quantized = load(path), load(path, quantization="int8")
    assert_bits_equal(np.asarray(exact.recurrent.rates[...]), np.asarray(quantized.recurrent.rates[...]))
    difference = np.abs(logprobs(quantized) - logprobs(exact))
    assert 1e-3 < difference.max() < 0.5


def test_the_text_of_a_model_that_also_reads_images(tmp_path: Path, checkpoint_factory: Callable[..., Path]) -> None:
    """Tensors of images, and of layers that guess tokens ahead, are left out."""
    text = checkpoint_factory("qwen3_5")
    path = larger_checkpoint(tmp_path / "whole", text)
    assert {"model", "mtp"} == {name.split(".")[0] for name in load_file(path / "model.safetensors")}
    assert any(name.startswith("model.visual.") for name in load_file(path / "model.safetensors"))
    assert_bits_equal(logprobs(load(path)), logprobs(load(text)))


@pytest.mark.parametrize("kind", ["Sequence", pytest.param("Token", marks=pytest.mark.full)])
def test_classifiers_of_a_model_that_also_reads_images(
    kind: str, tmp_path: Path, checkpoint_factory: Callable[..., Path]
) -> None:
    architecture = f"Qwen3_5For{kind}Classification"
    whole = larger_checkpoint(tmp_path / "whole", checkpoint_factory("qwen3_5"))
    path = with_classes(whole, architecture, ("no", "yes", "perhaps"))
    theirs = PointwiseOracle(path, "float32").head_values([sequence().tolist()])
    ours = logits(load(path))
    if kind == "Token":
        with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE) as engine:
            ours = engine.token_classify([sequence().tolist()], use_activation=False).probabilities
    np.testing.assert_allclose(ours[-len(theirs) :], theirs, atol=CLOSE, rtol=0)


Plant = Callable[[pytest.MonkeyPatch], None]


def gate_first(layer: recurrent.RecurrentLayer, output: Array, gate: Array) -> Array:
    gated = output * jax.nn.silu(gate.astype(jnp.float32)).reshape(output.shape)
    normed = layer.backend.rms_norm(gated, layer.state_norm[...], layer.config.norm_epsilon)
    return normed.reshape(gate.shape).astype(gate.dtype)


def rotate_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rope, "_rotated_elements", lambda raw, found, head_dim, part: found.clear() or head_dim)


def exchange_gates(patch: pytest.MonkeyPatch) -> None:
    own = tensors._one_of_two
    patch.setattr(tensors, "_one_of_two", lambda index, *given: own(1 - index, *given))


def exchange_heads(patch: pytest.MonkeyPatch) -> None:
    own = recurrent.RecurrentLayer._rates

    def rates(layer: recurrent.RecurrentLayer, normed: Any) -> tuple[Array, Array]:
        decay, rate = own(layer, normed)
        return decay[:, ::-1], rate

    patch.setattr(recurrent.RecurrentLayer, "_rates", rates)


FAULTS: dict[str, Plant] = {
    "the gate before the norm": lambda patch: patch.setattr(recurrent.RecurrentLayer, "_gated", gate_first),
    "norms without the one": lambda patch: patch.setattr(DirectoryCheckpoint, "norms_have_one", True),
    "a one for the norm of outputs": lambda patch: patch.setattr(weights, "NORMS", (*weights.NORMS, "state_norm")),
    "all of a head rotated": rotate_all,
    "pairs as they are stored": lambda patch: patch.setattr(
        tensors, "_halves_of_rotated", lambda rotated, head_dim: np.arange(head_dim)
    ),
    "gates for queries": exchange_gates,
    "decays of other heads": exchange_heads,
}
PER_COMMIT = ("the gate before the norm", "all of a head rotated")


@pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=() if each in PER_COMMIT else pytest.mark.full) for each in FAULTS]
)
def test_what_makes_a_qwen3_5_is_noticed_when_it_is_forgotten(
    fault: str, checkpoint_factory: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkpoint_factory("qwen3_5")
    theirs = expected(path)
    FAULTS[fault](monkeypatch)
    assert np.abs(logprobs(load(path)) - theirs).max() > 100 * CLOSE
