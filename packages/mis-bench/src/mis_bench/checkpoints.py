"""Checkpoints by name: a directory, a model's name, or random weights of a published shape."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import mis_bench
from mis_core.errors import ModelError
from mis_core.hub import resolve_model

_RANDOM = "random:"
_MULTIPLE = 32  # widths stay a multiple of this


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
            _write(folder, divided(SHAPES[shape], divisor))
        except OSError as error:
            raise CheckpointError(f"The checkpoint {folder} cannot be written: {error.strerror or error}.") from None
    return folder


def divided(sizes: dict[str, Any], divisor: int) -> dict[str, Any]:
    """Return the sizes of a checkpoint with layers, heads and widths divided.

    The width of a head, the number of query heads for each KV head, and the vocabulary stay.
    """
    if divisor == 1:
        return sizes
    heads, kv_heads = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    fewer = max(1, kv_heads // divisor)
    return sizes | {
        "num_hidden_layers": max(1, sizes["num_hidden_layers"] // divisor),
        "num_attention_heads": fewer * (heads // kv_heads),
        "num_key_value_heads": fewer,
        "hidden_size": _rounded(sizes["hidden_size"], divisor),
        "intermediate_size": _rounded(sizes["intermediate_size"], divisor),
        "shards": 1,
    }


def _rounded(width: int, divisor: int) -> int:
    return -(-width // (divisor * _MULTIPLE)) * _MULTIPLE


def cache_folder() -> Path:
    """Return where made files are kept: `~/.cache/mis-bench`, or `mis-bench` under `XDG_CACHE_HOME`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "mis-bench"


def _write(folder: Path, sizes: dict[str, Any]) -> None:
    """Write beside the folder and rename, so that it is complete or absent."""
    from mis_testing.checkpoint import tiny_checkpoint

    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        tiny_checkpoint(partial, **sizes)
        partial.chmod(0o755)
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
