"""Shapes of published models, for compiling and estimating where there is no checkpoint.

The numbers are those of the models' own `config.json`.
"""

from mis_core.models.config import FAMILIES, ModelConfig
from mis_core.models.rope import RopeConfig

_QWEN3 = ("Qwen3ForCausalLM", 151_936, 40_960, 1e6)
_QWEN2 = ("Qwen2ForCausalLM", 151_936, 32_768, 1e6)
_LLAMA = ("LlamaForCausalLM", 128_256, 131_072, 5e5)
_LLAMA_ROPE = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _shape(
    common: tuple[str, int, int, float], embed: int, mlp: int, layers: int, heads: tuple[int, int, int], tied: bool
) -> ModelConfig:
    """Build a shape; `heads` is query heads, KV heads, width of a head."""
    architecture, vocab_size, positions, theta = common
    is_llama = common is _LLAMA
    rope = RopeConfig("llama3" if is_llama else "default", theta, heads[2], positions, _LLAMA_ROPE if is_llama else {})
    return ModelConfig(
        family=FAMILIES[architecture],
        vocab_size=vocab_size,
        embed=embed,
        mlp=mlp,
        layers=layers,
        heads=heads[0],
        kv_heads=heads[1],
        head_dim=heads[2],
        max_positions=positions,
        norm_epsilon=1e-5 if is_llama else 1e-6,
        tied=tied,
        rope=rope,
    )


PUBLISHED: dict[str, ModelConfig] = {
    "qwen3-0.6b": _shape(_QWEN3, 1024, 3072, 28, (16, 8, 128), True),
    "qwen3-1.7b": _shape(_QWEN3, 2048, 6144, 28, (16, 8, 128), True),
    "qwen3-4b": _shape(_QWEN3, 2560, 9728, 36, (32, 8, 128), True),
    "qwen3-8b": _shape(_QWEN3, 4096, 12_288, 36, (32, 8, 128), False),
    "qwen3-32b": _shape(_QWEN3, 5120, 25_600, 64, (64, 8, 128), False),
    "qwen2.5-0.5b": _shape(_QWEN2, 896, 4864, 24, (14, 2, 64), True),
    "qwen2.5-1.5b": _shape(_QWEN2, 1536, 8960, 28, (12, 2, 128), True),
    "qwen2.5-3b": _shape(_QWEN2, 2048, 11_008, 36, (16, 2, 128), True),
    "qwen2.5-7b": _shape(("Qwen2ForCausalLM", 152_064, 32_768, 1e6), 3584, 18_944, 28, (28, 4, 128), False),
    "llama-3.2-1b": _shape(_LLAMA, 2048, 8192, 16, (32, 8, 64), True),
    "llama-3.2-3b": _shape(_LLAMA, 3072, 8192, 28, (24, 8, 128), True),
}
"""Shapes by name."""
