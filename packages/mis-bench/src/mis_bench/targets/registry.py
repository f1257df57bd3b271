"""From the name of a target on the command line to the target."""

import difflib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from mis_bench.targets.base import BlockingTarget, Capabilities, Opener, TargetUnavailable
from mis_bench.targets.blocking import BlockingOpener
from mis_bench.targets.options import with_timeout
from mis_bench.targets.spec import TargetSpec

Maker = Callable[[Path, Mapping[str, str]], BlockingTarget]


def make_target(spec: str, *, model: Path | None = None, options: Mapping[str, str] | None = None) -> BlockingTarget:
    """Make a target: load its weights, or check its server. Close it after use.

    Args:
        spec: One of `SPECS`: `engine` is our engine in this process; with `=` and an address, a server.
        model: Directory of the checkpoint, for targets that load one; of a server's, if it can be read here.
        options: For `engine` its options, `{"scoring_algorithm": "packed"}` for instance; for servers `api_key`,
            `timeout_s`, `model` (the name that must be served) and what their dialect takes; for others `dtype` and
            what their modules say.

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


def _engine(model: Path, options: Mapping[str, str]) -> BlockingTarget:
    from mis_bench.targets.engine import open_engine

    return open_engine(model, options)


def _pytorch(way: str, model: Path, options: Mapping[str, str]) -> BlockingTarget:
    try:
        from mis_bench.targets.pytorch import open_pytorch
    except ImportError as error:
        raise TargetUnavailable(f"transformers-{way} needs {error.name}: pip install 'mis-bench[pytorch]'.") from None
    return open_pytorch(model, way, options)


def _llama_cpp(model: Path, options: Mapping[str, str]) -> BlockingTarget:
    try:
        from mis_bench.targets.llama_cpp import open_llama_cpp
    except ImportError as error:
        raise TargetUnavailable(f"llama.cpp needs {error.name}: pip install 'mis-bench[llama-cpp]'.") from None
    return open_llama_cpp(model, options)


def _vllm_cpu(model: Path, options: Mapping[str, str]) -> BlockingTarget:
    try:
        from mis_bench.targets.vllm_cpu import open_vllm
    except ImportError as error:
        raise TargetUnavailable(
            f"vllm-cpu needs vLLM built for CPUs, which the package index does not have ({error})."
        ) from None
    return open_vllm(model, options)


def _server(name: str, url: str, options: Mapping[str, str], model: Path | None) -> BlockingTarget:
    from mis_bench.targets.completions import OpenAI
    from mis_bench.targets.http import open_server
    from mis_bench.targets.servers import VLLM, Mis, SGLang

    dialects = {"mis": Mis, "sglang": SGLang, "vllm": VLLM, "openai": OpenAI}
    return open_server(f"{name}={url}", url, dialects[name], options, model)


_LOADED: dict[str, Maker] = {
    "engine": _engine,
    "transformers-serial": partial(_pytorch, "serial"),
    "transformers-batched": partial(_pytorch, "batched"),
    "transformers-shared": partial(_pytorch, "shared"),
    "llama.cpp": _llama_cpp,
    "vllm-cpu": _vllm_cpu,
}
_SERVERS = ("mis", "sglang", "vllm", "openai")

SPECS = (*_LOADED, *(f"{name}=http://HOST:PORT" for name in _SERVERS))
"""How targets are spelled, for help texts."""


def opener(target: TargetSpec, *, model: Path | None = None, timeout_s: float = 180.0) -> Opener:
    """Return what checks and opens a target.

    Args:
        target: Which.
        model: Directory of the checkpoint, for targets that load one; of a server's, if it can be read here.
        timeout_s: Longest wait for a server's answer, unless its options say otherwise.
    """
    options = with_timeout(target.spec, target.options, timeout_s)
    can = Capabilities(
        forgets=not target.spec.startswith("openai="),
        texts=target.spec == "engine" or "=" in target.spec,
        layouts=target.spec == "engine",
    )
    return BlockingOpener(partial(make_target, target.spec, model=model, options=options), can)
