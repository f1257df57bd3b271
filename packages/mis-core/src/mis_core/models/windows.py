"""Which layers slide, as transformers' classes of configurations have it for each family."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mis_core.errors import ModelError

Slides = Callable[[Mapping[str, Any], int, bool], bool]
"""Whether a layer slides where `layer_types` is silent: by the settings, its number, and whether it has RoPE."""


def all_layers(_raw: Mapping[str, Any], _layer: int, _has_rope: bool) -> bool:
    """Mistral, Ministral."""
    return True


def from_max_window_layers(raw: Mapping[str, Any], layer: int, _has_rope: bool) -> bool:
    """Qwen2, Qwen3: despite its name, `max_window_layers` counts the layers at the beginning that do not slide."""
    first = raw.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int):
        raise ModelError(f"max_window_layers must be an integer, not {json.dumps(first)[:40]}.")
    return layer >= first


def without_rope(_raw: Mapping[str, Any], _layer: int, has_rope: bool) -> bool:
    """SmolLM3."""
    return not has_rope


def by_pattern(every: int, setting: str | None) -> Slides:
    """Return what Gemma 2 and 3 have: all layers but each of so many.

    Args:
        every: How many where the settings are silent.
        setting: What says how many; None: nothing does.
    """

    def slides(raw: Mapping[str, Any], layer: int, _has_rope: bool) -> bool:
        length = every if setting is None else raw.get(setting, every)
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ModelError(f"{setting} must be a positive integer, not {json.dumps(length)[:40]}.")
        return (layer + 1) % length != 0

    return slides


@dataclass(frozen=True)
class SlidingLayers:
    """How the layers of a family slide.

    Attributes:
        slides: Which do where `layer_types` is silent.
        window: Their window where `sliding_window` is silent, in tokens; None: no layer slides there.
        needs_switch: Whether `use_sliding_window` must be true for any layer to slide.
        obeys_types: Whether `layer_types` decides where it is given.
        always: Whether layers slide even if `sliding_window` is null, which is then refused, as in transformers.
    """

    slides: Slides
    window: int | None = 4096
    needs_switch: bool = False
    obeys_types: bool = False
    always: bool = False


def sliding_windows(raw: Mapping[str, Any], has_rope: Sequence[bool], family: SlidingLayers | None) -> list[int | None]:
    """Return the window of each layer, in tokens.

    Args:
        raw: What `config.json` holds.
        has_rope: Whether each layer has RoPE.
        family: How layers slide; None: they never do.

    Raises:
        ModelError: a setting is broken, or settings contradict each other; names it.
    """
    window = None if family is None else _window(raw, family)
    by_family = [
        family is not None and (window is not None or family.always) and family.slides(raw, layer, rotates)
        for layer, rotates in enumerate(has_rope)
    ]
    listed = listed_layers(raw.get("layer_types"), len(has_rope), "sliding_attention")
    if listed is not None and listed != by_family and not (family is not None and family.obeys_types):
        raise ModelError("layer_types differs from what this family computes, which ignores it; remove it.")
    chosen = by_family if listed is None else listed
    if window is None and any(chosen):
        is_off = family is not None and family.needs_switch and not raw.get("use_sliding_window")
        why = "use_sliding_window is not true" if is_off else "sliding_window gives no window"
        where = "" if listed is None else "layer_types: "
        raise ModelError(f"{where}layer {chosen.index(True)} slides, but {why}.")
    return [window if layer_slides else None for layer_slides in chosen]


def _window(raw: Mapping[str, Any], family: SlidingLayers) -> int | None:
    window = raw.get("sliding_window", family.window)
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ModelError(f"sliding_window must be a positive integer or null, not {json.dumps(window)[:40]}.")
    is_used = raw.get("use_sliding_window", False) if family.needs_switch else True
    if not isinstance(is_used, bool):
        raise ModelError(f"use_sliding_window must be true or false, not {json.dumps(is_used)[:40]}.")
    return window if is_used else None


def listed_layers(kinds: Any, layers: int, other: str) -> list[bool] | None:
    """Return whether each layer is of the other kind than `full_attention`; None where nothing is listed.

    Args:
        kinds: `layer_types`.
        layers: How many layers there are.
        other: What it calls the other kind.

    Raises:
        ModelError: it is something else.
    """
    known = {"full_attention": False, other: True}
    if kinds is None:
        return None
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in known for kind in kinds):
        raise ModelError(f"layer_types must be a list of {' and '.join(known)}; nothing else is supported.")
    if len(kinds) != layers:
        raise ModelError(f"layer_types names {len(kinds)} layers, but num_hidden_layers is {layers}.")
    return [known[kind] for kind in kinds]
