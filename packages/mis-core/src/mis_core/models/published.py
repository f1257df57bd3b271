"""Shapes of published models, for compiling and estimating where there is no checkpoint.

The numbers are those of the models' own `config.json`, Ministral's those of its card; they are read as such a file is.
"""

from typing import Any

from mis_core.models.config import ModelConfig, parse_model_config
from mis_kernels.heads import HEAD_SHAPES, HeadShape

_Common = tuple[str, int, int, float, float]
_QWEN3 = ("Qwen3ForCausalLM", 151_936, 40_960, 1e6, 1e-6)
_QWEN2 = ("Qwen2ForCausalLM", 151_936, 32_768, 1e6, 1e-6)
_LLAMA = ("LlamaForCausalLM", 128_256, 131_072, 5e5, 1e-5)
_SMOLLM2 = ("LlamaForCausalLM", 49_152, 8192, 1e5, 1e-5)
_SMOLLM3 = ("SmolLM3ForCausalLM", 128_256, 65_536, 5e6, 1e-6)
_MISTRAL = ("MistralForCausalLM", 32_768, 32_768, 1e6, 1e-5)
_MINISTRAL = ("MinistralForCausalLM", 131_072, 131_072, 1e8, 1e-5)
_WINDOWS = {
    "MinistralForCausalLM": {
        "sliding_window": 32_768,
        "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 9,
    }
}
_LLAMA_ROPE = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _shape(heads: HeadShape, common: _Common, embed: int, mlp: int, layers: int, tied: bool) -> ModelConfig:
    architecture, vocab_size, positions, theta, epsilon = common
    settings: dict[str, Any] = {
        "architectures": [architecture],
        "vocab_size": vocab_size,
        "hidden_size": embed,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads.heads,
        "num_key_value_heads": heads.kv_heads,
        "head_dim": heads.head_dim,
        "max_position_embeddings": positions,
        "rms_norm_eps": epsilon,
        "rope_theta": theta,
        "rope_scaling": _LLAMA_ROPE if common is _LLAMA else None,
        "sliding_window": None,
        "tie_word_embeddings": tied,
        **_WINDOWS.get(architecture, {}),
    }
    return parse_model_config(settings)


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
    "qwen2.5-7b": (("Qwen2ForCausalLM", 152_064, 32_768, 1e6, 1e-6), 3584, 18_944, 28, False),
    "llama-3.2-1b": (_LLAMA, 2048, 8192, 16, True),
    "llama-3.2-3b": (_LLAMA, 3072, 8192, 28, True),
    "smollm2-135m": (_SMOLLM2, 576, 1536, 30, True),
    "smollm3-3b": (_SMOLLM3, 2048, 11_008, 36, True),
    "mistral-7b": (_MISTRAL, 4096, 14_336, 32, False),
    "ministral-8b": (_MINISTRAL, 4096, 12_288, 36, False),
}

PUBLISHED: dict[str, ModelConfig] = {name: _shape(HEAD_SHAPES[name], *sizes) for name, sizes in _SIZES.items()}
"""Shapes by name."""
