"""The content of messages and questions: a text, or a list of parts that become one."""

import json
import math
from collections.abc import Mapping
from typing import Any

from mis_core.errors import RequestError
from mis_core.tasks.fields.field import Field
from mis_core.tasks.fields.values import kind, readable

Content = str | dict[str, Any] | list[Any]
"""What a model reads as it is if it is a text, and as JSON otherwise."""

MAX_PARTS = 10_000
MAX_JSON_LEVELS = 32
MAX_JSON_VALUES = 10_000
MAX_JSON_BYTES = 256 * 1024

TEXT = ("input_text",)
TEXT_OR_JSON = ("input_text", "input_json")
OUTPUT = ("output_text", "refusal")

_FIELD = {"input_text": "text", "output_text": "text", "refusal": "refusal", "input_json": "data"}


def read_content(content: Field, kinds: tuple[str, ...], *, may_break: bool = True) -> str:
    """Read a text or a list of parts, whose texts become its lines.

    Args:
        content: The value.
        kinds: Types of parts that are allowed here, of `TEXT`, `TEXT_OR_JSON` or `OUTPUT`.
        may_break: Whether texts may have a `prompt_cache_breakpoint`.

    Raises:
        RequestError: it is none of that; images are `unsupported_parameter`.
    """
    if isinstance(content.value, str):
        return content.text()
    if not isinstance(content.value, (list, tuple)):
        raise content.error("must be a text or a list of parts.")
    return "\n".join(_read_part(part, kinds, may_break) for part in content.elements(0, MAX_PARTS))


def read_any(content: Field) -> Content:
    """Read a text, an object or a list, of what JSON has.

    Raises:
        RequestError: it is none of that.
    """
    if isinstance(content.value, str):
        return content.text()
    if not isinstance(content.value, (Mapping, list, tuple)):
        raise content.error(f"must be a text, an object or a list, not {kind(content.value)}.")
    return json.loads(_compact(content))


def as_text(content: Content) -> str:
    """Return a text as it is, all else as compact JSON."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _read_part(part: Field, kinds: tuple[str, ...], may_break: bool) -> str:
    if part.member("type") == "input_image":
        message = f"{part.path} is an image; the model reads text only. Leave it out, or describe it in words."
        raise RequestError("unsupported_parameter", message, part.path)
    name = Field(part.member("type"), f"{part.path}.type").one_of(*kinds)
    has_breakpoint = name == "input_text" and may_break
    fields = part.members(("type", _FIELD[name]), ("prompt_cache_breakpoint",) if has_breakpoint else ())
    if "prompt_cache_breakpoint" in fields:
        fields["prompt_cache_breakpoint"].members(("mode",))["mode"].one_of("explicit")
    value = fields[_FIELD[name]]
    return _read_json(value) if name == "input_json" else value.text()


def _read_json(data: Field) -> str:
    """Return an object, or a list of objects, as compact JSON."""
    objects = data.value if isinstance(data.value, (list, tuple)) else [data.value]
    if not all(isinstance(each, Mapping) for each in objects):
        raise data.error("must be an object or a list of objects.")
    text = _compact(data, MAX_JSON_VALUES)
    size = len(text.encode())
    if size > MAX_JSON_BYTES:
        raise data.error(f"has {size} bytes as compact JSON; at most {MAX_JSON_BYTES} are allowed.")
    return text


def _compact(data: Field, max_values: float = math.inf) -> str:
    """Return a value as compact JSON."""
    _check_extent(data, max_values)
    try:
        text = json.dumps(data.value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:  # from Python: what JSON does not have
        raise data.error(f"is not JSON: {str(error)[:200]}.") from None
    return readable(text, data.path, data.error("").code)


def _check_extent(data: Field, max_values: float) -> None:
    """Refuse JSON that is too deep or has too many values; objects and lists are values, too."""
    level: list[object] = [data.value]
    values = levels = 0
    while level:
        values += len(level)
        containers = [value for value in level if isinstance(value, (Mapping, list, tuple))]
        levels += bool(containers)
        if levels > MAX_JSON_LEVELS:
            raise data.error(f"is nested deeper than {MAX_JSON_LEVELS} levels.")
        if values > max_values:
            raise data.error(f"has more than {max_values} values.")
        level = []
        for container in containers:
            if isinstance(container, Mapping) and not all(isinstance(name, str) for name in container):
                raise data.error("has a name that is not a text.")
            level.extend(container.values() if isinstance(container, Mapping) else container)
