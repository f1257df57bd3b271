"""A real Hugging Face checkpoint directory with random weights, for tests and benchmarks, without PyTorch.

`transformers` and any server load it like a published one: `config.json`, safetensors, tokenizer.
How the weights are scaled so that comparisons mean something: `mis_testing.weights`.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mis_testing.published import PRUNED, SHAPES, divided
from mis_testing.shapes import GEMMA, CheckpointShape
from mis_testing.tokenizer import HABITS, build_tokenizer, write_tokenizer
from mis_testing.weights import write_weights

_ARCHITECTURES = {
    "qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama", "mistral": "Mistral", "ministral": "Ministral",
    "smollm3": "SmolLM3", "gemma2": "Gemma2", "gemma3": "Gemma3", "qwen3_5": "Qwen3_5",
}  # fmt: skip


def tiny_checkpoint(path: str | Path, family: str = "qwen3", **sizes: Any) -> Path:
    """Write a checkpoint directory and return its path.

    The same arguments always give the same files. `tiny_checkpoint(path, **SHAPES["qwen3-0.6b"])`
    writes published sizes; the tokenizer then covers fewer ids than the model, which is allowed.

    Args:
        path: Directory to write into; made if absent.
        family: `qwen3`, `qwen2` (Qwen2.5 too), `llama` (Llama 3.x, SmolLM2), `mistral`, `ministral`, `smollm3`,
            `gemma2`, `gemma3` or `qwen3_5`.
        **sizes: Fields of `CheckpointShape`, named as in `config.json`.

    Raises:
        ValueError: the family or a size is unknown or impossible; names it and what is allowed.
    """
    shape = CheckpointShape.of(family, **sizes)
    tokenizer_size = build_tokenizer(shape.family).get_vocab_size()
    vocab_size = shape.vocab_size or -(-tokenizer_size // 64) * 64
    if vocab_size < tokenizer_size:
        raise ValueError(f"vocab_size must be at least the tokenizer's {tokenizer_size}, not {vocab_size}.")
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", config_json(shape, vocab_size))
    write_tokenizer(directory, shape.family, shape.max_position_embeddings)
    write_weights(directory, shape, vocab_size)
    return directory


def divided_checkpoint(folder: Path, shape: str, divisor: int) -> None:
    """Write a checkpoint with random weights of a published or pruned shape, its sizes divided (`published.divided`).

    It is written beside the folder and renamed, so that the folder is complete or absent; another process may be first.

    Raises:
        OSError: it cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        tiny_checkpoint(partial, **divided((SHAPES | PRUNED)[shape], divisor))
        partial.chmod(0o755)
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def config_json(shape: CheckpointShape, vocab_size: int) -> dict[str, Any]:
    """Return the content of `config.json`."""
    tokenizer, habits = build_tokenizer(shape.family), HABITS[shape.family]
    classifier = f"For{'Token' if shape.labels_tokens else 'Sequence'}Classification"
    head = classifier if shape.head_labels else "ForCausalLM"
    is_text = shape.family in ("gemma3", "qwen3_5")  # of a larger model
    name = _ARCHITECTURES[shape.family] + ("Text" if is_text and shape.head_labels else "")
    config: dict[str, Any] = {
        "architectures": [name + head],
        "model_type": f"{shape.family}_text" if is_text else shape.family,
        "attention_dropout": 0.0,
        "bos_token_id": tokenizer.token_to_id(habits.bos),
        "eos_token_id": tokenizer.token_to_id(habits.eos),
        **({"hidden_activation": "gelu_pytorch_tanh"} if shape.family in GEMMA else {"hidden_act": "silu"}),
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "num_attention_heads": shape.num_attention_heads,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "use_cache": True,
        "vocab_size": vocab_size,
    }
    if shape.family == "smollm3":  # whose own default is beyond a tiny vocabulary
        config["pad_token_id"] = tokenizer.token_to_id(habits.pad)
    return config | _family_keys(shape) | _rope_keys(shape) | _head_keys(shape)


def _family_keys(shape: CheckpointShape) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if shape.family in GEMMA:
        return _gemma_keys(shape)
    if shape.family == "qwen3_5":
        return _qwen3_5_keys(shape)
    # Published Qwen2 configs have no head_dim; it is written only where it cannot be derived.
    if shape.family != "qwen2" or shape.width_of_head * shape.num_attention_heads != shape.hidden_size:
        keys["head_dim"] = shape.width_of_head
    if shape.family != "llama":
        keys["sliding_window"] = shape.sliding_window
    if shape.family == "ministral" or shape.layer_types:
        keys["layer_types"] = shape.layer_types or _from_the_middle(shape)
    if shape.family not in ("llama", "mistral", "ministral"):
        slides = shape.sliding_window is not None
        full = shape.num_hidden_layers // 2 if slides else shape.num_hidden_layers
        keys |= {"use_sliding_window": slides, "max_window_layers": full}
    if shape.family not in ("qwen2", "mistral", "ministral"):
        keys["attention_bias"] = shape.attention_bias
    if shape.family in ("llama", "smollm3"):
        keys |= {"mlp_bias": shape.mlp_bias, "pretraining_tp": 1 if shape.family == "llama" else 2}
    if shape.family == "smollm3":
        keys |= {"no_rope_layers": shape.no_rope_layers, "no_rope_layer_interval": shape.no_rope_layer_interval}
    return keys


def _gemma_keys(shape: CheckpointShape) -> dict[str, Any]:
    names = ("attention_bias", "final_logit_softcapping", "head_dim", "query_pre_attn_scalar", "sliding_window")
    keys: dict[str, Any] = {name: getattr(shape, name) for name in names}
    if shape.family == "gemma2":
        keys["attn_logit_softcapping"] = shape.attn_logit_softcapping
    if shape.layer_types or shape.rope_spelling == "new":
        two = ["sliding_attention", "full_attention"]
        keys["layer_types"] = shape.layer_types or [two[layer % 2] for layer in range(shape.num_hidden_layers)]
    elif shape.family == "gemma3":  # its own default is 6
        keys["sliding_window_pattern"] = 2
    return keys


def _qwen3_5_keys(shape: CheckpointShape) -> dict[str, Any]:
    names = (
        "head_dim", "full_attention_interval", "partial_rotary_factor", "linear_num_key_heads",
        "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim",
    )  # fmt: skip
    keys = {name: getattr(shape, name) for name in names}
    keys |= {"attn_output_gate": True, "mamba_ssm_dtype": "float32", "mlp_only_layers": [], "mtp_num_hidden_layers": 1}
    return keys | ({"layer_types": shape.layer_types} if shape.layer_types else {})


def _from_the_middle(shape: CheckpointShape) -> list[str]:
    full = shape.num_hidden_layers // 2 if shape.sliding_window is not None else shape.num_hidden_layers
    return ["full_attention"] * full + ["sliding_attention"] * (shape.num_hidden_layers - full)


def _rope_keys(shape: CheckpointShape) -> dict[str, Any]:
    local = shape.rope_local_base_freq
    if shape.rope_spelling == "new":
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta} | (shape.rope_scaling or {})
        if local is not None:
            sliding = {"rope_type": "default", "rope_theta": local}
            rope = {"full_attention": rope, "sliding_attention": sliding}
        return {"rope_parameters": rope, "dtype": shape.dtype}
    old = {} if local is None else {"rope_local_base_freq": local}
    return old | {"rope_theta": shape.rope_theta, "rope_scaling": shape.rope_scaling, "torch_dtype": shape.dtype}


def _head_keys(shape: CheckpointShape) -> dict[str, Any]:
    if not shape.head_labels:
        return {}
    return {
        "id2label": {str(row): label for row, label in enumerate(shape.head_labels)},
        "label2id": {label: row for row, label in enumerate(shape.head_labels)},
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
