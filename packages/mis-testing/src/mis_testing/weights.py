"""Random weights whose logits mean something, written as safetensors without PyTorch.

A fresh network with the usual 0.02 scale gives nearly flat logits and nearly uniform attention; on it a
scorer that swaps two items or forgets positions still passes. Here every tensor is scaled so that
activations have known sizes, for any width, depth and head size:

* embeddings have unit variance where they come to the first layer, so the residual stream starts with root mean
  square (RMS) 1;
* all layers together add about `LAYERS_RMS` to it, each of the `2 * layers` branches an equal share
  (1 / sqrt(depth), so that rounding errors do not grow chaotically with depth);
* attention logits have a standard deviation of about `ATTENTION_STD`;
* final logits have a standard deviation of `LOGIT_STD`. The final norm's weights carry that scale, half
  of them with a minus sign; without the signs a tied head would mostly repeat the last token.

Norm weights and biases are random too, so forgetting one shows. Gemmas and Qwen3.5 store one less than what their
norms multiply by, and Gemmas set the size of a branch by the norm behind it. What a recurrent layer remembers fades
within a few tokens in some heads, and not within a text in others.
"""

import itertools
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from mis_testing.shapes import ADDS_ONE, GEMMA, CheckpointShape

LOGIT_STD = 2.0
ATTENTION_STD = 1.5
LAYERS_RMS = 1.0

_SILU_GATE_RMS = 0.6  # RMS of silu(a) * b for independent standard normal a and b
_BLOCK_ELEMENTS = 1 << 22  # random numbers made at once, so that a large tensor needs no float32 copy of itself
_DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a checkpoint: normal values `mean + std * n`, half of them negated if `signed`, less `less`."""

    name: str
    shape: tuple[int, ...]
    std: float
    mean: float = 0.0
    signed: bool = False
    less: float = 0.0

    @property
    def elements(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


def tensor_specs(shape: CheckpointShape, vocab_size: int) -> Iterator[TensorSpec]:
    """List the tensors of a checkpoint in the order published checkpoints have, with their scale."""
    hidden, is_gemma, adds_one = shape.hidden_size, shape.family in GEMMA, shape.family in ADDS_ONE
    embedding_std = 1 / math.sqrt(hidden) if is_gemma else 1.0
    yield TensorSpec("model.embed_tokens.weight", (vocab_size, hidden), embedding_std)
    for layer in range(shape.num_hidden_layers):
        yield from _layer_specs(shape, f"model.layers.{layer}.", is_recurrent=shape.is_recurrent(layer))
    head_std = embedding_std if shape.tie_word_embeddings and not shape.head_labels else 1.0
    final_scale = LOGIT_STD / math.sqrt(hidden) / head_std
    yield TensorSpec("model.norm.weight", (hidden,), 0.1 * final_scale, final_scale, signed=True, less=float(adds_one))
    if shape.head_labels:
        yield TensorSpec("score.weight", (len(shape.head_labels), hidden), 1.0)
        if shape.labels_tokens:
            yield TensorSpec("score.bias", (len(shape.head_labels),), 1.0)
    elif not shape.tie_word_embeddings:
        yield TensorSpec("lm_head.weight", (vocab_size, hidden), 1.0)


def _layer_specs(shape: CheckpointShape, prefix: str, *, is_recurrent: bool) -> Iterator[TensorSpec]:
    hidden, mlp, is_gemma = shape.hidden_size, shape.intermediate_size, shape.family in GEMMA
    branch_rms = LAYERS_RMS / math.sqrt(2 * shape.num_hidden_layers)
    unit = 1 / math.sqrt(hidden)  # a normalised input row gives outputs of RMS 1
    yield _norm(shape, prefix + "input_layernorm", hidden)
    yield from (_recurrent_specs if is_recurrent else _attention_specs)(shape, prefix, unit, branch_rms)
    if is_gemma:
        yield _norm(shape, prefix + "post_attention_layernorm", hidden, branch_rms)
        yield _norm(shape, prefix + "pre_feedforward_layernorm", hidden)
        yield _norm(shape, prefix + "post_feedforward_layernorm", hidden, branch_rms)
    else:
        yield _norm(shape, prefix + "post_attention_layernorm", hidden)
    yield TensorSpec(prefix + "mlp.gate_proj.weight", (mlp, hidden), unit)
    yield TensorSpec(prefix + "mlp.up_proj.weight", (mlp, hidden), unit)
    yield TensorSpec(prefix + "mlp.down_proj.weight", (hidden, mlp), branch_rms / _SILU_GATE_RMS / math.sqrt(mlp))
    if shape.mlp_bias:
        yield TensorSpec(prefix + "mlp.gate_proj.bias", (mlp,), 0.3)
        yield TensorSpec(prefix + "mlp.up_proj.bias", (mlp,), 0.3)
        yield TensorSpec(prefix + "mlp.down_proj.bias", (hidden,), 0.3 * branch_rms)


def _norm(shape: CheckpointShape, name: str, size: int, scale: float = 1.0) -> TensorSpec:
    return TensorSpec(f"{name}.weight", (size,), 0.1 * min(scale, 1.0), scale, less=float(shape.family in ADDS_ONE))


def _attention_specs(shape: CheckpointShape, prefix: str, unit: float, branch_rms: float) -> Iterator[TensorSpec]:
    hidden = shape.hidden_size
    q_width = shape.num_attention_heads * shape.width_of_head
    kv_width = shape.num_key_value_heads * shape.width_of_head
    # q . k / sqrt(head_dim) has the product of both RMS as its standard deviation; with qk-norm the
    # norm's weights set them, otherwise the projections do.
    qk_rms = math.sqrt(ATTENTION_STD)
    has_qk_norm = shape.family in ("qwen3", "gemma3", "qwen3_5")
    has_qkv_bias = shape.family == "qwen2" or shape.attention_bias
    is_gated = shape.family == "qwen3_5"
    qk_std = unit if has_qk_norm else unit * qk_rms
    for name, width, std in (("q", q_width * (1 + is_gated), qk_std), ("k", kv_width, qk_std), ("v", kv_width, unit)):
        yield TensorSpec(f"{prefix}self_attn.{name}_proj.weight", (width, hidden), std)
        if has_qkv_bias:
            yield TensorSpec(f"{prefix}self_attn.{name}_proj.bias", (width,), 0.3)
    if has_qk_norm:
        yield _norm(shape, prefix + "self_attn.q_norm", shape.width_of_head, qk_rms)
        yield _norm(shape, prefix + "self_attn.k_norm", shape.width_of_head, qk_rms)
    # Attention averages several values, which shrinks them; the factor 2 makes up for a part of it. Gates halve them.
    out_std = (4 if is_gated else 2) * branch_rms / math.sqrt(q_width)
    yield TensorSpec(prefix + "self_attn.o_proj.weight", (hidden, q_width), out_std)
    if shape.attention_bias:
        yield TensorSpec(prefix + "self_attn.o_proj.bias", (hidden,), 0.3 * branch_rms)


def _recurrent_specs(shape: CheckpointShape, prefix: str, unit: float, branch_rms: float) -> Iterator[TensorSpec]:
    hidden, heads, taps = shape.hidden_size, shape.linear_num_value_heads, shape.linear_conv_kernel_dim
    values = heads * shape.linear_value_head_dim
    channels = 2 * shape.linear_num_key_heads * shape.linear_key_head_dim + values
    name = prefix + "linear_attn."
    yield TensorSpec(name + "dt_bias", (heads,), 1.5, -2.0)
    yield TensorSpec(name + "A_log", (heads,), 1.0)
    yield TensorSpec(name + "conv1d.weight", (channels, 1, taps), 1 / math.sqrt(taps))
    yield TensorSpec(name + "norm.weight", (shape.linear_value_head_dim,), 0.1, 1.0)
    yield TensorSpec(name + "out_proj.weight", (hidden, values), branch_rms / _SILU_GATE_RMS / math.sqrt(values))
    for part, width in (("qkv", channels), ("z", values), ("b", heads), ("a", heads)):
        yield TensorSpec(f"{name}in_proj_{part}.weight", (width, hidden), unit)


def random_tensor(spec: TensorSpec, dtype: str, seed: int) -> np.ndarray:
    """Draw one tensor block by block; its values depend on seed, name and shape only."""
    random = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
    values = np.empty(spec.elements, _DTYPES[dtype])
    for start in range(0, spec.elements, _BLOCK_ELEMENTS):
        block = random.standard_normal(min(_BLOCK_ELEMENTS, spec.elements - start), dtype=np.float32)
        block *= spec.std
        block += spec.mean
        if spec.signed:
            block *= random.permuted(np.resize(np.array([-1, 1], np.float32), block.size))
        block -= spec.less
        values[start : start + block.size] = block
    return values.reshape(spec.shape)


def write_weights(path: Path, shape: CheckpointShape, vocab_size: int) -> None:
    """Write the safetensors files, and the index where there are several. Holds one file in memory."""
    shards = _split(list(tensor_specs(shape, vocab_size)), shape.shards)
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for number, specs in enumerate(shards, start=1):
        single = len(shards) == 1
        name = "model.safetensors" if single else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {spec.name: random_tensor(spec, shape.dtype, shape.seed) for spec in specs}
        save_file(tensors, path / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
        total_bytes += sum(tensor.nbytes for tensor in tensors.values())
    if len(shards) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _split(specs: list[TensorSpec], shards: int) -> list[list[TensorSpec]]:
    """Cut the list into `shards` runs of roughly equal length, none empty."""
    if shards > len(specs):
        raise ValueError(f"shards ({shards}) must not exceed the number of tensors ({len(specs)}).")
    ends = [len(specs) * number // shards for number in range(shards + 1)]
    return [specs[begin:end] for begin, end in itertools.pairwise(ends)]
