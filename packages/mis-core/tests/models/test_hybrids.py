"""Settings of hybrids: which layers are recurrent, what is read as transformers reads it, and what is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from mis_core.errors import ConfigError, ModelError
from mis_core.models.config import ModelConfig, read_model_config
from mis_core.models.families import FAMILIES
from mis_core.models.layers import attention_layers, kept_elements, recurrent_per_block, rope_kinds
from mis_core.models.parallel import spread_heads
from mis_core.models.settings import HARMLESS, READ, UNDERSTOOD
from mis_core.runner.memory import state_bytes, step_bytes_per_token
from mis_kernels.recurrence import RecurrentShape

LINEAR, FULL = "linear_attention", "full_attention"
BASE: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
}
PUBLISHED: dict[str, Any] = json.loads((Path(__file__).parent / "published.json").read_text())["qwen3.5-0.8b"]["config"]
WHOLE: dict[str, Any] = {  # as published, which also reads images
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "image_token_id": 248056,
    "model_type": "qwen3_5",
    "text_config": {name: value for name, value in PUBLISHED.items() if name != "architectures"},
    "tie_word_embeddings": True,
    "video_token_id": 248057,
    "vision_config": {"depth": 12, "hidden_size": 768, "model_type": "qwen3_5", "out_hidden_size": 1024},
    "vision_end_token_id": 248054,
    "vision_start_token_id": 248053,
}


def read(tmp_path: Path, **changes: object) -> ModelConfig:
    (tmp_path / "config.json").write_text(json.dumps(BASE | changes))
    return read_model_config(tmp_path)


def kinds_of(config: ModelConfig) -> list[str]:
    return [FULL if layer.recurrence is None else LINEAR for layer in config.layers]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"full_attention_interval": 2},
        {"full_attention_interval": 2, "layer_types": [LINEAR, LINEAR, LINEAR, FULL] * 2},  # what is listed counts
        {"partial_rotary_factor": 0.5},
        {"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.75, "rope_theta": 1e6}},
        {"partial_rotary_factor": None},
        {"linear_num_key_heads": 4, "linear_num_value_heads": 12, "linear_conv_kernel_dim": 2},
        {"rope_theta": 1e7},
    ],
)
def test_settings_mean_what_transformers_takes(tmp_path: Path, changes: dict[str, Any]) -> None:
    from transformers import Qwen3_5TextConfig

    ours, theirs = read(tmp_path, **changes), Qwen3_5TextConfig.from_pretrained(tmp_path)
    assert kinds_of(ours) == theirs.layer_types
    assert ours.attention == (theirs.num_attention_heads, theirs.num_key_value_heads, theirs.head_dim)
    assert ours.recurrence == RecurrentShape(
        theirs.linear_num_key_heads, theirs.linear_num_value_heads, theirs.linear_key_head_dim,
        theirs.linear_value_head_dim, theirs.linear_conv_kernel_dim,
    )  # fmt: skip
    assert (ours.tied, ours.max_positions, ours.norm_epsilon) == (
        theirs.tie_word_embeddings, theirs.max_position_embeddings, theirs.rms_norm_eps,
    )  # fmt: skip
    assert ours.rotated == int(theirs.head_dim * theirs.rope_parameters.get("partial_rotary_factor", 1.0))
    ((rope, numbers),) = rope_kinds(ours.layers).items()
    assert rope is not None
    assert rope.theta == theirs.rope_parameters["rope_theta"]
    assert numbers == list(range(len(attention_layers(ours.layers))))


def test_every_setting_that_transformers_declares_is_in_a_list() -> None:
    from transformers import Qwen3_5TextConfig

    declared = {field.name for field in dataclasses.fields(Qwen3_5TextConfig)}
    own = set(FAMILIES["Qwen3_5ForCausalLM"].settings)
    assert declared - UNDERSTOOD - HARMLESS - set(READ) - own == set()


def test_a_published_model_is_read_as_the_text_of_a_larger_one(tmp_path: Path) -> None:
    from transformers import Qwen3_5Config

    (tmp_path / "config.json").write_text(json.dumps(WHOLE))
    ours, theirs = read_model_config(tmp_path), Qwen3_5Config.from_pretrained(tmp_path)
    assert kinds_of(ours) == theirs.text_config.layer_types
    assert (ours.embed, ours.mlp, ours.vocab_size) == (1024, 3584, theirs.text_config.vocab_size)
    assert (ours.recurrence, ours.rotated) == (RecurrentShape(16, 16, 128, 128, 4), 64)
    assert (ours.tied, ours.is_within, ours.architecture) == (True, True, "Qwen3_5ForConditionalGeneration")
    assert recurrent_per_block(ours.layers) == 3
    silent = {name: value for name, value in WHOLE.items() if name != "tie_word_embeddings"}
    (tmp_path / "config.json").write_text(json.dumps(silent))
    assert read_model_config(tmp_path).tied == Qwen3_5Config.from_pretrained(tmp_path).tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 6}, "full_attention_interval = 4: the last of the 6 layers must be full_attention"),
        ({"full_attention_interval": 9}, "full_attention_interval = 9: the last of the 8 layers"),
        ({"full_attention_interval": 0}, "full_attention_interval must be a positive integer"),
        ({"layer_types": [FULL, LINEAR] * 4}, "layer_types: the last of the 8 layers must be full_attention"),
        ({"layer_types": [LINEAR] * 8}, "layer_types: the last of the 8 layers must be full_attention"),
        (
            {"layer_types": [LINEAR, FULL, FULL, FULL] * 2},
            "the same number of linear_attention layers must precede each",
        ),
        ({"layer_types": [LINEAR, FULL]}, "layer_types names 2 layers, but num_hidden_layers is 8"),
        ({"layer_types": ["sliding_attention"] * 8}, "must be a list of full_attention and linear_attention"),
        ({"linear_num_value_heads": 24}, r"linear_num_value_heads \(24\) is not a multiple of linear_num_key_heads"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim must be a positive integer"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim must be at least 2"),
        ({"partial_rotary_factor": 0}, "partial_rotary_factor must be a positive number"),
        ({"partial_rotary_factor": 2}, "partial_rotary_factor must leave an even number of the 256 elements"),
        ({"partial_rotary_factor": 0.001}, "partial_rotary_factor must leave an even number"),
        ({"rope_parameters": {"partial_rotary_factor": None}}, "partial_rotary_factor must be a positive number"),
        ({"attention_bias": True}, "attention_bias = true is not supported"),
        ({"attn_output_gate": False}, "attn_output_gate = false is not supported"),
        ({"output_gate_type": "sigmoid"}, 'output_gate_type = "sigmoid" is not supported'),
        ({"mamba_ssm_dtype": "bfloat16"}, 'mamba_ssm_dtype = "bfloat16" is not supported'),
        ({"mlp_only_layers": [1]}, r"mlp_only_layers = \[1\] is not supported"),
        ({"hidden_act": "gelu"}, 'hidden_act = "gelu" is not supported'),
        ({"sliding_window": 64}, "sliding_window = 64 is not understood"),
        ({"architectures": ["Qwen3NextForCausalLM"]}, "Qwen3NextForCausalLM is not supported, since .* experts"),
        (
            {"architectures": ["Qwen3_5MoeForConditionalGeneration"]},
            "Qwen3_5MoeForConditionalGeneration is not supported, since .* experts",
        ),
        (
            {"architectures": ["Qwen4ExpForCausalLM"]},
            "Qwen4ExpForCausalLM is not .* hyper-connections",
        ),
        ({"architectures": ["Qwen3_5ForTokenClassification"]}, "text_config must be an object, not null"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": False, "attn_output_gate": True, "output_gate_type": "swish", "mamba_ssm_dtype": "float32"},
        {"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "mlp_only_layers": []},
        {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [11, 11, 10], "mrope_interleaved": True}},
        {"layer_types": [LINEAR, LINEAR, LINEAR, FULL] * 2},
    ],
)
def test_what_changes_nothing_is_accepted(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read(tmp_path, **changes) == read(tmp_path)


def test_layers_that_all_attend_are_no_hybrid(tmp_path: Path) -> None:
    config = read(tmp_path, layer_types=[FULL] * 8)
    assert (config.recurrence, recurrent_per_block(config.layers)) == (None, 0)
    assert read(tmp_path, full_attention_interval=1).layers == config.layers


def test_only_layers_that_attend_keep_something_of_every_token(tmp_path: Path) -> None:
    config, attending = read(tmp_path), read(tmp_path, layer_types=[FULL] * 8)
    assert kept_elements(attending.layers, 256) == 4 * kept_elements(config.layers, 256)
    narrow = read(tmp_path, linear_num_value_heads=16)
    assert step_bytes_per_token(config, 4, 1) > step_bytes_per_token(narrow, 4, 1)


def test_devices_have_whole_key_heads_or_are_refused(tmp_path: Path) -> None:
    config = read(tmp_path, linear_num_key_heads=4, linear_num_value_heads=12)
    assert config.recurrence is not None
    assert spread_heads(config, 4).recurrence == config.recurrence
    assert config.recurrence.on_device(4) == config.recurrence._replace(key_heads=1, value_heads=3)
    with pytest.raises(ConfigError, match="tp_size 8 does not divide the model's linear_num_key_heads, 4"):
        spread_heads(config, 8)
    with pytest.raises(ValueError, match="8 devices do not divide 4 key heads"):
        config.recurrence.on_device(8)


def test_a_device_keeps_its_share_of_a_state(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert 4 * state_bytes(config, 4) == state_bytes(config, 1)
