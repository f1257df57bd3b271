"""The messages of a chat, as OpenAI's clients send them, to what a chat template reads: texts only."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mis_core.errors import RequestError
from mis_core.tasks.fields.values import check_count, kind, readable, shown

MAX_MESSAGES = 4096
MAX_PARTS = 4096

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_EVERY = ("role", "content", "name")
_KNOWN = {
    "assistant": (*_EVERY, "refusal", "tool_calls", "reasoning_content", "audio", "function_call", "annotations"),
    "tool": (*_EVERY, "tool_call_id"),
}
_UNSUPPORTED = ("audio", "function_call")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_OTHER_PARTS = ("image_url", "input_image", "input_audio", "audio_url", "video_url", "file", "input_file")


def read_messages(messages: object) -> list[dict[str, Any]]:
    """Return messages as templates read them: `role`, `content` as one text, and what else is in them.

    The role `developer` is `system`; text parts are joined by line breaks.

    Raises:
        RequestError: `missing_messages`, `empty_messages` or `invalid_messages`; `unsupported_parameter` for images,
            audio and files; `unknown_parameter`. The message says which.
    """
    if messages is None:
        raise RequestError("missing_messages", "The field messages is required: a list of messages.", "messages")
    if not isinstance(messages, (list, tuple)):
        raise _invalid(f"messages must be a list, not {kind(messages)}.")
    if not messages:
        raise RequestError("empty_messages", "messages must hold at least one message.", "messages")
    check_count(len(messages), MAX_MESSAGES, "messages", "messages", "invalid_messages")
    return [_read_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def count_characters(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return how many characters of text messages have, names of fields included, and one for every other value."""
    count, rest = 0, list[Any](messages)
    while rest:  # arguments of tools may be nested deeply
        value = rest.pop()
        if isinstance(value, Mapping):
            rest.extend(value)
            rest.extend(value.values())
        elif isinstance(value, (list, tuple)):
            rest.extend(value)
        else:
            count += len(value) if isinstance(value, str) else 1
    return count


def _read_message(path: str, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _invalid(f"{path} must be an object with role and content, not {kind(message)}.")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _invalid(f"{path}.role must be one of {', '.join(_ROLES)}.")
    for name, value in message.items():
        if name not in _KNOWN.get(role, _EVERY):
            raise RequestError("unknown_parameter", f"{path} has the unknown field {shown(name)}.", "messages")
        if name in _UNSUPPORTED and value is not None:
            raise _unsupported(f"{path}.{name} is not supported here.")
    read: dict[str, Any] = {"role": _ROLES[role]}
    for name in ("name", "tool_call_id", "reasoning_content", "refusal"):
        if message.get(name) is not None:
            read[name] = _text(f"{path}.{name}", message[name])
    refusal, content = read.pop("refusal", None), message.get("content")
    if message.get("tool_calls") is not None and (calls := _read_calls(f"{path}.tool_calls", message["tool_calls"])):
        read["tool_calls"] = calls
    if content is None:
        content = refusal
    if content is None and "tool_calls" in read:
        content = ""
    return read | {"content": _read_content(f"{path}.content", content)}


def _read_content(path: str, content: object) -> str:
    if not isinstance(content, (list, tuple)):
        return _text(path, content)
    if len(content) > MAX_PARTS:
        raise _invalid(f"{path} has {len(content)} parts; at most {MAX_PARTS} are allowed.")
    return "\n".join(_read_part(f"{path}[{index}]", part) for index, part in enumerate(content))


def _read_part(path: str, part: object) -> str:
    if not isinstance(part, Mapping):
        raise _invalid(f"{path} must be an object with type and text, not {kind(part)}.")
    form = part.get("type")
    if form in _OTHER_PARTS:
        raise _unsupported(f"{path} is of the type {form}; only text is supported here.")
    if not isinstance(form, str) or form not in _TEXT_PARTS:
        raise _invalid(f"{path}.type must be text.")
    return _text(f"{path}.{_TEXT_PARTS[form]}", part.get(_TEXT_PARTS[form]))


def _read_calls(path: str, calls: object) -> list[dict[str, Any]]:
    if not isinstance(calls, (list, tuple)) or len(calls) > MAX_PARTS:
        raise _invalid(f"{path} must be a list of at most {MAX_PARTS} calls.")
    return [_read_call(f"{path}[{index}]", call) for index, call in enumerate(calls)]


def _read_call(path: str, call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise _invalid(f"{path} must be a call of a function, with its name and arguments.")
    if call.get("type") not in (None, "function"):
        raise _invalid(f"{path}.type must be function.")
    text = _text(f"{path}.function.arguments", function.get("arguments"))
    try:
        arguments = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise _invalid(f"{path}.function.arguments must be the text of a JSON object.")
    name = _text(f"{path}.function.name", function.get("name"))
    read: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return read if call.get("id") is None else read | {"id": _text(f"{path}.id", call["id"])}


def _text(path: str, value: object) -> str:
    if not isinstance(value, str):
        raise _invalid(f"{path} must be a text, not {kind(value)}.")
    return readable(value, "messages", "invalid_messages")


def _invalid(message: str) -> RequestError:
    return RequestError("invalid_messages", message, "messages")


def _unsupported(message: str) -> RequestError:
    return RequestError("unsupported_parameter", message, "messages")
