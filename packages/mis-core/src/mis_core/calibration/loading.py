"""The calibration of a model that is served: its file, and whether it belongs to that model."""

import dataclasses
import logging

from mis_core.calibration.calibrations import Calibrations
from mis_core.calibration.identity import ModelIdentity, digest_of
from mis_core.checkpoints import ModelPart, open_described
from mis_core.checkpoints.digests import kept_sha256
from mis_core.config import EngineConfig, cache_folder
from mis_core.errors import ConfigError

logger = logging.getLogger(__name__)


def read_calibrations(config: EngineConfig) -> Calibrations | None:
    """Read the calibrations that a model is to be served with, and its weights, whose checksums are then kept.

    So what can be wrong with the file is known before the model is loaded.

    Args:
        config: Names local files only, as `resolve` returns it.

    Raises:
        ConfigError: the file is of no use.
        ModelError: a file of the model cannot be read.
    """
    path = config.calibration_path
    if path is None:
        return None
    read = Calibrations.read(path)
    weights_digest(config)
    return read


def checked(
    read: Calibrations, config: EngineConfig, parts: tuple[ModelPart, ...], dtype: str, tokenizer: str
) -> Calibrations:
    """Return calibrations if they belong to a model, or say what differs where a warning is enough.

    Args:
        read: As `read_calibrations` returns them.
        config: Names local files only.
        parts: What the model is made of, as an engine says.
        dtype: The type it computes in.
        tokenizer: Digest of its tokenizer.

    Raises:
        ConfigError: they belong to another model, and `calibration_mismatch` is `error`.
        ModelError: a file of the model cannot be read.
    """
    path = config.calibration_path
    logger.info("Calibration: %s, with %d entries.", path, len(read.entries))
    differs = tuple(read.model.differences(identity_of(config, parts, dtype, tokenizer)))
    if not differs:
        return read
    message = f"{path} was fitted to another model, which differs in {', '.join(differs)}."
    if config.calibration_mismatch == "error":
        remedy = "Fit it to this model with `mis-server calibrate`, or serve without it: --calibration none."
        raise ConfigError(f"{message} {remedy}", "calibration")
    logger.warning("%s Probabilities are calibrated all the same, and replies say so.", message)
    return dataclasses.replace(read, mismatch=differs)


def identity_of(config: EngineConfig, parts: tuple[ModelPart, ...], dtype: str, tokenizer: str) -> ModelIdentity:
    """Return what the logits of a model depend on; arguments and errors as of `checked`."""
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
    folder = cache_folder(config.compilation_cache_dir) / "checksums"
    files = [kept_sha256(path, folder) for path in checkpoint.weight_paths()]
    return digest_of([checkpoint.settings(), files])
