"""Reads single fields of a request's body, or says what is wrong with them."""

import math
from collections.abc import Mapping
from typing import cast

import numpy as np

from mis_core.config import ALGORITHMS, MASKS
from mis_core.errors import RequestError
from mis_core.requests import Layout

ON_ERROR = ("request", "item")


def read_bool(body: Mapping[str, object], name: str, *, default: bool = False) -> bool:
    """Read a field that is true or false.

    Raises:
        RequestError: `invalid_NAME_type`.
    """
    value = body.get(name, default)
    if not isinstance(value, (bool, np.bool_)):
        raise RequestError(f"invalid_{name}_type", f"{name} must be true or false, not {kind(value)}.", name)
    return bool(value)


def read_on_error(body: Mapping[str, object]) -> bool:
    """Return whether single items may be refused.

    Raises:
        RequestError: `invalid_on_error`.
    """
    value = body.get("on_error", "request")
    if not isinstance(value, str):
        raise RequestError("invalid_on_error", f"on_error must be a text, not {kind(value)}.", "on_error")
    if value not in ON_ERROR:
        raise RequestError(
            "invalid_on_error", f"on_error must be one of {', '.join(ON_ERROR)}, not {shown(value)}.", "on_error"
        )
    return value == "item"


def read_optional_text(body: Mapping[str, object], name: str) -> str | None:
    """Read a field that is a text or missing.

    Raises:
        RequestError: `invalid_NAME_type`.
    """
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise RequestError(f"invalid_{name}_type", f"{name} must be a text, not {kind(value)}.", name)
    return readable(value, name, f"invalid_{name}_type")


def read_temperature(body: Mapping[str, object], apply_softmax: bool) -> float:
    """Read the temperature, above 0.

    Raises:
        RequestError: `invalid_temperature`.
    """
    value = body.get("temperature", 1.0)
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    try:
        temperature = float(cast(float, value)) if is_number else math.nan
    except OverflowError:
        temperature = math.inf
    if not (math.isfinite(temperature) and temperature > 0):
        raise RequestError("invalid_temperature", "temperature must be a finite number above 0.", "temperature")
    if temperature != 1.0 and not apply_softmax:
        raise RequestError("invalid_temperature", "A temperature other than 1 needs apply_softmax.", "temperature")
    return temperature


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


def readable(text: str, param: str, code: str) -> str:
    """Return a text; refuse what is no Unicode: JSON can spell half of a surrogate pair.

    Raises:
        RequestError: of the code.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(code, f"{param} holds an unpaired surrogate, which is not text.", param) from None
    return text


def kind(value: object) -> str:
    """Return the name of a value's type, for a message."""
    return "null" if value is None else type(value).__name__


def shown(value: object) -> str:
    """Return a value as a message repeats it: cut off where it is long."""
    return repr(str(value)[:64])
