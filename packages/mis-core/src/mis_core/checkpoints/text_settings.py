"""The settings of a checkpoint's language model, and the names of its tensors: it may be a part of a larger model."""

import json
from collections.abc import Mapping
from typing import Any

from mis_core.errors import ModelError

WITHIN = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
}
"""Models that also read images, and the class of the language model that is their text."""

TIED = ("gemma2", "gemma3_text", "smollm3")
"""Types of models whose head is the embedding where `tie_word_embeddings` is silent, as transformers has it."""

_MODEL, _OF_TEXT, _OF_IMAGES = "model.", "language_model.", ("vision_tower.", "multi_modal_projector.", "visual.")
_SAVED = "jev"  # `model_type` of a saved decision model

# Where settings are silent, as transformers has it: the vocabulary of the text, and whether the head is the embedding.
_SILENT = {"Gemma3ForConditionalGeneration": (262_208, True), "Qwen3_5ForConditionalGeneration": (248_320, False)}


def is_saved(settings: Mapping[str, Any]) -> bool:
    """Whether `config.json` is that of a saved decision model, which has its language model within."""
    return settings.get("model_type") == _SAVED


def is_of_images(settings: Mapping[str, Any]) -> bool:
    """Whether `config.json` is that of a model that also reads images."""
    names = settings.get("architectures")
    return isinstance(names, list) and bool(names) and isinstance(names[0], str) and names[0] in WITHIN


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
    outer = {"quantization_config": settings["quantization_config"]} if "quantization_config" in settings else {}
    name = settings["architectures"][0]
    vocabulary, is_tied = _SILENT[name]
    inner = {"vocab_size": vocabulary} | text | outer | {
        "architectures": [WITHIN[name]],
        "tie_word_embeddings": settings.get("tie_word_embeddings", is_tied),  # which transformers reads here
    }  # fmt: skip
    if "final_logit_softcapping" in inner:  # of language models alone, in transformers
        inner["final_logit_softcapping"] = None
    return inner


def is_tied(settings: Mapping[str, Any]) -> bool:
    """Whether the head of the language model is its embedding.

    Raises:
        ModelError: as `text_settings`.
    """
    text = text_settings(settings)
    said = text.get("tie_word_embeddings")
    return text.get("model_type") in TIED if said is None else said is True


def name_in_text(name: str) -> str:
    """Return the name of a tensor or module within the language model, however much of it a model has before it.

    A model with a head has `model.` there. One that also reads images has `model.language_model.` since transformers
    4.52, and had `language_model.model.` before.
    """
    return name.removeprefix(_MODEL).removeprefix(_OF_TEXT).removeprefix(_MODEL)


def is_name_of_images(name: str) -> bool:
    """Whether a tensor or module of a model that also reads images is no part of its language model."""
    return name.removeprefix(_MODEL).startswith(_OF_IMAGES)
