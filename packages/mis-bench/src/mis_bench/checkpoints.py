"""Checkpoints by name: a directory, a model's name, or random weights of a published shape."""

import os
import re
from pathlib import Path

import mis_bench
from mis_core.checkpoints import open_checkpoint
from mis_core.errors import ModelError
from mis_core.hub import resolve_model


class CheckpointError(ValueError):
    """A checkpoint cannot be had; one sentence says why and what would help."""


def resolve_checkpoint(spec: str) -> Path:
    """Return the directory of a checkpoint.

    Args:
        spec: A directory, a name that the model hub's client resolves, or `random:SHAPE` or
            `random:SHAPE/DIVISOR`: random weights of a published shape such as `qwen3-0.6b`, with layers, heads
            and widths divided. These are written once, into `~/.cache/mis-bench` (or under `XDG_CACHE_HOME`).

    Raises:
        CheckpointError: there is none of that name, it cannot be written, or its `config.json` is broken.
    """
    kind, _, name = spec.partition(":")
    if kind == "random":
        return _random(name)
    try:
        path = resolve_model(spec)
        if (path / "config.json").exists():  # read here as the engine reads it, within its limits; later as it is
            open_checkpoint(path).settings()
    except ModelError as error:
        raise CheckpointError(error.message) from None
    if path.is_file():  # which PyTorch cannot read to compare with
        raise CheckpointError(f"{path} is a file; measurements need a model directory with safetensors files.")
    return path


def _random(name: str) -> Path:
    try:
        from mis_testing.checkpoint import divided_checkpoint
        from mis_testing.published import PRUNED, SHAPES
    except ImportError:
        raise CheckpointError("Random checkpoints need mis-testing: pip install 'mis-bench[random]'.") from None
    match = re.fullmatch(r"([^/]*)(?:/([1-9][0-9]{0,8}))?", name)
    shape, divisor = match.groups("1") if match else ("", "")
    if shape not in (shapes := SHAPES | PRUNED):
        known = ", ".join(sorted(shapes))
        raise CheckpointError(f"There is no shape {name[:80]!r}; known are {known}. SHAPE/DIVISOR divides one.")
    folder = cache_folder() / f"{shape}-{divisor}-{mis_bench.__version__}"
    if not folder.is_dir():
        try:
            divided_checkpoint(folder, shape, int(divisor))
        except OSError as error:
            raise CheckpointError(f"The checkpoint {folder} cannot be written: {error.strerror or error}.") from None
    return folder


def cache_folder() -> Path:
    """Return where made files are kept: `~/.cache/mis-bench`, or `mis-bench` under `XDG_CACHE_HOME`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mis-bench"
