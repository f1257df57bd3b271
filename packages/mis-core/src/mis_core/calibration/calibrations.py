"""A file of calibrations: reading it as untrusted, writing it, and finding the entry for a request."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import numpy as np
from jaxtyping import Int32
from msgspec import Meta

from mis_core.calibration.entry import Entry
from mis_core.calibration.identity import Identity, ModelIdentity
from mis_core.errors import ConfigError, shown

_VERSION = 1
_MOST_BYTES = 16 * 1024 * 1024
_MOST_ALIKE = 1000  # entries that differ in how queries begin: each is looked at with every request
_SHOWN = 300


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file holds."""

    format: Literal["mis-calibration"] = "mis-calibration"
    version: Literal[1] = _VERSION
    made_with: str = ""
    model: ModelIdentity
    entries: Annotated[tuple[Entry, ...], Meta(max_length=100_000)]


@dataclass(frozen=True, slots=True)
class Calibrations:
    """Calibrations of one model.

    Attributes:
        model: The model they belong to.
        entries: The calibrations.
        mismatch: What differs in the served model, in words for people; empty: nothing.
    """

    model: ModelIdentity
    entries: tuple[Entry, ...]
    mismatch: tuple[str, ...] = ()
    _by_digest: dict[str, list[Entry]] = field(default_factory=dict, repr=False, init=False)

    def __post_init__(self) -> None:
        for entry in self.entries:
            self._by_digest.setdefault(entry.identity.digest, []).append(entry)

    def find(self, identity: Identity | None, query: Int32[np.ndarray, " tokens"] | None = None) -> Entry | None:
        """Return the calibration for a request; of several, the one with the longest beginning that its query has.

        Args:
            identity: What was asked; None: it cannot be calibrated.
            query: The tokens of its query; None: the query does not matter.
        """
        if identity is None:
            return None
        fitting = [each for each in self._by_digest.get(identity.digest, []) if _begins(query, each.begins)]
        return max(fitting, key=lambda each: len(each.begins), default=None)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file.

        Raises:
            ConfigError: it is missing, too large, of another format, or holds numbers that cannot be used.
        """
        try:
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except OSError as error:
            raise _error(f"{path} cannot be read: {error.strerror or error}.") from None
        if len(data) > _MOST_BYTES:
            raise _error(f"{path} is larger than {_MOST_BYTES:,} bytes.")
        try:
            found = msgspec.json.decode(data, type=_File)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _error(f"{path} is not a calibration of version {_VERSION}: {shown(str(error), _SHOWN)}.") from None
        kinds = [(each.identity.digest, each.begins) for each in found.entries]
        if len(set(kinds)) < len(kinds):
            raise _error(f"{path} has two entries for the same question. Keep one of them.")
        read = cls(found.model, found.entries)
        if any(len(alike) > _MOST_ALIKE for alike in read._by_digest.values()):
            raise _error(f"{path} has more than {_MOST_ALIKE:,} entries that differ only in how queries begin.")
        return read

    def write(self, path: Path, made_with: str) -> None:
        """Write a file.

        Raises:
            ConfigError: it cannot be written.
        """
        data = msgspec.json.encode(_File(made_with=made_with, model=self.model, entries=self.entries))
        try:
            path.write_bytes(msgspec.json.format(data, indent=1) + b"\n")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", "output") from None


def common_beginning(queries: Sequence[np.ndarray], least: int = 8) -> tuple[int, ...]:
    """Return the tokens with which all queries, `[tokens]`, begin.

    Args:
        queries: At least one, all of them different. A single one is returned whole.
        least: A shorter common beginning may be chance, and counts as none.
    """
    if not queries:
        return ()
    first, length = queries[0], min(map(len, queries))
    for each in queries[1:]:
        differs = np.flatnonzero(each[:length] != first[:length])
        length = int(differs[0]) if len(differs) else length
    return tuple(first[:length].tolist()) if length >= least or len(queries) == 1 else ()


def _begins(query: Any, begins: tuple[int, ...]) -> bool:
    if not begins:
        return True
    return query is not None and len(query) >= len(begins) and query[: len(begins)].tolist() == list(begins)


def _error(message: str) -> ConfigError:
    return ConfigError(message, "calibration")
