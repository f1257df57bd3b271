"""The files of a checkpoint, which may be a stranger's: what is opened, and how large it may be.

Whatever reads a file of a checkpoint does it here, or asks here first where a library opens the file by itself. A name
may be a link, as in the hub's cache and on Kubernetes' volumes; what it leads to must be a regular file.
"""

import json
import os
import re
import stat
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO

from mis_core.errors import ModelError, shown

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file of a checkpoint.

    Attributes:
        name: What messages call it.
        patterns: Names of its files, as `fnmatch` has them.
        max_bytes: Largest size; None for weights, which are read tensor by tensor, or mapped into memory.
    """

    name: str
    patterns: tuple[str, ...]
    max_bytes: int | None


WEIGHTS = FileKind("weights", ("*.safetensors", "*.gguf"), None)
KINDS = (
    WEIGHTS,
    FileKind("an index of weights", ("*.safetensors.index.json",), 256 * MIB),
    FileKind(
        "a tokenizer",
        ("tokenizer.json", "tokenizer.model", "tekken.json", "tiktoken.model", "vocab.json", "vocab.txt", "merges.txt"),
        256 * MIB,
    ),
    FileKind(
        "settings of a tokenizer",
        ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
        64 * MIB,
    ),
    FileKind("a template", ("*.jinja",), 16 * MIB),
    FileKind("settings", ("*.json",), 16 * MIB),
    FileKind("a model card", ("*.md",), 16 * MIB),
)
"""Every kind of file that is read from a checkpoint; a file is of the first kind that has its name.

Published ones are far smaller: Gemma's tokenizer has 33 MB, an index of thousands of shards has less.
"""

GGUF_HEADER = FileKind("the header of a GGUF file", (), 256 * MIB)
"""What is read of a GGUF file before its tensors are mapped into memory."""

_BYTES_PER_VALUE = 32  # of JSON and GGUF headers: fewer make objects that are many times as large as the file
_FLAG = "--max-checkpoint-file-bytes raises the limit"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NOT_REGULAR = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, slots=True)
class Files:
    """Opens files of a checkpoint, within bounds.

    Attributes:
        max_bytes: Largest size of a file that is read as a whole, whatever its kind; None: by its kind.
    """

    max_bytes: int | None = None

    def check(self, path: Path, kind: FileKind | None = None) -> None:
        """Refuse what is no regular file, or too large; nothing is opened.

        Args:
            path: The file.
            kind: What it is, if its name does not say so.

        Raises:
            ModelError: there is none, it is of another type, or it is too large for its kind.
        """
        try:
            found = path.stat()
        except FileNotFoundError:
            why = "a link that leads to no file" if path.is_symlink() else "missing"
            raise ModelError(f"{path}: {why}.") from None
        except (OSError, ValueError) as error:  # a loop of links, a name that no file may have, no permission
            raise ModelError(f"{path}: cannot be opened ({_reason(error)}).") from None
        if not stat.S_ISREG(found.st_mode):
            what = _NOT_REGULAR.get(stat.S_IFMT(found.st_mode), "something else")
            raise ModelError(f"{path}: is {what}, not a file.")
        most = self.most_bytes(kind or kind_of(path.name))
        if most is not None and found.st_size > most:
            raise ModelError(_too_large(path, f"{found.st_size:,} bytes", most))

    def read(self, path: Path) -> bytes:
        """Return what a file holds.

        Raises:
            ModelError: as `check`, or the file cannot be read.
        """
        self.check(path)
        most = self.most_bytes(kind_of(path.name))
        assert most is not None, "weights are never read as a whole"
        try:
            # What the name leads to may have changed since: opening a named pipe must not wait for who writes to it.
            with open(path, "rb", opener=_open_without_waiting) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise ModelError(f"{path}: changed while it was being opened.")
                content = _read_up_to(file, most + 1)  # some files of /proc and /sys say that they are empty
        except OSError as error:
            raise ModelError(f"{path}: cannot be read ({_reason(error)}).") from None
        if len(content) > most:
            raise ModelError(_too_large(path, "more", most))
        return content

    def read_text(self, path: Path) -> str:
        """Return the text that a file holds, without a byte order mark.

        Raises:
            ModelError: as `read`, or it is not UTF-8.
        """
        try:
            return self.read(path).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ModelError(f"{path}: not UTF-8.") from None

    def read_json(self, path: Path) -> Any:
        """Return the value that a JSON file holds.

        Raises:
            ModelError: as `read`, or it is not JSON, nested too deeply, or of more values than memory is meant for.
        """
        text = self.read_text(path)
        most = self.most_values(kind_of(path.name))
        if sum(map(text.count, ",[{")) > most:
            raise ModelError(f"{path}: more than {most:,} values; {_FLAG}.")
        try:
            value = json.loads(text)
            if _SURROGATE.search(text):
                json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ModelError(f"{path}: not valid JSON (an unpaired surrogate, which is not text).") from None
        except ValueError as error:
            raise ModelError(f"{path}: not valid JSON ({shown(str(error), 120)}).") from None
        except RecursionError:
            raise ModelError(f"{path}: the JSON is nested too deeply.") from None
        return value

    def read_object(self, path: Path) -> dict[str, Any]:
        """Return the object that a JSON file holds.

        Raises:
            ModelError: as `read_json`, or it holds another value.
        """
        value = self.read_json(path)
        if not isinstance(value, dict):
            raise ModelError(f"{path}: holds a JSON {type(value).__name__}, not an object.")
        return value

    def most_bytes(self, kind: FileKind) -> int | None:
        """Return the largest size of a kind of file; None: any."""
        return kind.max_bytes if kind.max_bytes is None or self.max_bytes is None else self.max_bytes

    def most_values(self, kind: FileKind) -> int:
        """Return how many values a file of a kind may hold: of honest ones, those that fill the largest size."""
        return (self.most_bytes(kind) or 0) // _BYTES_PER_VALUE


def kind_of(name: str) -> FileKind:
    """Return the kind of a file by its name."""
    return next(kind for kind in KINDS if any(fnmatch(name, pattern) for pattern in kind.patterns))


def is_there(path: Path) -> bool:
    """Whether anything has this name, if only a link that leads nowhere."""
    try:
        return os.path.lexists(path)
    except ValueError:  # a name that no file may have
        return False


def inside(folder: Path, name: str, where: str) -> Path:
    """Return the path of a name that a file gives; it must not lead out of the folder, wherever links lead.

    Raises:
        ModelError: it does; `where` says who gave it.
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ModelError(f"{where} names {shown(repr(name), 80)}, which is not inside the model's directory.")
    return folder / path


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _read_up_to(file: BinaryIO, most: int) -> bytes:
    """Read part by part: memory is taken for what is there, not for what may be."""
    parts: list[bytes] = []
    while most and (part := file.read(min(most, MIB))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or shown(str(error), 80)


def _too_large(path: Path, size: str, most: int) -> str:
    return f"{path}: {size}, where {kind_of(path.name).name} may have {most:,} bytes; {_FLAG}."
