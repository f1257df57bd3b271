"""Checkpoints by name: a directory, a model's name, or random weights of a published shape."""

import os
from pathlib import Path

import mis_bench
from mis_core.errors import ModelError
from mis_core.hub import resolve_model

_RANDOM = "random:"


class CheckpointError(ValueError):
    """A checkpoint cannot be had; one sentence says why and what would help."""


def resolve_checkpoint(spec: str) -> Path:
    """Return the directory of a checkpoint.

    Args:
        spec: A directory, a name that the model hub's client resolves, or `random:SHAPE` or
            `random:SHAPE/DIVISOR`: random weights of a published shape such as `qwen3-0.6b`, with layers, heads
            and widths divided. These are written once, into `~/.cache/mis-bench` (or under `XDG_CACHE_HOME`).

    Raises:
        CheckpointError: there is none of that name, or it cannot be written.
    """
    if spec.startswith(_RANDOM):
        return _random(spec.removeprefix(_RANDOM))
    try:
        return resolve_model(spec)
    except ModelError as error:
        raise CheckpointError(error.message) from None


def _random(name: str) -> Path:
    try:
        from mis_testing.checkpoint import divided_checkpoint
        from mis_testing.shapes import SHAPES
    except ImportError:
        raise CheckpointError("Random checkpoints need mis-testing: pip install 'mis-bench[random]'.") from None
    shape, _, digits = name.partition("/")
    if shape not in SHAPES:
        raise CheckpointError(f"There is no shape {shape[:80]!r}; known are {', '.join(sorted(SHAPES))}.")
    if "/" in name and not (digits.isascii() and digits.isdigit() and int(digits) > 0):
        raise CheckpointError(f"Write random:{shape}/DIVISOR with an integer of at least 1, not {digits[:80]!r}.")
    divisor = int(digits or 1)
    folder = cache_folder() / f"{shape}-{divisor}-{mis_bench.__version__}"
    if not folder.is_dir():
        try:
            divided_checkpoint(folder, shape, divisor)
        except OSError as error:
            raise CheckpointError(f"The checkpoint {folder} cannot be written: {error.strerror or error}.") from None
    return folder


def cache_folder() -> Path:
    """Return where made files are kept: `~/.cache/mis-bench`, or `mis-bench` under `XDG_CACHE_HOME`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "mis-bench"
