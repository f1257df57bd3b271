"""Published settings, each changed in turn: what changes the scores of transformers is understood or refused.

The models are published ones made small, with random weights that stay the same.
"""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from mis_core.errors import ModelError
from mis_core.models.config import ModelConfig, read_model_config
from mis_core.models.settings import READ

pytestmark = pytest.mark.parity

PUBLISHED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "models/published.json").read_text())
IN_EVERY_RUN = ("qwen2-0.5b",)
NAMES = [pytest.param(name, marks=() if name in IN_EVERY_RUN else pytest.mark.full) for name in PUBLISHED]

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "layer_types": ["full_attention", "full_attention"],
    "no_rope_layers": [1, 0],
    "max_window_layers": 2,
    "pad_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Values that no rule makes of the published ones.
CHANGES: dict[str, Any] = {
    "cache_implementation": "static",  # it refuses words of ours
    "architectures": ["MambaForCausalLM"],
    "dtype": "float16",
    "hidden_act": "gelu",
    "layer_types": ["sliding_attention", "full_attention"],
    "model_type": "smollm3",
    "no_rope_layers": [0, 1],
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
    "sliding_window": 4,
    "torch_dtype": "float16",
    "vocab_size": 64,
}
# Keys that published settings do not have.
ADDED: dict[str, Any] = {
    "attention_bias": True,
    "attention_chunk_size": 4,
    "attribute_map": {"rms_norm_eps": "initializer_range"},
    "is_causal": False,
    "is_encoder_decoder": True,
    "max_window_layers": 0,
    "mlp_bias": True,
    "no_rope_layer_interval": 2,
    "no_rope_layers": [0, 0],
    "partial_rotary_factor": 0.5,
    "per_layer_config": {"1": {"rms_norm_eps": 0.1}},
    "rope_parameters": {"rope_type": "linear", "factor": 2.0},
    "text_config": {"rms_norm_eps": 0.1},
    "tie_word_embeddings": False,
    "layer_types": ["sliding_attention", "sliding_attention"],
    "a_trainers_note": {"learning_rate": 1e-4},
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True},
}


def small(name: str) -> dict[str, Any]:
    """Return published settings of a model that computes at once."""
    config = PUBLISHED[name]["config"]
    return config | {key: value for key, value in SMALL.items() if key in config}


def changed(value: Any) -> Any:
    """Return another value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return 2 * value
        case float():
            return 2 * value + 0.1
        case str():
            return f"{value}-changed"
        case dict():
            return value | {"factor": 4.0} if "factor" in value else {"changed": 1}
        case _:
            return None


def write(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@functools.cache
def _reference(name: str, folder: Path) -> tuple[dict[str, Any], Any]:
    import torch

    torch.manual_seed(7)
    model = _model(write(folder, small(name)))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    state = model.state_dict()
    return state, _scores(model)


def _model(path: Path) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def _scores(model: Any) -> Any:
    import torch

    with torch.inference_mode():
        return model(torch.arange(3, 27)[None], use_cache=False).logits[0]


def changes_scores(name: str, config: dict[str, Any], folder: Path) -> bool:
    """Whether transformers computes other scores by the same weights, or none."""
    import torch

    weights, expected = _reference(name, folder.parent / "reference")
    try:
        model = _model(write(folder, config))
        model.load_state_dict(weights)
        return not torch.equal(_scores(model), expected)
    except Exception:  # of every kind: what it refuses, and what ends in the middle
        return True


def served(config: dict[str, Any], folder: Path) -> ModelConfig | None:
    try:
        return read_model_config(write(folder, config))
    except ModelError:
        return None


@pytest.mark.filterwarnings("ignore")  # of transformers, about settings that it does not know
@pytest.mark.parametrize("name", NAMES)
def test_settings_that_change_scores_are_understood_or_refused(name: str, tmp_path: Path) -> None:
    before = small(name)
    plain = served(before, tmp_path / "plain")
    assert plain is not None
    assert not changes_scores(name, before, tmp_path / "same")
    changes = {key: CHANGES.get(key, changed(value)) for key, value in before.items()} | {
        key: value for key, value in ADDED.items() if key not in before or before[key] in (None, False)
    }
    ignored = [
        key
        for number, (key, value) in enumerate(changes.items())
        if served(before | {key: value}, tmp_path / "ours") == plain
        and changes_scores(name, before | {key: value}, tmp_path / f"changed{number}")
    ]
    assert ignored == []


def test_such_a_setting_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = IN_EVERY_RUN[0]
    bidirectional = small(name) | {"is_causal": False}
    assert changes_scores(name, bidirectional, tmp_path / "changed")
    assert served(bidirectional, tmp_path / "ours") is None
    monkeypatch.setitem(READ, "is_causal", False)
    assert served(bidirectional, tmp_path / "ours") is not None
