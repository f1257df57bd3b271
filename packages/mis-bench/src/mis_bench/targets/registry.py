"""From the name of a target on the command line to what checks and opens it."""

import difflib
import os
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from mis_bench.targets.blocking import BlockingOpener, BlockingTarget
from mis_bench.targets.spec import Options, TargetSpec, read_options
from mis_bench.targets.target import Opener, TargetUnavailable

_SERVERS = ("mis", "sglang", "vllm", "openai", "llama-server", "systemone")

SPECS = (
    *("engine", "transformers-serial", "transformers-batched", "transformers-shared", "llama.cpp"),
    *(f"{kind}=http://HOST:PORT" for kind in _SERVERS),
)
"""How targets are spelled."""


class _TransformersOptions(Options):
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    batch: PositiveInt = 16
    merge_lora: Path | None = None  # the folder of an adapter, which PEFT applies


class _LlamaCppOptions(Options):
    context_length: PositiveInt = 8192
    threads: PositiveInt = os.cpu_count() or 1


def opener(target: TargetSpec, *, model: Path | None = None) -> Opener:
    """Return what checks and opens a target.

    Args:
        target: Which.
        model: Directory of the checkpoint, for targets that load one; of a server's, if it can be read here.

    Raises:
        TargetUnavailable: there is no such target, it has no such option, or it needs a checkpoint.
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

        return BlockingOpener(partial(EngineTarget, engine_config(model, target.options)))
    if target.spec == "llama.cpp":
        llama_cpp = partial(_llama_cpp, model, read_options(target.spec, target.options, _LlamaCppOptions))
        packages = ("llama_cpp", "gguf", "mis_testing")
        return BlockingOpener(llama_cpp, packages, extra="llama-cpp")
    way = target.spec.removeprefix("transformers-")
    transformers = partial(_pytorch, model, way, read_options(target.spec, target.options, _TransformersOptions))
    return BlockingOpener(transformers, ("torch", "transformers"), extra="pytorch")


def _llama_cpp(model: Path, options: _LlamaCppOptions) -> BlockingTarget:
    from mis_bench.targets.llama_cpp import LlamaCpp

    return LlamaCpp(model, options.context_length, options.threads)


def _pytorch(model: Path, way: str, options: _TransformersOptions) -> BlockingTarget:
    from mis_bench.targets.pytorch import PyTorch

    return PyTorch(model, way, options.dtype, options.batch, options.merge_lora)
