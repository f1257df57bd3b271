"""The settings of a checkpoint's language model, and the names of its tensors: it may be a part of a larger model."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from mis_core.errors import ModelError

WITHIN = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma3ForSequenceClassification": "Gemma3TextForSequenceClassification",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5ForSequenceClassification": "Qwen3_5TextForSequenceClassification",
    "Qwen3_5ForTokenClassification": "Qwen3_5TextForSequenceClassification",
}
"""Models that also read images, and the class of what is read of them: the same head over their text."""

TIED = ("gemma2", "gemma3_text", "smollm3")
"""Types of models whose head is the embedding where `tie_word_embeddings` is silent, as transformers has it."""

_MODEL, _OF_TEXT, _OF_IMAGES = "model.", "language_model.", ("vision_tower.", "multi_modal_projector.", "visual.")
_SAVED = "jev"  # `model_type` of a saved decision model
_OF_HEAD = ("id2label", "num_labels", "problem_type")  # which transformers reads of the whole model


class _Larger(NamedTuple):
    """What the classes of a model that also reads images have in common.

    Attributes:
        name: What their names begin with.
        vocab_size: Of the text where settings are silent, as transformers has it.
        is_tied: Whether the head is the embedding where they are silent.
    """

    name: str
    vocab_size: int
    is_tied: bool

    @property
    def bare(self) -> str:
        """The class without a head."""
        return f"{self.name}Model"


_LARGER = (_Larger("Gemma3", 262_208, True), _Larger("Qwen3_5", 248_320, False))
_CLASSES = WITHIN | {larger.bare: f"{larger.name}TextModel" for larger in _LARGER}


def is_saved(settings: Mapping[str, Any]) -> bool:
    """Whether `config.json` is that of a saved decision model, which has its language model within."""
    return settings.get("model_type") == _SAVED


def is_of_images(settings: Mapping[str, Any]) -> bool:
    """Whether `config.json` is that of a model that also reads images."""
    names = settings.get("architectures")
    return isinstance(names, list) and bool(names) and isinstance(names[0], str) and names[0] in _CLASSES


def saved_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the model within a saved decision model: one without a head, which it is saved without.

    Raises:
        ModelError: they should be there, and are not.
    """
    within = _text_config(settings)
    kind = within.get("model_type")
    return within | {"architectures": [larger.bare for larger in _LARGER if larger.name.lower() == kind]}


def text_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the language model.

    Raises:
        ModelError: they should be within, and are not.
    """
    if is_saved(settings):
        settings = saved_settings(settings)
    if not is_of_images(settings):
        return dict(settings)
    text, name = _text_config(settings), settings["architectures"][0]
    larger = next(each for each in _LARGER if name.startswith(each.name))
    outer = {each: settings[each] for each in ("quantization_config", *_OF_HEAD) if each in settings}
    inner = {each: value for each, value in text.items() if each not in _OF_HEAD}
    inner = {"vocab_size": larger.vocab_size} | inner | outer | {
        "architectures": [_CLASSES[name]],
        "tie_word_embeddings": settings.get("tie_word_embeddings", larger.is_tied),  # which transformers reads here
    }  # fmt: skip
    if "final_logit_softcapping" in inner:  # of language models alone, in transformers
        inner["final_logit_softcapping"] = None
    return inner


def _text_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    text = settings.get("text_config")
    if not isinstance(text, dict):
        raise ModelError(f"text_config must be an object, not {json.dumps(text)[:40]}.")
    return text


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
