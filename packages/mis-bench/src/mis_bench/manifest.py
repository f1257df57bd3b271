"""What a folder of evidence is, and what is in it: written last, so that a folder without it was interrupted."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from mis_bench.artifact import Artifact, Part

MANIFEST, VIEW = "manifest.json", "report.md"
"""What lists the files of a folder, and what people read of it, computed from them."""

Kind = Literal[
    "run", "callers", "stress", "trace", "matrix", "compare", "sweep", "perf", "decisions", "validate", "profile"
]  # fmt: skip
"""Kinds of evidence: presets of results, validations and profiles."""


def _below(path: str) -> str:
    parts = PurePosixPath(path)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise ValueError("it is not a path below the folder")
    return path


class ListedFile(Part):
    """A file that the evidence needs."""

    path: Annotated[str, AfterValidator(_below)] = Field(description="Path below the folder, with forward slashes.")
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @classmethod
    def of(cls, folder: Path, path: str) -> "ListedFile":
        """Describe a file of a folder; raises `OSError` if it cannot be read."""
        with (folder / path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path=path, bytes=(folder / path).stat().st_size, sha256=digest)


class Manifest(Artifact, schema="mis-manifest-v1"):
    """`manifest.json`."""

    kind: Kind
    files: list[ListedFile] = Field(min_length=1, description="Everything that the evidence needs.")
    derived: list[str] = Field(default=[], description="Files that were computed from the listed ones, if any.")

    def changes(self, folder: Path) -> Iterator[str]:
        """Yield a sentence for every file that is not as it was listed."""
        for listed in self.files:
            try:
                found = ListedFile.of(folder, listed.path)
            except OSError as error:
                yield f"{listed.path}: {'it is missing' if isinstance(error, FileNotFoundError) else error.strerror}"
                continue
            if found.bytes != listed.bytes:
                yield f"{listed.path}: it has {found.bytes:,} bytes, but {MANIFEST} says {listed.bytes:,}"
            elif found != listed:
                yield f"{listed.path}: its SHA-256 is not that of {MANIFEST}"


def seal(folder: Path, kind: Kind, files: Iterable[str], derived: Iterable[str] = ()) -> None:
    """Write the manifest of a folder whose evidence is complete.

    Args:
        folder: Of the evidence.
        kind: What it is.
        files: Everything that the evidence needs, below the folder.
        derived: Names of files that may be computed from those.

    Raises:
        OSError: a file cannot be read, or the manifest cannot be written.
    """
    listed = [ListedFile.of(folder, path) for path in files]
    Manifest(kind=kind, files=listed, derived=list(derived)).write(folder / MANIFEST)
