"""Reads single fields of a request's body, or says what is wrong with them."""

import difflib
from collections.abc import Mapping, Sequence

from mis_core.errors import RequestError


def has_text(value: object) -> bool:
    """Return whether a value is a text, or a list that holds one."""
    if isinstance(value, (list, tuple)):
        return any(issubclass(each, str) for each in set(map(type, value)))
    return isinstance(value, str)


def readable(text: str, param: str, code: str) -> str:
    """Return a text; reject what is not valid Unicode: JSON can spell half of a surrogate pair.

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


def check_names(body: Mapping[str, object], fields: tuple[str, ...]) -> None:
    """Refuse fields that are not known, with the one that may be meant.

    Raises:
        RequestError: `unknown_parameter`.
    """
    unknown = [name for name in body if name not in fields]
    if unknown:
        name = min(unknown, key=str)  # whatever the order of the bytes
        near = difflib.get_close_matches(str(name)[:64], fields, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known fields: {', '.join(fields)}."
        raise RequestError("unknown_parameter", f"Unknown field {shown(name)}. {hint}", str(name)[:64])


def check_characters(most: int, **texts: Sequence[str]) -> None:
    """Refuse more text than may be tokenised, before any is.

    Args:
        most: Characters of all texts together.
        texts: Texts by the name of their field.

    Raises:
        RequestError: `too_many_tokens`; names the longest field.
    """
    counts = {name: sum(map(len, field)) for name, field in texts.items()}
    longest = max(counts, key=lambda name: counts[name])
    check_count(sum(counts.values()), most, "characters of text", longest, "too_many_tokens")


def check_count(count: int, most: int, what: str, param: str, code: str = "too_many_items") -> None:
    """Refuse more of something in a field than is allowed.

    Raises:
        RequestError: of the code.
    """
    if count > most:
        raise RequestError(code, f"{count} {what}; at most {most} are allowed.", param)
