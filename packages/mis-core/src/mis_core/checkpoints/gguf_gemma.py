"""Gemma 2 and 3 in GGUF files: settings that llama.cpp keeps in its code, and the names of norms that others lack.

llama.cpp's converter stores every norm as `1 + weight`, in float32. Sources: `src/models/gemma2.cpp`,
`src/models/gemma3.cpp`, `src/llama-model.cpp` and `conversion/gemma.py` of llama.cpp at 0c1e5709 (2026).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mis_core.errors import ModelError, shown

TENSORS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Norms around a layer's two blocks, by their names in GGUF files."""

_WINDOW, _PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
_SLIDING_THETA = "rope.freq_base_swa"
_THETA = 1e4  # where a file is silent
_SCALING = ("default", "linear")  # of RoPE; llama.cpp applies the others to layers that slide as well


@dataclass(frozen=True)
class _Kind:
    """What llama.cpp knows of an architecture.

    Attributes:
        period: Every so many layers one does not slide, where a file is silent.
        window: The window where a file is silent, in tokens; 0: no layer slides.
        caps: Soft caps where a file is silent, by their settings; 0 is none.
        has_own_rope: Whether layers that slide have a RoPE of their own, which is not scaled.
        layers_of_27b: Layers of the size whose scores are scaled by the embedding's share of a head.
    """

    period: int
    window: int
    caps: dict[str, float]
    has_own_rope: bool
    layers_of_27b: int


_KINDS = {
    "gemma2": _Kind(2, 4096, {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}, False, 46),
    "gemma3": _Kind(6, 0, {"final_logit_softcapping": 0.0}, True, 62),
}
ARCHITECTURES = tuple(_KINDS)
"""Names of these architectures in GGUF files."""


def gemma_settings(
    path: Path, architecture: str, found: dict[str, Any], settings: dict[str, Any], most_layers: int
) -> dict[str, Any]:
    """Take what only these architectures have out of the settings found, and return them as `config.json` has them.

    Args:
        path: The file, for errors.
        architecture: One of `ARCHITECTURES`.
        found: Settings by their names behind the architecture's.
        settings: Those of every architecture, as `config.json` has them.
        most_layers: No more layers are listed, whatever the header says.

    Raises:
        ModelError: a setting is of another type, or asks for a RoPE that is not understood.
    """
    kind = _KINDS[architecture]
    window, layers = found.pop(_WINDOW, kind.window), settings.get("num_hidden_layers")
    caps = {name: found.pop(name, default) or None for name, default in kind.caps.items()}
    count = min(layers, most_layers) if isinstance(layers, int) else 0
    pattern = found.pop(_PATTERN, kind.period)
    slides = _sliding(path, pattern, count) if window else [False] * count
    return {
        **{name: value for name, value in settings.items() if name not in ("rope_scaling", "rope_theta")},
        **caps,
        **_rope(path, kind, found, settings),
        "architectures": [name.replace("Gemma3ForSeq", "Gemma3TextForSeq") for name in settings["architectures"]],
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": _scores_scale(settings, layers == kind.layers_of_27b),
        "sliding_window": window or None,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
    }


def _sliding(path: Path, pattern: Any, layers: int) -> list[bool]:
    """Return which layers slide: as a list says, or all but the last of every so many, 0 for all."""
    if isinstance(pattern, list) and all(isinstance(each, bool) for each in pattern):
        return pattern
    if isinstance(pattern, bool) or not isinstance(pattern, int):
        raise ModelError(f"{path}: {_PATTERN} is neither a number nor a list of true and false.")
    return [pattern == 0 or layer % pattern < pattern - 1 for layer in range(layers)]


def _rope(path: Path, kind: _Kind, found: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the RoPE of both kinds of layers."""
    scaling = settings["rope_scaling"] or {"rope_type": "default"}
    if scaling["rope_type"] not in _SCALING:
        raise ModelError(f"{path}: RoPE scaling {shown(str(scaling['rope_type']), 40)!r} is not understood.")
    theta = settings.get("rope_theta", _THETA)
    of_sliding = found.pop(_SLIDING_THETA, _THETA if kind.has_own_rope else theta)
    if kind.has_own_rope:
        parameters = {
            "full_attention": scaling | {"rope_theta": theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": of_sliding},
        }
        return {"rope_parameters": parameters}
    if of_sliding != theta:
        raise ModelError(f"{path}: {_SLIDING_THETA} = {shown(str(of_sliding), 40)} differs from the other layers.")
    return {"rope_theta": theta, "rope_scaling": settings["rope_scaling"]}


def _scores_scale(settings: dict[str, Any], is_27b: bool) -> Any:
    """Return the number by whose root scores of attention are divided."""
    embed, heads = (settings.get(name) for name in ("hidden_size", "num_attention_heads"))
    if is_27b and isinstance(embed, int) and isinstance(heads, int) and heads:
        return embed // heads
    return settings.get("head_dim")
