"""Fields of OpenAI's bodies: null is as good as missing, and what has no effect here is known all the same."""

import math
from collections.abc import Callable, Mapping
from typing import cast

import numpy as np

from mis_core.errors import RequestError
from mis_core.tasks.fields.values import kind, shown

_IGNORED: dict[str, tuple[type, ...]] = {
    "frequency_penalty": (int, float),
    "presence_penalty": (int, float),
    "metadata": (Mapping,),
    "parallel_tool_calls": (bool,),
    "prediction": (Mapping,),
    "priority": (int,),
    "prompt_cache_key": (str,),
    "prompt_cache_options": (Mapping,),
    "prompt_cache_retention": (str,),
    "reasoning_effort": (str,),
    "request_id": (str,),
    "safety_identifier": (str,),
    "service_tier": (str,),
    "store": (bool,),
    "user": (str,),
    "verbosity": (str,),
    # Of the rerank routes of Cohere and Jina.
    "max_chunks_per_doc": (int,),
    "truncation": (bool,),
}
_NAMES = {int: "a number", Mapping: "an object", bool: "true or false", str: "a text"}


def check_ignored(fields: Mapping[str, object], names: tuple[str, ...]) -> None:
    """Check the kinds of fields that OpenAI has and that change nothing here, such as penalties of later tokens.

    Raises:
        RequestError: `invalid_` and the name of the field.
    """
    for name in names:
        value, allowed = fields.get(name), _IGNORED[name]
        if value is None or (isinstance(value, allowed) and isinstance(value, bool) == (bool in allowed)):
            continue
        raise RequestError(f"invalid_{name}", f"{name} must be {_NAMES[allowed[0]]}, not {kind(value)}.", name)


def refuse_unsupported(fields: Mapping[str, object], names: Mapping[str, Callable[[object], bool]]) -> None:
    """Refuse fields that OpenAI has and that would change an answer in a way that is not there.

    Args:
        fields: The fields.
        names: The fields that are refused, each with what is harmless beside null.

    Raises:
        RequestError: `unsupported_parameter`; names the field.
    """
    for name, is_harmless in names.items():
        value = fields.get(name)
        if value is not None and not is_harmless(value):
            raise RequestError("unsupported_parameter", f"{name} is not supported here; leave it out.", name)


def check_model(fields: Mapping[str, object], served_models: tuple[str, ...] | None) -> None:
    """Check the field `model`, which may be missing.

    Raises:
        RequestError: `invalid_model_type` or `model_not_found`.
    """
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise RequestError("invalid_model_type", f"model must be a text, not {kind(model)}.", "model")
    if model is not None and served_models is not None and model not in served_models:
        raise RequestError("model_not_found", f"Model {shown(model)} is not served here.", "model")


def read_flag(fields: Mapping[str, object], name: str, *, default: bool = False) -> bool:
    """Read a field that is true, false or missing.

    Raises:
        RequestError: `invalid_` and the name of the field.
    """
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, (bool, np.bool_)):
        raise RequestError(f"invalid_{name}", f"{name} must be true or false, not {kind(value)}.", name)
    return bool(value)


def read_stream(fields: Mapping[str, object]) -> tuple[bool, bool]:
    """Read whether an answer is sent as events, and whether one of them says the usage.

    Raises:
        RequestError: `invalid_stream` or `invalid_stream_options`.
    """
    stream, options = read_flag(fields, "stream"), fields.get("stream_options")
    if options is None:
        return stream, False
    names = ("include_usage", "include_obfuscation")
    right = isinstance(options, Mapping) and all(
        name in names and isinstance(value, bool) for name, value in options.items()
    )
    if not isinstance(options, Mapping) or not right:
        message = f"stream_options must be an object of {' and '.join(names)}, true or false."
        raise RequestError("invalid_stream_options", message, "stream_options")
    if not stream:
        raise RequestError("invalid_stream_options", "stream_options needs stream: true.", "stream_options")
    return stream, options.get("include_usage") is True


def read_number(fields: Mapping[str, object], name: str, *, most: float, default: float = 1.0) -> float:
    """Read a number from 0 to `most`.

    Raises:
        RequestError: `invalid_` and the name of the field.
    """
    value = fields.get(name)
    if value is None:
        return default
    number = as_number(value)
    if not 0 <= number <= most:  # NaN is not
        raise RequestError(f"invalid_{name}", f"{name} must be a number from 0 to {most:g}.", name)
    return number


def read_whole(fields: Mapping[str, object], name: str, allowed: range) -> int | None:
    """Read a whole number that is in a range; None if it is missing.

    Raises:
        RequestError: `invalid_` and the name of the field.
    """
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or int(value) not in allowed:
        message = f"{name} must be a whole number from {allowed[0]} to {allowed[-1]}."
        raise RequestError(f"invalid_{name}", message, name)
    return int(value)


def as_number(value: object) -> float:
    """Return a number as a float; NaN if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return math.nan
    try:
        return float(cast(float, value))
    except OverflowError:
        return math.inf
