"""The fields by which a request says how it is scored."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from mis_core.config import ALGORITHMS, MASKS
from mis_core.errors import RequestError
from mis_core.requests import Layout
from mis_core.tasks.fields.openai import as_number, check_model
from mis_core.tasks.fields.values import read_bool, read_optional_text

LAYOUT_FIELDS = ("scoring_algorithm", "mask_impl", "multi_item_scoring_chunk_size")
"""Fields of a request that chooses its layout, where the engine lets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOptions:
    """How a request is scored; attributes that are not here are those of `ScoreRequest`.

    Attributes:
        item_first: Whether each item is put before the query.
        add_special_tokens: Whether the tokenizer's special tokens are added to texts.
    """

    apply_softmax: bool
    item_first: bool
    return_token_logprobs: bool
    return_layout: bool
    add_special_tokens: bool
    cache_salt: str | None
    temperature: float


def read_options(body: Mapping[str, object], served_models: tuple[str, ...] | None) -> ScoreOptions:
    """Read everything but inputs, labels and layout; check the field `model`.

    Raises:
        RequestError: `invalid_` and the name of the field, or `model_not_found`.
    """
    names = ("apply_softmax", "item_first", "return_token_logprobs", "return_layout")
    flags = {name: read_bool(body, name) for name in names}
    special = read_bool(body, "add_special_tokens", default=True)
    cache_salt, _ = read_optional_text(body, "cache_salt"), read_optional_text(body, "model")
    check_model(body, served_models)
    temperature = _read_temperature(body, flags["apply_softmax"])
    return ScoreOptions(**flags, add_special_tokens=special, cache_salt=cache_salt, temperature=temperature)


def read_layout(body: Mapping[str, object]) -> Layout:
    """Read the fields by which a request chooses its layout.

    Raises:
        RequestError: `invalid_` and the name of the field.
    """
    for name, allowed in (("scoring_algorithm", ALGORITHMS), ("mask_impl", MASKS)):
        value = body.get(name)
        if value is not None and value not in allowed:
            raise RequestError(f"invalid_{name}", f"{name} must be one of {', '.join(allowed)}.", name)
    name = "multi_item_scoring_chunk_size"
    size = body.get(name)
    if size is not None and (isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 0):
        raise RequestError(f"invalid_{name}", f"{name} must be a whole number, 0 for as many items as fit.", name)
    algorithm, mask = cast(str | None, body.get("scoring_algorithm")), cast(str | None, body.get("mask_impl"))
    if mask == "dense" and algorithm not in (None, "auto", "packed"):
        raise RequestError("invalid_mask_impl", "mask_impl dense needs scoring_algorithm packed.", "mask_impl")
    return Layout(algorithm, mask, None if size is None else int(size))


def _read_temperature(body: Mapping[str, object], apply_softmax: bool) -> float:
    """Read the temperature, above 0.

    Raises:
        RequestError: `invalid_temperature`.
    """
    temperature = as_number(body.get("temperature", 1.0))
    if not (math.isfinite(temperature) and temperature > 0):
        raise RequestError("invalid_temperature", "temperature must be a finite number above 0.", "temperature")
    if temperature != 1.0 and not apply_softmax:
        raise RequestError("invalid_temperature", "A temperature other than 1 needs apply_softmax.", "temperature")
    return temperature
