"""Options of targets: text from the command line, checked by name and value."""

import difflib
import re
from collections.abc import Mapping

from mis_bench.targets.base import TargetUnavailable


def is_secret(name: str) -> bool:
    """Whether an option's value must be in no artifact, command line or log, by its name."""
    low = name.lower()
    return any(word in low for word in ("key", "password", "secret", "credential")) or low.endswith("token")


def without_secrets(spelling: str) -> str:
    """Return a target and its options behind commas, without those that are secret.

    Left out is as well what is no option, since it may be the rest of a key, and who logs in at an address.
    """
    spec, *options = spelling.split(",")
    kept = [each for each in options if "=" in each and not is_secret(each.partition("=")[0])]
    return ",".join([re.sub(r"//[^/]*@", "//", spec), *kept])


def choice(options: Mapping[str, str], name: str, *allowed: str) -> str:
    """Return an option, the first allowed value by default.

    Raises:
        TargetUnavailable: it has another value.
    """
    value = options.get(name, allowed[0])
    if value not in allowed:
        raise TargetUnavailable(f"The option {name} must be {' or '.join(allowed)}, not {value[:80]!r}.")
    return value


def positive(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that is an integer of at least 1.

    Raises:
        TargetUnavailable: it is none.
    """
    text = options.get(name, str(default))
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text):
        return int(text)
    raise TargetUnavailable(f"The option {name} must be an integer of at least 1, not {text[:80]!r}.")


def with_timeout(spec: str, options: Mapping[str, str], seconds: float) -> dict[str, str]:
    """Return options with which a server's connection waits as long as its caller, unless they say otherwise."""
    return {"timeout_s": str(seconds), **options} if "=" in spec else dict(options)


def check_names(spec: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Refuse options that a target does not have.

    Raises:
        TargetUnavailable: names the first, and what it may have meant.
    """
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known) or 'none'}."
            raise TargetUnavailable(f"{spec} has no option {name[:80]!r}; {hint}")
