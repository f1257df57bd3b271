"""From the name of a target on the command line to the target."""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

from mis_bench.targets.base import Target, TargetUnavailable


def make_target(spec: str, *, model: Path | None = None, options: Mapping[str, str] | None = None) -> Target:
    """Make a target: load its weights, or check its server. Close it after use.

    Args:
        spec: One of `SPECS`: `engine` is our engine in this process; with `=` and an address, a server.
        model: Directory of the checkpoint, for targets that load one; of a server's, if it can be read here.
        options: For `engine` its options, `{"scoring_algorithm": "packed"}` for instance; for servers `api_key`,
            `timeout_s`, `model` (the name that must be served) and what their dialect takes.

    Raises:
        TargetUnavailable: there is no such target, or it cannot run here; one sentence says why.
    """
    given = dict(options or {})
    name, equals, url = spec.partition("=")
    if equals and name in _SERVERS:
        return _server(name, url, given, model)
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


def _server(name: str, url: str, options: dict[str, str], model: Path | None) -> Target:
    from mis_bench.targets.completions import OpenAI
    from mis_bench.targets.http import open_server
    from mis_bench.targets.servers import VLLM, Mis, SGLang

    dialects = {"mis": Mis, "sglang": SGLang, "vllm": VLLM, "openai": OpenAI}
    return open_server(f"{name}={url}", url, dialects[name], options, model)


_LOADED: dict[str, Callable[[Path, dict[str, str]], Target]] = {"engine": _engine}
_SERVERS = ("mis", "sglang", "vllm", "openai")

SPECS = (*_LOADED, *(f"{name}=http://HOST:PORT" for name in _SERVERS))
"""How targets are spelled, for help texts."""
