"""From the name of a target on the command line to what checks and opens it."""

import difflib
import importlib.util
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from mis_bench.targets.base import Capabilities, Opener, TargetUnavailable
from mis_bench.targets.blocking import BlockingOpener, BlockingTarget
from mis_bench.targets.spec import Options, TargetSpec, read_options

_SERVERS = ("mis", "sglang", "vllm", "openai")

SPECS = (
    *("engine", "transformers-serial", "transformers-batched", "transformers-shared", "llama.cpp"),
    *(f"{kind}=http://HOST:PORT" for kind in _SERVERS),
)
"""How targets are spelled, for help texts."""


class _TransformersOptions(Options):
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    batch: PositiveInt = 16


class _LlamaCppOptions(Options):
    context_length: PositiveInt = 8192
    threads: PositiveInt = os.cpu_count() or 1


def opener(target: TargetSpec, *, model: Path | None = None) -> Opener:
    """Return what checks and opens a target.

    Args:
        target: Which.
        model: Directory of the checkpoint, for targets that load one; of a server's, if it can be read here.

    Raises:
        TargetUnavailable: there is no such target, it has no such option, or it needs a checkpoint; one sentence says
            which and what would help.
    """
    kind, equals, _ = target.spec.partition("=")
    if equals and kind in _SERVERS:
        from mis_bench.targets.servers import KINDS

        return KINDS[kind](target.spec, target.options, model)
    if target.spec not in SPECS:
        near = difflib.get_close_matches(target.spec, SPECS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(SPECS)}."
        raise TargetUnavailable(f"There is no target {target.spec[:80]!r}; {hint}")
    if model is None:
        raise TargetUnavailable(f"The target {target.spec} loads a checkpoint: name one with --model.")
    if target.spec == "engine":
        from mis_bench.targets.engine import EngineTarget, engine_config

        config = engine_config(model, target.options)
        return BlockingOpener(partial(EngineTarget, config), Capabilities(layouts=True))
    make, extra, packages = _local(target, model)
    return BlockingOpener(make, Capabilities(), partial(_find, target.spec, extra, packages))


def _local(target: TargetSpec, model: Path) -> tuple[Callable[[], BlockingTarget], str, tuple[str, ...]]:
    """Return what makes a model of another library, the extra that has its packages, and these."""
    if target.spec == "llama.cpp":
        llama = read_options(target.spec, target.options, _LlamaCppOptions)

        def llama_cpp() -> BlockingTarget:
            from mis_bench.targets.llama_cpp import LlamaCpp

            return LlamaCpp(model, llama.context_length, llama.threads)

        return llama_cpp, "llama-cpp", ("llama_cpp", "gguf", "safetensors", "ml_dtypes")
    options = read_options(target.spec, target.options, _TransformersOptions)

    def transformers() -> BlockingTarget:
        from mis_bench.targets.pytorch import PyTorch

        return PyTorch(model, target.spec.removeprefix("transformers-"), options.dtype, options.batch)

    return transformers, "pytorch", ("torch", "transformers")


def _find(spec: str, extra: str, packages: tuple[str, ...]) -> None:
    """Look for packages without importing them; raises `TargetUnavailable`."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise TargetUnavailable(f"{spec} needs {package}: pip install 'mis-bench[{extra}]'.")
