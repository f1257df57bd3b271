"""Write a checkpoint directory as a GGUF file, as llama.cpp's converter does. Needs the `gguf` package."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes  # noqa: F401 - NumPy knows bfloat16 by it
import numpy as np
from safetensors import safe_open
from tokenizers import Tokenizer

_ARCHITECTURES = {
    "llama": "LLAMA",
    "qwen2": "QWEN2",
    "qwen3": "QWEN3",
    "smollm3": "SMOLLM3",
    "gemma2": "GEMMA2",
    "gemma3_text": "GEMMA3",
}
_PRE = {"qwen2": "qwen2", "qwen3": "qwen2"}  # of others: llama-bpe
_BYTE = int(gguf.TokenType.BYTE)
_GEMMA = ("gemma2", "gemma3_text")
_STORED = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_HEAD = "cls.output.weight"
_REORDERED = ("llama", "smollm3")


def write_gguf(
    file: Path,
    directory: Path,
    quantization: str | None = "F32",
    general_name: str | None = None,
    *,
    has_vocabulary: bool = True,
    fields: Mapping[str, str | float] = {},
    more_tensors: Mapping[str, np.ndarray] = {},
    answers: tuple[int, int] | None = None,
    most_tensors: int = 0,
    has_bare_first: bool = False,
) -> Path:
    """Write a checkpoint as a GGUF file, or as several parts, and return the path of the file or of the first part.

    Args:
        file: Where to.
        directory: A checkpoint; the head of one that classifies texts becomes a reranker's.
        quantization: Type of the matrices: one that `gguf` can quantise to; None: that which they are stored in.
        general_name: The model's name in the header; None: the header has none.
        has_vocabulary: Whether the tokenizer is written, too; it must be one of `tiny_checkpoint`.
        fields: More of the header, texts and numbers.
        more_tensors: More of them, by the names that they have in the file.
        answers: Ids of `yes` and `no`, of whose rows alone the converter makes the head of a Qwen3-Reranker; None: the
            head is written as it is.
        most_tensors: Most tensors of a part; 0: all are in one file, which alone has the given name.
        has_bare_first: Whether the first part has no tensors, as `--no-tensor-first-split` of the converter makes it.
    """
    config = json.loads((directory / "config.json").read_text())
    family = config["model_type"]
    architecture = gguf.MODEL_ARCH[_ARCHITECTURES[family]]
    writer = gguf.GGUFWriter(
        str(file),
        gguf.MODEL_ARCH_NAMES[architecture],
        split_max_tensors=most_tensors,
        small_first_shard=has_bare_first,
    )
    if general_name is not None:
        writer.add_name(general_name)
    _write_settings(writer, config)
    for name, value in fields.items():
        if isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_float32(name, value)
    labels = ["yes", "no"] if answers else [*config.get("id2label", {}).values()]
    if labels:
        writer.add_pooling_type(gguf.PoolingType.RANK)
        writer.add_classifier_output_labels(labels)
    if has_vocabulary:
        _write_tokenizer(writer, directory, config, _PRE.get(family, "llama-bpe"))
    else:
        writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in more_tensors.items():
        writer.add_tensor(name, tensor)
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    for part in sorted(directory.glob("*.safetensors")):
        with safe_open(part, framework="np") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a mapping
                tensor = stored.get_tensor(name)
                type_name = "F32" if tensor.ndim == 1 else quantization or _STORED[tensor.dtype.name]
                tensor = tensor.astype(np.float32)
                if family in _GEMMA and name.endswith("norm.weight"):
                    tensor += 1
                projection = name.split(".")[-2]
                if projection in heads and family in _REORDERED:
                    tensor = _reordered(tensor, heads[projection])
                kind = gguf.GGMLQuantizationType[type_name]
                if answers and name == head:
                    writer.add_tensor(_HEAD, gguf.quantize(tensor[[*answers]], kind), raw_dtype=kind)
                if not (answers and name == "lm_head.weight"):
                    stored_name = _HEAD if name == "score.weight" else names.get_name(name, (".weight", ".bias"))
                    writer.add_tensor(stored_name, gguf.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return writer.format_shard_names(file)[0]


def tokenizer_fields(tokenizer: Tokenizer, pre: str) -> dict[str, Any]:
    """Return what a GGUF file has of a tokenizer, by the names behind `tokenizer.ggml.`.

    Args:
        tokenizer: Byte-level BPE, or SentencePiece's: merges that fall back to bytes, whose pieces are in their order.
        pre: What splits texts before byte-level BPE.
    """
    content = json.loads(tokenizer.to_str())
    tokens = [""] * tokenizer.get_vocab_size()
    types = [int(gguf.TokenType.NORMAL)] * len(tokens)
    for token, index in tokenizer.get_vocab().items():
        tokens[index] = token
    for index, token in tokenizer.get_added_tokens_decoder().items():
        types[index] = int(gguf.TokenType.CONTROL if token.special else gguf.TokenType.USER_DEFINED)
    if content["model"]["byte_fallback"]:
        types = [
            _BYTE if re.fullmatch("<0x[0-9A-F]{2}>", token) else kind for token, kind in zip(tokens, types, strict=True)
        ]
        scores = [-float(index) for index in range(len(tokens))]
        return {"model": "llama", "pre": "default", "tokens": tokens, "token_type": types, "scores": scores}
    merges = [" ".join(pair) for pair in content["model"]["merges"]]
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges}


def _write_settings(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 1e4)}
    rope = rope.get("full_attention", rope)
    scaling = config.get("rope_scaling") or rope
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta") or config["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(config["vocab_size"])
    if config["model_type"] in _GEMMA:
        _write_gemma(writer, config)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
        if "original_max_position_embeddings" in scaling:
            writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    elif kind == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(scaling, rope, config, head_dim))


def _write_gemma(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Write what the converter does of Gemma, and which layers slide, as newer ones do."""
    for name, write in {
        "attn_logit_softcapping": writer.add_attn_logit_softcapping,
        "final_logit_softcapping": writer.add_final_logit_softcapping,
    }.items():
        if config.get(name) is not None:
            write(config[name])
    every = config.get("sliding_window_pattern", 2)
    slides = [layer % every != 0 for layer in range(1, 1 + config["num_hidden_layers"])]
    if "layer_types" in config:
        slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(slides)
    of_sliding = config.get("rope_parameters", {}).get("sliding_attention", {})
    if (theta := of_sliding.get("rope_theta", config.get("rope_local_base_freq"))) is not None:
        writer.add_rope_freq_base_swa(theta)


def _llama3_factors(scaling: dict[str, Any], rope: dict[str, Any], config: dict[str, Any], size: int) -> np.ndarray:
    """Return what every frequency is divided by: the ratio of transformers' own with and without the extension."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theta = rope.get("rope_theta") or config["rope_theta"]
    loaded = LlamaConfig(
        head_dim=size,
        max_position_embeddings=config["max_position_embeddings"],
        rope_parameters=scaling | {"rope_theta": theta, "rope_type": "llama3"},
    )
    extended = ROPE_INIT_FUNCTIONS["llama3"](loaded, "cpu")[0].numpy()
    plain = 1 / theta ** (np.arange(0, size, 2) / size)
    return (plain / extended).astype(np.float32)


def _write_tokenizer(writer: gguf.GGUFWriter, directory: Path, config: dict[str, Any], pre: str) -> None:
    fields = tokenizer_fields(Tokenizer.from_file(str(directory / "tokenizer.json")), pre)
    missing = range(len(fields["tokens"]), config["vocab_size"])
    writer.add_tokenizer_model(fields["model"])
    writer.add_tokenizer_pre(fields["pre"])
    writer.add_token_list(fields["tokens"] + [f"[PAD{index}]" for index in missing])
    writer.add_token_types(fields["token_type"] + [int(gguf.TokenType.UNUSED)] * len(missing))
    if "scores" in fields:
        writer.add_token_scores(fields["scores"] + [-1e4] * len(missing))
        writer.add_add_space_prefix(False)
    else:
        writer.add_token_merges(fields["merges"])
    described = json.loads((directory / "tokenizer_config.json").read_text())
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(described["bos_token"] is not None)
    writer.add_chat_template(described["chat_template"])


def _reordered(rows: np.ndarray, heads: int) -> np.ndarray:
    """Put elements that RoPE turns together, half a head apart, beside each other."""
    halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)
