"""Published sizes of models by name (`SHAPES`), for benchmarks, and the same divided.

They are data from the models' own `config.json`, Ministral's from its card; weights of such checkpoints are random.
"""

from typing import Any

from mis_testing.shapes import LLAMA3_SCALING, Family


def _published(family: Family, hidden: int, layers: int, heads: tuple[int, int, int], mlp: int, **more: Any) -> dict:
    """One row of `SHAPES`; `heads` is query heads, KV heads, width of a head."""
    sizes = {
        "family": family,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "intermediate_size": mlp,
    }
    return sizes | more


_QWEN3: dict[str, Any] = {"vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1e6}
_QWEN2: dict[str, Any] = {"vocab_size": 151936, "max_position_embeddings": 32768, "rope_theta": 1e6}
_LLAMA: dict[str, Any] = {
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 5e5,
    "rope_scaling": LLAMA3_SCALING | {"factor": 32.0, "original_max_position_embeddings": 8192},
}

_SMOLLM2: dict[str, Any] = {
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 1e5,
    "rope_scaling": None,
}
_SMOLLM3: dict[str, Any] = {
    "vocab_size": 128256,
    "max_position_embeddings": 65536,
    "rope_theta": 5e6,
    "no_rope_layer_interval": 4,
}
_MINISTRAL: dict[str, Any] = {
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
    "sliding_window": 32768,
    "layer_types": ("full_attention", *["sliding_attention"] * 3) * 9,
}
_MISTRAL: dict[str, Any] = {"vocab_size": 32768, "max_position_embeddings": 32768, "rope_theta": 1e6}

_GEMMA2: dict[str, Any] = {
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3: dict[str, Any] = {
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "sliding_window": 1024,
    "query_pre_attn_scalar": 256,
}
_GEMMA3_SMALL: dict[str, Any] = _GEMMA3 | {
    "vocab_size": 262144,
    "max_position_embeddings": 32768,
    "rope_scaling": None,
    "sliding_window": 512,
}
_QWEN3_5: dict[str, Any] = {
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "rope_theta": 1e7,
    "full_attention_interval": 4,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
_QWEN3_5_WIDE: dict[str, Any] = _QWEN3_5 | {"linear_num_value_heads": 32}
_QWEN3_5_WIDEST: dict[str, Any] = _QWEN3_5 | {"linear_num_value_heads": 48}


def _gemma3(common: dict[str, Any], hidden: int, layers: int, heads: tuple[int, int, int], mlp: int) -> dict:
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * (layers // 6 + 1)
    return _published("gemma3", hidden, layers, heads, mlp, layer_types=tuple(kinds[:layers]), **common)


SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _published("qwen3", 1024, 28, (16, 8, 128), 3072, **_QWEN3),
    "qwen3-1.7b": _published("qwen3", 2048, 28, (16, 8, 128), 6144, shards=2, **_QWEN3),
    "qwen3-4b": _published("qwen3", 2560, 36, (32, 8, 128), 9728, shards=4, **_QWEN3),
    "qwen3-8b": _published("qwen3", 4096, 36, (32, 8, 128), 12288, shards=8, tie_word_embeddings=False, **_QWEN3),
    "qwen2.5-0.5b": _published("qwen2", 896, 24, (14, 2, 64), 4864, **_QWEN2),
    "qwen2.5-1.5b": _published("qwen2", 1536, 28, (12, 2, 128), 8960, shards=2, **_QWEN2),
    "qwen2.5-3b": _published("qwen2", 2048, 36, (16, 2, 128), 11008, shards=3, **_QWEN2),
    "qwen2.5-7b": _published(
        "qwen2", 3584, 28, (28, 4, 128), 18944, shards=8, tie_word_embeddings=False, **(_QWEN2 | {"vocab_size": 152064})
    ),
    "llama-3.2-1b": _published("llama", 2048, 16, (32, 8, 64), 8192, shards=2, **_LLAMA),
    "llama-3.2-3b": _published("llama", 3072, 28, (24, 8, 128), 8192, shards=4, **_LLAMA),
    "smollm2-135m": _published("llama", 576, 30, (9, 3, 64), 1536, **_SMOLLM2),
    "smollm3-3b": _published("smollm3", 2048, 36, (16, 4, 128), 11008, shards=2, **_SMOLLM3),
    "mistral-7b": _published("mistral", 4096, 32, (32, 8, 128), 14336, shards=3, **_MISTRAL),
    "ministral-8b": _published("ministral", 4096, 36, (32, 8, 128), 12288, shards=4, **_MINISTRAL),
    "gemma-2-2b": _published("gemma2", 2304, 26, (8, 4, 256), 9216, shards=2, **_GEMMA2),
    "gemma-2-9b": _published("gemma2", 3584, 42, (16, 8, 256), 14336, shards=4, **_GEMMA2),
    "gemma-3-270m": _gemma3(_GEMMA3_SMALL, 640, 18, (4, 1, 256), 2048),
    "gemma-3-1b": _gemma3(_GEMMA3_SMALL, 1152, 26, (4, 1, 256), 6912),
    "gemma-3-4b": _gemma3(_GEMMA3, 2560, 34, (8, 4, 256), 10240),
    "gemma-3-12b": _gemma3(_GEMMA3, 3840, 48, (16, 8, 256), 15360),
    "qwen3.5-0.8b": _published("qwen3_5", 1024, 24, (8, 2, 256), 3584, **_QWEN3_5),
    "qwen3.5-2b": _published("qwen3_5", 2048, 24, (8, 2, 256), 6144, shards=2, **_QWEN3_5),
    "qwen3.5-4b": _published("qwen3_5", 2560, 32, (16, 4, 256), 9216, shards=4, **_QWEN3_5_WIDE),
    "qwen3.5-9b": _published(
        "qwen3_5", 4096, 32, (16, 4, 256), 12288, shards=8, tie_word_embeddings=False, **_QWEN3_5_WIDE
    ),
    "qwen3.5-27b": _published(
        "qwen3_5", 5120, 64, (24, 4, 256), 17408, shards=16, tie_word_embeddings=False, **_QWEN3_5_WIDEST
    ),
}
"""Published sizes by model name: `tiny_checkpoint(path, **SHAPES["qwen3-0.6b"])` writes one with random weights.

`mis_core.models.published` has the same, but no oracle may import it; a test of mis-core keeps them equal.
"""


PRUNED: dict[str, dict[str, Any]] = {"qwen3-0.6b-16-layers": SHAPES["qwen3-0.6b"] | {"num_hidden_layers": 16}}
"""Published sizes with fewer layers, as models have them that were pruned for ranking."""

_MULTIPLE = 32  # divided widths stay a multiple of this


def divided(sizes: dict[str, Any], divisor: int) -> dict[str, Any]:
    """Return the sizes of a checkpoint with layers, heads and widths divided.

    The width of a head, the number of query heads for each KV head, and the vocabulary stay. So do the number of value
    heads for each key head of recurrent layers, and how many of these come before each layer that attends.
    """
    if divisor == 1:
        return sizes
    heads, kv_heads = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    fewer, block = max(1, kv_heads // divisor), sizes.get("full_attention_interval", 1)
    layers = block * max(1, sizes["num_hidden_layers"] // (block * divisor))
    kinds = {"layer_types": sizes["layer_types"][:layers]} if "layer_types" in sizes else {}
    return (
        sizes
        | kinds
        | _divided_recurrence(sizes, divisor)
        | {
            "num_hidden_layers": layers,
            "num_attention_heads": fewer * (heads // kv_heads),
            "num_key_value_heads": fewer,
            "hidden_size": _rounded(sizes["hidden_size"], divisor),
            "intermediate_size": _rounded(sizes["intermediate_size"], divisor),
            "shards": 1,
        }
    )


def _divided_recurrence(sizes: dict[str, Any], divisor: int) -> dict[str, int]:
    if "linear_num_key_heads" not in sizes:
        return {}
    keys, values = sizes["linear_num_key_heads"], sizes["linear_num_value_heads"]
    fewer = max(1, keys // divisor)
    return {"linear_num_key_heads": fewer, "linear_num_value_heads": fewer * (values // keys)}


def _rounded(width: int, divisor: int) -> int:
    return -(-width // (divisor * _MULTIPLE)) * _MULTIPLE
