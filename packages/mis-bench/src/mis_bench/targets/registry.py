"""From the name of a target on the command line to the target."""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

from mis_bench.targets.base import Target, TargetUnavailable


def make_target(spec: str, *, model: Path | None = None, options: Mapping[str, str] | None = None) -> Target:
    """Make a target; loading weights may take a while. Close it after use.

    Args:
        spec: `engine`: our engine in this process.
        model: Directory of the checkpoint, for targets that load one.
        options: For `engine` its options, `{"scoring_algorithm": "packed"}` for instance.

    Raises:
        TargetUnavailable: there is no such target, or it cannot run here; one sentence says why.
    """
    given = dict(options or {})
    if spec not in _LOADED:
        near = difflib.get_close_matches(spec, SPECS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(SPECS)}."
        raise TargetUnavailable(f"There is no target {spec[:80]!r}; {hint}")
    if model is None:
        raise TargetUnavailable(f"The target {spec} loads a checkpoint: name one with --model.")
    return _LOADED[spec](model, given)


def _engine(model: Path, options: dict[str, str]) -> Target:
    from mis_bench.targets.engine import open_engine

    return open_engine(model, options)


_LOADED: dict[str, Callable[[Path, dict[str, str]], Target]] = {"engine": _engine}

SPECS = tuple(_LOADED)
"""How targets are spelled, for help texts."""
