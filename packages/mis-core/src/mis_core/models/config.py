"""Model shapes and switches, read from a Hugging Face `config.json`.

A family is data: an entry of `FAMILIES`. Anything in a `config.json` that would change the
arithmetic and is not understood here is refused by name, never ignored.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mis_core.errors import ModelError
from mis_core.models.rope import RopeConfig, parse_rope, positive_number


@dataclass(frozen=True)
class Family:
    """What distinguishes one architecture from another in the shared decoder.

    Attributes:
        qkv_bias: Query, key and value projections have biases, whatever `config.json` says.
        bias_settings: Settings of its `config.json` that give other projections biases.
        qk_norm: Queries and keys are RMS-normalised per head before RoPE.
        head_dim: Head size where `config.json` is silent; None: `hidden_size / num_attention_heads`.
        max_positions: Longest sequence in tokens where it is silent, as transformers has it.
    """

    qkv_bias: bool = False
    bias_settings: tuple[str, ...] = ()
    qk_norm: bool = False
    head_dim: int | None = None
    max_positions: int = 32768


FAMILIES = {
    "Qwen3ForCausalLM": Family(qk_norm=True, head_dim=128, bias_settings=("attention_bias",)),
    "Qwen2ForCausalLM": Family(qkv_bias=True),
    "LlamaForCausalLM": Family(max_positions=2048, bias_settings=("attention_bias", "mlp_bias")),
}

# Settings that change the arithmetic, with the only values the decoder implements.
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "partial_rotary_factor": (1, 1.0, None),
    "quantization_config": (None,),
    "pretraining_tp": (1, None),
}


@dataclass(frozen=True)
class ModelConfig:
    """One decoder's shape; lengths and counts in elements.

    Attributes:
        vocab_size: Rows of the embedding and of the head, padding rows included.
        max_positions: Longest sequence the model was trained for, in tokens.
        tied: The head is the embedding.
        attention_bias: All four projections of attention have biases.
        mlp_bias: All three projections of the MLP have biases.
    """

    family: Family
    vocab_size: int
    embed: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    norm_epsilon: float
    tied: bool
    rope: RopeConfig
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def qkv_bias(self) -> bool:
        """Whether query, key and value projections have biases."""
        return self.family.qkv_bias or self.attention_bias

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads


def read_model_config(directory: Path) -> ModelConfig:
    """Read `config.json`, in the old and the new spelling of RoPE settings.

    Raises:
        ModelError: the file is missing or broken, or asks for something that is not implemented.
    """
    path = directory / "config.json"
    if not directory.is_dir():
        raise ModelError(f"Model directory {str(directory)!r} does not exist.")
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise ModelError(f"{path}: missing; a model directory needs a config.json.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not valid JSON ({error}).") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{path}: holds a JSON {type(raw).__name__}, not an object.")
    try:
        return _parse(raw)
    except ModelError as error:
        raise ModelError(f"{path}: {error.message}") from None


def _parse(raw: dict[str, Any]) -> ModelConfig:
    family = _family(raw)
    for name, allowed in _SUPPORTED.items():
        if name in raw and raw[name] not in allowed:
            raise ModelError(f"{name} = {json.dumps(raw[name])[:80]} is not supported (only {json.dumps(allowed[0])}).")
    _check_no_layer_slides(raw)
    embed, heads = _count(raw, "hidden_size"), _count(raw, "num_attention_heads")
    kv_heads = _count(raw, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({kv_heads}).")
    max_positions = _count(raw, "max_position_embeddings", family.max_positions)
    head_dim = _count(raw, "head_dim", family.head_dim or embed // heads)
    if head_dim % 2:
        raise ModelError(f"head_dim must be even, since RoPE turns pairs, not {head_dim}.")
    return ModelConfig(
        family=family,
        vocab_size=_count(raw, "vocab_size"),
        embed=embed,
        mlp=_count(raw, "intermediate_size"),
        layers=_count(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=max_positions,
        norm_epsilon=positive_number(raw, "rms_norm_eps", 1e-6),
        tied=bool(raw.get("tie_word_embeddings", False)),
        rope=parse_rope(raw, head_dim, max_positions),
        attention_bias=_has_bias(raw, "attention_bias", family),
        mlp_bias=_has_bias(raw, "mlp_bias", family),
    )


def _family(raw: dict[str, Any]) -> Family:
    names = raw.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"architectures must be a list of names, not {json.dumps(names)[:80]}.")
    for name in names:
        if name in FAMILIES:
            return FAMILIES[name]
    raise ModelError(f"architecture {', '.join(names) or '(none)'} is not supported; known: {', '.join(FAMILIES)}.")


def _has_bias(raw: dict[str, Any], name: str, family: Family) -> bool:
    value = raw.get(name)
    if value is None or value is False:
        return False
    if value is not True or name not in family.bias_settings:
        raise ModelError(f"{name} = {json.dumps(value)[:80]} is not supported for this architecture.")
    return True


def _check_no_layer_slides(raw: dict[str, Any]) -> None:
    """Refuse sliding windows; `use_sliding_window` makes none where the first layer that slides is past the last."""
    kinds = raw.get("layer_types")
    if any(kind != "full_attention" for kind in kinds or []):
        raise ModelError("layer_types: only full_attention is supported.")
    first = raw.get("max_window_layers", 28)
    if raw.get("use_sliding_window") and not kinds and raw.get("sliding_window", 4096) is not None:
        layers = _count(raw, "num_hidden_layers")
        if not isinstance(first, int) or first < layers:
            raise ModelError(f"use_sliding_window: layers {first} to {layers - 1} slide, which is not supported.")


def _count(raw: dict[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"{name} must be a positive integer, not {json.dumps(value)[:40]}.")
    return value
