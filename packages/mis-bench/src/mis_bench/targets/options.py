"""Options of targets: text from the command line, checked by name and value."""

import difflib
import math
import re
from collections.abc import Mapping
from typing import Any

from mis_bench.targets.base import TargetUnavailable

Declared = Mapping[str, tuple[str, ...] | int | float | None]
"""Options by name: the words that are allowed, the first by default; a default integer, of at least 1; a default number
of seconds, above 0; or None for any text, None by default."""


def read_options(spec: str, given: Mapping[str, str], declared: Declared) -> dict[str, Any]:
    """Return every option that a target has, those that were not given at their defaults.

    Args:
        spec: The target, for messages.
        given: As written.
        declared: What the target takes.

    Raises:
        TargetUnavailable: the target has no such option, or it takes no such value.
    """
    for name in given:
        if name not in declared:
            near = difflib.get_close_matches(name, declared, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(declared) or 'none'}."
            raise TargetUnavailable(f"{spec} has no option {name[:80]!r}; {hint}")
    return {name: _read(name, given.get(name), default) for name, default in declared.items()}


def _read(name: str, text: str | None, default: tuple[str, ...] | int | float | None) -> str | int | float | None:
    if text is None:
        return default[0] if isinstance(default, tuple) else default
    match default:
        case None:
            return text
        case tuple():
            if text in default:
                return text
            wanted = " or ".join(default)
        case int():
            if text.isascii() and text.isdigit() and len(text) < 10 and int(text):
                return int(text)
            wanted = "an integer of at least 1"
        case float():
            seconds = _number(text)
            if 0 < seconds < math.inf:
                return seconds
            wanted = "a number of seconds above 0"
    raise TargetUnavailable(f"The option {name} must be {wanted}, not {text[:80]!r}.")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def is_secret(name: str) -> bool:
    """Whether an option's value must be in no result, command line or log, by its name."""
    low = name.lower()
    return any(word in low for word in ("key", "password", "secret", "credential")) or low.endswith("token")


def without_secrets(spelling: str) -> str:
    """Return a target and its options behind commas, without those that are secret.

    Left out is as well what is no option, since it may be the rest of a key, and who logs in at an address.
    """
    spec, *options = spelling.split(",")
    kept = [each for each in options if "=" in each and not is_secret(each.partition("=")[0])]
    return ",".join([re.sub(r"//[^/]*@", "//", spec), *kept])
