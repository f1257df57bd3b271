"""Shapes of published models, for compiling and estimating where there is no checkpoint.

The numbers are those of the models' own `config.json`, Ministral's those of its card; they are read as such a file is.
Those of Qwen3.5 from 2B on are quoted from these files by others: 4B by a test of MaxText's `qwen3.5-4b.yml`, 27B by
`scripts/models/qwen3.5-27B.sh` of THUDM/slime.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from mis_core.models.config import ModelConfig, parse_model_config
from mis_kernels.heads import HEAD_SHAPES, HeadShape


class _Common(NamedTuple):
    """What models of a family have in common; `more` are settings that others do not have."""

    architecture: str
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    more: Mapping[str, Any] = {}


_LLAMA_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LINEAR = {"rope_type": "linear", "factor": 8.0}
_EVERY_FOURTH = {
    "sliding_window": 32_768,
    "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 9,
}
_QWEN3 = _Common("Qwen3ForCausalLM", 151_936, 40_960, 1e6, 1e-6)
_QWEN2 = _Common("Qwen2ForCausalLM", 151_936, 32_768, 1e6, 1e-6)
_LLAMA = _Common("LlamaForCausalLM", 128_256, 131_072, 5e5, 1e-5, {"rope_scaling": _LLAMA_ROPE})
_SMOLLM2 = _Common("LlamaForCausalLM", 49_152, 8192, 1e5, 1e-5)
_SMOLLM3 = _Common("SmolLM3ForCausalLM", 128_256, 65_536, 5e6, 1e-6)
_MISTRAL = _Common("MistralForCausalLM", 32_768, 32_768, 1e6, 1e-5)
_MINISTRAL = _Common("MinistralForCausalLM", 131_072, 131_072, 1e8, 1e-5, _EVERY_FOURTH)
_GEMMA2 = _Common("Gemma2ForCausalLM", 256_000, 8192, 1e4, 1e-6, {"sliding_window": 4096})
_GEMMA3_SMALL = _Common("Gemma3ForCausalLM", 262_144, 32_768, 1e6, 1e-6, {"sliding_window": 512})
_GEMMA3 = _Common(  # the text of a model that also reads images
    "Gemma3ForCausalLM", 262_208, 131_072, 1e6, 1e-6, {"sliding_window": 1024, "rope_scaling": _LINEAR}
)


def _qwen3_5(value_heads: int) -> _Common:
    more = {"linear_num_value_heads": value_heads, "partial_rotary_factor": 0.25}
    return _Common("Qwen3_5ForCausalLM", 248_320, 262_144, 1e7, 1e-6, more)


def _shape(heads: HeadShape, common: _Common, embed: int, mlp: int, layers: int, tied: bool) -> ModelConfig:
    settings: dict[str, Any] = common._asdict()
    more = settings.pop("more")
    settings |= {
        "architectures": [settings.pop("architecture")],
        "hidden_size": embed,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads.heads,
        "num_key_value_heads": heads.kv_heads,
        "head_dim": heads.head_dim,
        "sliding_window": None,
        "tie_word_embeddings": tied,
    }
    return parse_model_config(settings | more)


# What models of a family have in common; hidden size, width of the MLP, layers; whether the head is tied.
_SIZES = {
    "qwen3-0.6b": (_QWEN3, 1024, 3072, 28, True),
    "qwen3-1.7b": (_QWEN3, 2048, 6144, 28, True),
    "qwen3-4b": (_QWEN3, 2560, 9728, 36, True),
    "qwen3-8b": (_QWEN3, 4096, 12_288, 36, False),
    "qwen3-32b": (_QWEN3, 5120, 25_600, 64, False),
    "qwen2.5-0.5b": (_QWEN2, 896, 4864, 24, True),
    "qwen2.5-1.5b": (_QWEN2, 1536, 8960, 28, True),
    "qwen2.5-3b": (_QWEN2, 2048, 11_008, 36, True),
    "qwen2.5-7b": (_QWEN2._replace(vocab_size=152_064), 3584, 18_944, 28, False),
    "llama-3.2-1b": (_LLAMA, 2048, 8192, 16, True),
    "llama-3.2-3b": (_LLAMA, 3072, 8192, 28, True),
    "smollm2-135m": (_SMOLLM2, 576, 1536, 30, True),
    "smollm3-3b": (_SMOLLM3, 2048, 11_008, 36, True),
    "mistral-7b": (_MISTRAL, 4096, 14_336, 32, False),
    "ministral-8b": (_MINISTRAL, 4096, 12_288, 36, False),
    "gemma-2-2b": (_GEMMA2, 2304, 9216, 26, True),
    "gemma-2-9b": (_GEMMA2, 3584, 14_336, 42, True),
    "gemma-3-270m": (_GEMMA3_SMALL, 640, 2048, 18, True),
    "gemma-3-1b": (_GEMMA3_SMALL, 1152, 6912, 26, True),
    "gemma-3-4b": (_GEMMA3, 2560, 10_240, 34, True),
    "gemma-3-12b": (_GEMMA3, 3840, 15_360, 48, True),
    "qwen3.5-0.8b": (_qwen3_5(16), 1024, 3584, 24, True),
    "qwen3.5-2b": (_qwen3_5(16), 2048, 6144, 24, True),
    "qwen3.5-4b": (_qwen3_5(32), 2560, 9216, 32, True),
    "qwen3.5-9b": (_qwen3_5(32), 4096, 12_288, 32, False),
    "qwen3.5-27b": (_qwen3_5(48), 5120, 17_408, 64, False),
}

PUBLISHED: dict[str, ModelConfig] = {name: _shape(HEAD_SHAPES[name], *sizes) for name, sizes in _SIZES.items()}
"""Shapes by name."""
