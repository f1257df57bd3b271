"""Checkpoints as llama.cpp reads them."""

import json
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes  # noqa: F401 - NumPy knows bfloat16 by it
import numpy as np
from safetensors import safe_open

from mis_bench.checkpoints import cache_folder
from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.base import TargetUnavailable


def gguf_file(directory: Path) -> Path:
    """Return a Qwen3 checkpoint's GGUF file, without a vocabulary; written once, into `~/.cache/mis-bench`.

    Raises:
        TargetUnavailable: the checkpoint is of another family, or the file cannot be written.
    """
    config = json.loads((directory / "config.json").read_text())
    if config.get("model_type") != "qwen3":  # the settings below are that family's
        raise TargetUnavailable(f"llama.cpp is compared on qwen3 only, and {directory} is {config.get('model_type')}.")
    file = cache_folder() / f"{checkpoint_sha256(directory)}.gguf"
    if not file.exists():
        partial = file.with_suffix(".partial")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            _write(directory, config, partial)
            partial.replace(file)
        except OSError as error:
            raise TargetUnavailable(f"{file} cannot be written: {error.strerror or error}.") from None
        finally:
            partial.unlink(missing_ok=True)
    return file


def _write(directory: Path, config: dict[str, Any], file: Path) -> None:
    """Write names and settings as llama.cpp's own converter gives them."""
    layers = config["num_hidden_layers"]
    writer = gguf.GGUFWriter(str(file), "qwen3")
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, layers)
    for part in sorted(directory.glob("*.safetensors")):
        with safe_open(part, framework="np") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a mapping
                _add(writer, names.get_name(name, try_suffixes=(".weight",)), stored.get_tensor(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, name: str, array: np.ndarray) -> None:
    if array.ndim == 1:  # norms are float32 there
        writer.add_tensor(name, array.astype(np.float32))
    elif array.dtype.name == "bfloat16":
        bits = array.view(np.uint16).view(np.uint8)
        writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:  # float32 or float16, stored as it is
        writer.add_tensor(name, array)
