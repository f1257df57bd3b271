"""Where a model's files are: a directory, a GGUF file, or a name that the Hugging Face hub client resolves."""

import dataclasses
import os
from pathlib import Path
from typing import Annotated

import msgspec

from mis_core.config import CALIBRATION_FILE, EngineConfig
from mis_core.errors import ConfigError, ModelError

# Weights and plain data only, never code; the README says what a model was made for.
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "README.md", "head.pt"]  # that is never opened
_PACKAGE, _MOST_BYTES = "any2jev.json", 1 << 24


class _Package(msgspec.Struct):
    """What a folder with a pointer head says of the model that it was trained on."""

    base: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    revision: str | None = None


def resolve(config: EngineConfig) -> EngineConfig:
    """Return a config that names local directories and files only, downloading what is not there yet.

    A model that is a folder with a pointer head becomes the model which that names, with `decision_head`. A calibration
    beside the model, as it was named, becomes `calibration`.

    Raises:
        ConfigError: a revision of local files is asked for; there is only one.
        ModelError: as `resolve_model`, or a folder with a pointer head names no model.
    """
    if config.revision is not None and Path(config.model).exists():
        raise ConfigError("revision is for a model that is given by name; this one is a path.", "revision")
    model = resolve_model(config.model, config.revision, config.download_dir)
    config = dataclasses.replace(config, calibration=calibration_beside(config, model))
    package = None if config.decision_head is not None else _package_of(model)
    if package is not None:
        config = dataclasses.replace(config, decision_head=str(model))
        model = resolve_model(package.base, package.revision, config.download_dir)
    tokenizer, adapter, head = (
        None if path is None else str(resolve_model(path, None, config.download_dir))
        for path in (config.tokenizer_path, config.merge_lora, config.decision_head)
    )
    return dataclasses.replace(
        config, model=str(model), revision=None, tokenizer_path=tokenizer, merge_lora=adapter, decision_head=head
    )


def calibration_beside(config: EngineConfig, model: Path) -> str | None:
    """Return what `calibration` is for a model that was found there: as it was given, or the file beside it."""
    if config.calibration is not None or not model.exists():
        return config.calibration
    beside = (model if model.is_dir() else model.parent) / CALIBRATION_FILE
    return str(beside) if beside.is_file() else None


def base_of(model: Path) -> str | None:
    """Return the model that a folder with a pointer head names; None if it is no such folder.

    Raises:
        ModelError: it names none.
    """
    package = _package_of(model)
    return None if package is None else package.base


def _package_of(model: Path) -> _Package | None:
    path = model / _PACKAGE
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_BYTES).removeprefix(b"\xef\xbb\xbf"), type=_Package)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ModelError(
            f"{path}: does not name the model that it was trained on ({str(error)[:200]}). Serve that model with "
            f"--decision-head {model}."
        ) from None


def resolve_model(model: str, revision: str | None = None, download_dir: str | None = None) -> Path:
    """Return the local directory or file of a model, downloading or finding it in the hub's cache if need be.

    Args:
        model: A directory, a GGUF file, or a name.
        revision: Branch, tag or commit of a name; None: the hub's default.
        download_dir: Folder to keep downloads in; None: the hub client's cache.

    Raises:
        ModelError: there is no such path, and the hub client cannot provide the name.
    """
    path = Path(model)
    if path.exists():
        return path
    if path.suffix == ".gguf":
        raise ModelError(f"Model file {model!r} does not exist.")
    if not _is_name(model):
        raise ModelError(f"Model directory {model!r} does not exist.")
    from huggingface_hub import snapshot_download  # late: most models are local files, whose start need not wait

    try:
        return Path(snapshot_download(model, revision=revision, cache_dir=download_dir, allow_patterns=_FILES))
    except Exception as error:  # the client raises many unrelated types; all mean the same to the user
        name = model if revision is None else f"{model} at {revision}"
        raise ModelError(
            f"Model {name!r} is neither a directory nor available from the model hub ({type(error).__name__})."
        ) from None


def kept_at(model: str, download_dir: str | None = None) -> Path:
    """Return the directory or file of a model, or the folder that `resolve_model` keeps its downloads in.

    A path that does not exist is returned as it is; `resolve_model` is what refuses it.

    Args:
        model: A directory, a GGUF file, or a name.
        download_dir: Folder to keep downloads in; None: the hub client's cache.
    """
    if os.path.exists(model) or not _is_name(model):  # noqa: PTH110 - Path's raises for a name that is too long
        return Path(model)
    from huggingface_hub import constants

    # The client's own function for this refuses what is no name.
    folder = constants.REPO_ID_SEPARATOR.join(["models", *model.split("/")])
    return Path(download_dir or constants.HF_HUB_CACHE) / folder


def _is_name(model: str) -> bool:
    """Return whether what does not exist here may be a name on the hub: it does not read as a path."""
    path = Path(model)
    return not (path.suffix == ".gguf" or path.is_absolute() or model.startswith(".") or model.count("/") > 1)
