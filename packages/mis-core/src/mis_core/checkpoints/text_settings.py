"""The settings of a checkpoint's language model, which may be a part of a larger model."""

import json
from collections.abc import Mapping
from typing import Any

from mis_core.errors import ModelError

WITHIN = {"Gemma3ForConditionalGeneration": "Gemma3ForCausalLM"}
"""Models that also read images, and the class of the language model that is their text."""

_SAVED = "jev"  # `model_type` of a saved decision model
_VOCABULARY = 262_208  # where settings within are silent, as transformers' Gemma3TextConfig has it


def is_saved(settings: Mapping[str, Any]) -> bool:
    """Whether `config.json` is that of a saved decision model, which has its language model within."""
    return settings.get("model_type") == _SAVED


def is_of_images(settings: Mapping[str, Any]) -> bool:
    """Whether `config.json` is that of a model that also reads images."""
    names = settings.get("architectures")
    return isinstance(names, list) and names[:1] != [] and isinstance(names[0], str) and names[0] in WITHIN


def text_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the language model.

    Raises:
        ModelError: they should be within, and are not.
    """
    if is_saved(settings):
        return dict(settings["text_config"])
    if not is_of_images(settings):
        return dict(settings)
    text = settings.get("text_config")
    if not isinstance(text, dict):
        raise ModelError(f"text_config must be an object, not {json.dumps(text)[:40]}.")
    outer = {name: settings[name] for name in ("quantization_config",) if name in settings}
    return {"vocab_size": _VOCABULARY} | text | outer | {
        "architectures": [WITHIN[settings["architectures"][0]]],
        "tie_word_embeddings": settings.get("tie_word_embeddings", True),  # which transformers reads here
        "final_logit_softcapping": None,  # of language models alone, in transformers
    }  # fmt: skip
