"""What a job reads, and that it neither writes nor removes any of it."""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mis_core.checkpoints.gguf_parts import part_paths
from mis_core.config import NO_CALIBRATION, EngineConfig
from mis_core.errors import ConfigError
from mis_core.hub import base_of, calibration_beside, kept_at

LOCAL = "local"
"""The file system of this machine."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder that a job reads.

    Attributes:
        what: What it is, such as `the input`.
        path: Its path in its file system.
        system: The file system: `LOCAL`, or as pyarrow calls it.
    """

    what: str
    path: str
    system: str = LOCAL


def engine_places(config: EngineConfig) -> list[Place]:
    """Return what an engine reads."""
    models = {
        "the model": config.model,
        "the model that its decision head was trained on": base_of(kept_at(config.model, config.download_dir)),
        "the tokenizer": config.tokenizer_path,
        "the adapter": config.merge_lora,
        "the decision head": config.decision_head,
    }
    files = {
        "the chat template": config.chat_template,
        "the rerank template": config.rerank_file,
        "the prompt of decisions": config.decision_file,
    }
    kept = {what: kept_at(name, config.download_dir) for what, name in models.items() if name is not None}
    found = [Place(what, str(part)) for what, path in kept.items() for part in part_paths(path)]
    calibration = calibration_beside(config, kept_at(config.model, config.download_dir))
    found += [] if calibration in (None, NO_CALIBRATION) else [Place("the calibration", calibration)]
    return found + [Place(what, path) for what, path in files.items() if path is not None]


def check_apart(read: Iterable[Place], written: Iterable[str], system: str = LOCAL) -> None:
    """Refuse to write or remove what is read, whatever names it has.

    Args:
        read: Files and folders. A folder stands for everything in it.
        written: Files and folders that are written or removed. A folder stands for everything in it.
        system: The file system of `written`.

    Raises:
        ConfigError: `output` would be one of them.
    """
    read = [each for each in read if each.system == system]
    for path in written:
        target = _Local(path) if system == LOCAL else _Remote(path)
        for place in read:
            if how := target.meets(place.path):
                what = place.what if place.path == path else f"{place.what} ({place.path})"
                raise ConfigError(f"{path} {how} {what}, which is read; use another --output.", "output")


def status_of(path: Path) -> os.stat_result | None:
    """Return what a path leads to; None for nothing, and for what no file can be called."""
    try:
        return path.stat()
    except OSError:
        return None


def is_kept(path: Path) -> bool:
    """Return whether a path is a file's, or a folder's, or nobody's yet: not a pipe's or a device's."""
    status = status_of(path)
    return status is None or stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)


class _Remote:
    """A path of an object store, where a file has one name."""

    def __init__(self, path: str) -> None:
        self._parts = tuple(part for part in path.split("/") if part)

    def meets(self, read: str) -> str:
        """Return how a path that is written and one that is read meet, or nothing."""
        ours, theirs = self._parts, _Remote(read)._parts
        if ours == theirs:
            return "is"
        if ours[: len(theirs)] == theirs:
            return "lies in"
        return "is a folder above" if theirs[: len(ours)] == ours else ""


class _Local:
    """A path of this machine. Files are compared, not names, so links of both kinds are seen through."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        self._real = Path(os.path.realpath(path))
        self._status = status_of(self._real)

    def meets(self, path: str) -> str:
        """Return how a path that is written and one that is read meet, or nothing."""
        read = _Local(path)
        mode = self._status.st_mode if self._status else 0
        if read._identity is None or (mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))):
            return ""  # writing to a pipe or a device destroys nothing
        if self._identity == read._identity:
            return "is"
        if read._identity in self._folders:
            return "lies in"
        if self._identity in read._folders:
            return "is a folder above"
        files = read._real.rglob("*") if stat.S_ISREG(mode) and read._real.is_dir() else ()
        return "is a file of" if self._identity in map(_identity, map(status_of, files)) else ""

    @cached_property
    def _identity(self) -> tuple[int, int] | None:
        return _identity(self._status)

    @cached_property
    def _folders(self) -> set[tuple[int, int] | None]:
        """All folders above, of the name and of what it links to."""
        return {_identity(status_of(folder)) for folder in {*self._path.parents, *self._real.parents}} - {None}


def _identity(status: os.stat_result | None) -> tuple[int, int] | None:
    return None if status is None else (status.st_dev, status.st_ino)
