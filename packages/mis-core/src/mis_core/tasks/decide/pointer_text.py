"""Values as pointer heads read them: JSON as indented lines, and no text that spells a control token.

Source: `render` of `any2jev.schema` and `_sanitize` of `any2jev.packing`, 0.1.0, which prompts were trained with.
"""

import re

from mis_core.tasks.decide.content import Content

_CONTROL = re.compile(r"<\|([^|<>]{1,64})\|>")
_INDENT = 2


def plain(text: str) -> str:
    """Return a text in which the bars of all that looks like a control token are broken ones."""
    return _CONTROL.sub("<\u00a6\\1\u00a6>", text)


def lines(content: object, level: int = 0) -> str:
    """Return a text as it is, and JSON as lines: an element behind a dash, a member behind its name."""
    pad = " " * (_INDENT * level)
    if content is None:
        return ""
    if isinstance(content, bool):
        return str(content).lower()
    if isinstance(content, list):
        return "\n".join(f"{pad}- {lines(each, level + 1).lstrip()}" for each in content)
    if isinstance(content, dict):
        return "\n".join(
            f"{pad}{name}:\n{lines(each, level + 1)}"
            if isinstance(each, dict | list)
            else f"{pad}{name}: {lines(each)}"
            for name, each in content.items()
        )
    return str(content)


def most_characters(content: object) -> int:
    """Return a number that `lines` of a value has at most as characters; nothing is put together for it."""
    count, level = 0, 0
    values = [content]
    while values:
        within: list[object] = []
        for value in values:
            if isinstance(value, dict):
                count += sum(_INDENT * level + len(name) + 3 for name in value)
                within.extend(value.values())
            elif isinstance(value, list):
                count += (_INDENT * level + 3) * len(value)
                within.extend(value)
            else:
                count += len(str(value))
        values, level = within, level + 1
    return count


def option_text(name: str, description: Content | None) -> str:
    """Return what is read of an option: its name, and what is said of it."""
    return name if description is None or description == "" else f"{name}: {lines(description)}"
