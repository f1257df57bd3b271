"""GGUF files of Gemma 2 and 3: the settings that llama.cpp's loader makes of them, and their tensors' bits."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from mis_core.checkpoints import open_checkpoint
from mis_core.errors import ModelError
from mis_core.models.config import read_model_config
from mis_testing import tiny_checkpoint
from mis_testing.gguf_file import write_gguf

_LAYERS = {"gemma2": 26, "gemma3": 18}
Write = Callable[[gguf.GGUFWriter], object]


def written(
    file: Path, architecture: str, write: Write = lambda _: None, layers: int | None = None, embed: int = 640
) -> Path:
    """Write a file with the settings of a Gemma, as llama.cpp's converter does, and what else is asked for."""
    writer = gguf.GGUFWriter(str(file), architecture)
    writer.add_context_length(8192)
    writer.add_embedding_length(embed)
    writer.add_block_count(_LAYERS[architecture] if layers is None else layers)
    writer.add_feed_forward_length(2048)
    writer.add_head_count(4)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_key_length(256)
    writer.add_value_length(256)
    writer.add_tensor("token_embd.weight", np.zeros((8, embed), np.float32))
    for layer in range(70):  # no header says more layers than there are tensors
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(8, np.float32))
    write(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def settings_of(file: Path) -> dict[str, Any]:
    return open_checkpoint(file).settings()


def sliding(settings: dict[str, Any]) -> list[int]:
    """Return the numbers of the layers that slide."""
    return [layer for layer, kind in enumerate(settings["layer_types"]) if kind == "sliding_attention"]


def gemma3(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(512)


def test_gemma_3_has_the_settings_of_its_config(tmp_path: Path) -> None:
    settings = settings_of(written(tmp_path / "model.gguf", "gemma3", gemma3))
    assert settings["architectures"] == ["Gemma3ForCausalLM"]
    assert settings["hidden_activation"] == "gelu_pytorch_tanh"
    assert (settings["head_dim"], settings["query_pre_attn_scalar"]) == (256, 256)
    assert (settings["sliding_window"], settings["final_logit_softcapping"]) == (512, None)
    assert settings["tie_word_embeddings"] is True
    assert [layer for layer in range(18) if layer not in sliding(settings)] == [5, 11, 17]
    assert settings["rope_parameters"] == {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert not {"rope_theta", "rope_scaling", "attn_logit_softcapping"} & settings.keys()


def test_gemma_2_has_the_settings_of_its_config(tmp_path: Path) -> None:
    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_attn_logit_softcapping(40.0)
        writer.add_final_logit_softcapping(20.0)
        writer.add_sliding_window(64)

    silent, settings = (
        settings_of(written(tmp_path / f"{index}.gguf", "gemma2", each)) for index, each in enumerate([id, write])
    )
    assert settings["architectures"] == ["Gemma2ForCausalLM"]
    assert (settings["attn_logit_softcapping"], settings["final_logit_softcapping"]) == (40.0, 20.0)
    assert (silent["attn_logit_softcapping"], silent["final_logit_softcapping"]) == (50.0, 30.0)
    assert (settings["sliding_window"], silent["sliding_window"]) == (64, 4096)
    assert sliding(settings) == sliding(silent) == [*range(0, 26, 2)]
    assert (settings["rope_theta"], settings["rope_scaling"]) == (1e4, None)


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_scores_of_27_b_are_scaled_by_the_embedding(tmp_path: Path, architecture: str, layers: int) -> None:
    scaled, other = (
        settings_of(written(tmp_path / f"{count}.gguf", architecture, layers=count)) for count in (layers, layers - 1)
    )
    assert (scaled["query_pre_attn_scalar"], other["query_pre_attn_scalar"]) == (640 // 4, 256)


_PATTERN = "gemma3.attention.sliding_window_pattern"
_SLIDING: dict[str, tuple[Write, list[int]]] = {
    "every second": (lambda writer: writer.add_uint32(_PATTERN, 2), [0, 2]),
    "all": (lambda writer: writer.add_uint32(_PATTERN, 0), [0, 1, 2, 3]),
    "none": (lambda writer: writer.add_uint32(_PATTERN, 1), []),
    "listed": (lambda writer: writer.add_array(_PATTERN, [False, True, True, False]), [1, 2]),
}


@pytest.mark.parametrize("pattern", _SLIDING)
def test_the_layers_slide_that_a_file_says(tmp_path: Path, pattern: str) -> None:
    write, expected = _SLIDING[pattern]
    file = written(tmp_path / "model.gguf", "gemma3", lambda writer: [gemma3(writer), write(writer)], layers=4)
    assert sliding(settings_of(file)) == expected


def test_without_a_window_no_layer_slides(tmp_path: Path) -> None:
    settings = settings_of(written(tmp_path / "model.gguf", "gemma3"))
    assert (settings["sliding_window"], sliding(settings), len(settings["layer_types"])) == (None, [], 18)


def test_only_layers_that_do_not_slide_are_scaled(tmp_path: Path) -> None:
    def write(writer: gguf.GGUFWriter) -> None:
        gemma3(writer)
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)
        writer.add_rope_freq_base_swa(2e4)

    assert settings_of(written(tmp_path / "model.gguf", "gemma3", write))["rope_parameters"] == {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }


_REFUSED: dict[str, tuple[str, Write, str]] = {
    "yarn": (
        "gemma3",
        lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN),
        "RoPE scaling 'yarn' is not understood",
    ),
    "factors": (
        "gemma3",
        lambda writer: writer.add_tensor("rope_freqs.weight", np.ones(128, np.float32)),
        "RoPE scaling 'factors' is not understood",
    ),
    "two bases": (
        "gemma2",
        lambda writer: writer.add_rope_freq_base_swa(2e4),
        "rope.freq_base_swa = 20000.0 differs from the other layers",
    ),
    "pattern": (
        "gemma3",
        lambda writer: [gemma3(writer), writer.add_string(_PATTERN, "LLLLLG")],
        "attention.sliding_window_pattern is neither a number nor a list",
    ),
    "cap of gemma 3": (
        "gemma3",
        lambda writer: writer.add_attn_logit_softcapping(50.0),
        "'gemma3.attn_logit_softcapping = 50.0' is not understood",
    ),
    "unequal heads": (
        "gemma3",
        lambda writer: writer.add_uint32("gemma3.rope.dimension_count", 128),
        "rope.dimension_count = 128' is not understood",
    ),
}


@pytest.mark.parametrize("fault", _REFUSED)
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    architecture, write, message = _REFUSED[fault]
    with pytest.raises(ModelError, match=re.escape(message)):
        settings_of(written(tmp_path / "model.gguf", architecture, write))


def test_a_header_of_countless_layers_takes_no_memory(tmp_path: Path) -> None:
    settings = settings_of(written(tmp_path / "model.gguf", "gemma3", gemma3, layers=2**32 - 1))
    assert settings["num_hidden_layers"] == 2**32 - 1
    assert len(settings["layer_types"]) == 71


# What transformers calls the parts of a layer.
_NAMES = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3"])
def test_tensors_have_their_names_and_the_bits_of_gguf(tmp_path: Path, architecture: str) -> None:
    kind, random = gguf.GGMLQuantizationType.Q5_0, np.random.default_rng(3)
    stored = {part: random.integers(0, 256, (4, 44), np.uint8) for part in _NAMES if not part.endswith("norm")}
    norms = {part: random.normal(1, 1, 64).astype(np.float32) for part in _NAMES if part.endswith("norm")}

    def write(writer: gguf.GGUFWriter) -> None:
        for part, blocks in stored.items():
            writer.add_tensor(f"blk.80.{part}.weight", blocks, raw_dtype=kind)
        for part, norm in norms.items():
            writer.add_tensor(f"blk.80.{part}.weight", norm)
        writer.add_tensor("output_norm.weight", np.ones(64, np.float32))

    checkpoint = open_checkpoint(written(tmp_path / "model.gguf", architecture, write))
    assert checkpoint.norms_have_one
    with np.errstate(all="ignore"), checkpoint.tensors() as tensors:
        expected = {part: gguf.dequantize(blocks, kind) for part, blocks in stored.items()} | norms
        for part, wanted in expected.items():
            read = tensors[f"model.layers.80.{_NAMES[part]}.weight"].read()
            np.testing.assert_array_equal(read.view(np.uint32), wanted.view(np.uint32), part)
        assert tensors["model.norm.weight"].shape == (64,)


def test_norms_of_other_architectures_are_what_a_directory_has(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "model.gguf"), "qwen3")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert not open_checkpoint(tmp_path / "model.gguf").norms_have_one
    (tmp_path / "config.json").write_text("{}")
    assert not open_checkpoint(tmp_path).norms_have_one


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_a_reranker_is_the_classifier_of_its_family(family: str, tmp_path: Path) -> None:
    directory = tiny_checkpoint(tmp_path / "model", family, head_labels=("no", "yes"))
    expected = read_model_config(directory)
    config = read_model_config(write_gguf(tmp_path / "model.gguf", directory))
    assert (config.architecture, config.head_labels) == (expected.architecture, expected.head_labels)
    assert (config.attention_cap, config.logit_cap) == (expected.attention_cap, None)
