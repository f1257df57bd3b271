"""The calibration of a model that is served: its file, and whether it belongs to that model."""

import dataclasses
import logging
import os
from pathlib import Path

from mis_core.calibration.calibrations import FILE_NAME, Calibrations
from mis_core.calibration.identity import ModelIdentity, digest_of
from mis_core.checkpoints import ModelPart, open_described
from mis_core.checkpoints.digests import kept_sha256
from mis_core.config import EngineConfig
from mis_core.errors import ConfigError

logger = logging.getLogger(__name__)

OFF = "none"
"""The value of `calibration` that loads none."""


def calibration_file(config: EngineConfig) -> Path | None:
    """Return the file that a model is to be served with: the one that an option names, or one beside the model.

    Args:
        config: Names local files only, as `resolve` returns it.
    """
    if config.calibration is not None:
        return None if config.calibration == OFF else Path(config.calibration)
    model = Path(config.model)
    if not model.exists():
        return None
    beside = (model if model.is_dir() else model.parent) / FILE_NAME
    return beside if beside.is_file() else None


def load_calibrations(
    config: EngineConfig, parts: tuple[ModelPart, ...], dtype: str, tokenizer: str
) -> Calibrations | None:
    """Return the calibrations that a model is to be served with; None if there are none.

    Args:
        config: Names local files only.
        parts: What the model is made of, as an engine says.
        dtype: The type it computes in.
        tokenizer: Digest of its tokenizer.

    Raises:
        ConfigError: the file is of no use, or belongs to another model and `calibration_mismatch` is `error`.
        ModelError: a file of the model cannot be read.
    """
    path = calibration_file(config)
    if path is None:
        return None
    read = Calibrations.read(path)
    logger.info("Calibration: %s, with %d entries.", path, len(read.entries))
    differs = tuple(read.model.differences(identity_of(config, parts, dtype, tokenizer)))
    if not differs:
        return read
    message = f"{path} belongs to another model: {', '.join(differs)} {'differs' if len(differs) == 1 else 'differ'}."
    if config.calibration_mismatch == "error":
        remedy = "Fit it to this one with `mis-server calibrate`, or serve without it: --calibration none."
        raise ConfigError(f"{message} {remedy}", "calibration")
    logger.warning("%s Probabilities are calibrated all the same, and replies say so.", message)
    return dataclasses.replace(read, mismatch=differs)


def identity_of(config: EngineConfig, parts: tuple[ModelPart, ...], dtype: str, tokenizer: str) -> ModelIdentity:
    """Return what the logits of a model depend on; arguments and errors as of `load_calibrations`."""
    by_kind = {kind: [part.sha256 for part in parts if part.kind == kind] for kind in ("head", "adapter")}
    return ModelIdentity(
        weights=weights_digest(config),
        tokenizer=tokenizer,
        dtype=dtype,
        quantization=config.quantization,
        head=digest_of(by_kind["head"]) if by_kind["head"] else None,
        adapter=digest_of(by_kind["adapter"]) if by_kind["adapter"] else None,
    )


def weights_digest(config: EngineConfig) -> str:
    """Return a digest of a model's settings and of every byte of its weights; each file's is kept for the next time.

    Raises:
        ModelError: a file cannot be read.
    """
    checkpoint = open_described(config)
    home = os.environ.get("XDG_CACHE_HOME")
    cache = Path(config.compilation_cache_dir or (Path(home) if home else Path("~/.cache").expanduser()) / "mis")
    files = [kept_sha256(path, cache / "checksums") for path in checkpoint.weight_paths()]
    return digest_of([checkpoint.settings(), files])
