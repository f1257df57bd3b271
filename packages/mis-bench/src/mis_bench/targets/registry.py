"""From the name of a target on the command line to what checks and opens it."""

import difflib
import importlib.util
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from mis_bench.targets.base import BlockingTarget, Capabilities, Opener, TargetUnavailable
from mis_bench.targets.blocking import BlockingOpener
from mis_bench.targets.options import Declared, read_options
from mis_bench.targets.spec import TargetSpec

_DTYPE = ("bfloat16", "float32")
_PYTORCH, _LLAMA_CPP = "pip install 'mis-bench[pytorch]'", "pip install 'mis-bench[llama-cpp]'"
_BATCH: Declared = {"dtype": _DTYPE, "batch": 16}
_OPTIONS: Mapping[str, Declared] = {
    "transformers-serial": _BATCH,
    "transformers-batched": _BATCH,
    "transformers-shared": _BATCH,
    "llama.cpp": {"context_length": 8192, "threads": os.cpu_count() or 1},
    "vllm-cpu": {"dtype": _DTYPE, "context_length": 8192},
}
_SERVERS = ("mis", "sglang", "vllm", "openai")

SPECS = ("engine", *_OPTIONS, *(f"{name}=http://HOST:PORT" for name in _SERVERS))
"""How targets are spelled, for help texts."""


def opener(target: TargetSpec, *, model: Path | None = None, timeout_s: float = 180.0) -> Opener:
    """Return what checks and opens a target.

    Args:
        target: Which.
        model: Directory of the checkpoint, for targets that load one; of a server's, if it can be read here.
        timeout_s: Longest wait for a server's answer, unless its options say otherwise.

    Raises:
        TargetUnavailable: there is no such target, it has no such option, or it needs a checkpoint; one sentence says
            which and what would help.
    """
    name, equals, url = target.spec.partition("=")
    if equals and name in _SERVERS:
        return _server(target, name, url, model, timeout_s)
    if target.spec != "engine" and target.spec not in _OPTIONS:
        near = difflib.get_close_matches(target.spec, SPECS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(SPECS)}."
        raise TargetUnavailable(f"There is no target {target.spec[:80]!r}; {hint}")
    if model is None:
        raise TargetUnavailable(f"The target {target.spec} loads a checkpoint: name one with --model.")
    if target.spec == "engine":
        from mis_bench.targets.engine import engine_config, open_engine

        config = engine_config(model, target.options)
        return BlockingOpener(partial(open_engine, config), Capabilities(layouts=True))
    make, find = _local(target, model)
    return BlockingOpener(make, Capabilities(texts=False), find)


def _local(target: TargetSpec, model: Path) -> tuple[Callable[[], BlockingTarget], Callable[[], None]]:
    """Return what makes a model of another library, and what looks for its packages."""
    options = read_options(target.spec, target.options, _OPTIONS[target.spec])
    kind, _, way = target.spec.partition("-")

    def transformers() -> BlockingTarget:
        from mis_bench.targets.pytorch import open_pytorch

        return open_pytorch(model, way, **options)

    def llama_cpp() -> BlockingTarget:
        from mis_bench.targets.llama_cpp import open_llama_cpp

        return open_llama_cpp(model, **options)

    def vllm() -> BlockingTarget:
        from mis_bench.targets.vllm_cpu import open_vllm

        return open_vllm(model, **options)

    match kind:
        case "transformers":
            return transformers, partial(_find, target.spec, ("torch", "transformers"), _PYTORCH)
        case "llama.cpp":
            return llama_cpp, partial(_find, target.spec, ("llama_cpp", "gguf", "safetensors", "ml_dtypes"), _LLAMA_CPP)
        case _:
            hint = "vLLM built for CPUs, which the package index does not have"
            return vllm, partial(_find, target.spec, ("vllm",), hint)


def _find(spec: str, packages: tuple[str, ...], hint: str) -> None:
    """Look for packages without importing them; raises `TargetUnavailable`."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise TargetUnavailable(f"{spec} needs {package}: {hint}.")


def _server(target: TargetSpec, name: str, url: str, model: Path | None, timeout_s: float) -> Opener:
    from mis_bench.targets.completions import OpenAI
    from mis_bench.targets.http import ServerOpener
    from mis_bench.targets.servers import VLLM, Mis, SGLang

    dialects = {"mis": Mis, "sglang": SGLang, "vllm": VLLM, "openai": OpenAI}
    return ServerOpener(target.spec, url, dialects[name], target.options, model, timeout_s)
