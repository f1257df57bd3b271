"""A checkpoint as the Hugging Face hub has it: a directory with `config.json`, safetensors and tokenizer files."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mis_core.checkpoints.checkpoint import Checkpoint, StoredDecision, StoredTensor, StoredTokenizer
from mis_core.checkpoints.decision_files import StoredHead, read_head
from mis_core.checkpoints.digests import ModelPart, files_sha256, weights_sha256
from mis_core.checkpoints.files import Files, is_there
from mis_core.checkpoints.safetensors_files import SafetensorsFile, open_safetensors
from mis_core.checkpoints.signs import Signs, directory_signs, location
from mis_core.checkpoints.tokenizer_files import read_tokenizer
from mis_core.checkpoints.weight_files import weight_files
from mis_core.errors import ModelError, shown

_MAX_TENSORS = 1 << 20  # each has an object before any is looked at


class DirectoryCheckpoint(Checkpoint):
    """A directory of files; see `Checkpoint`."""

    def __init__(self, path: Path, files: Files) -> None:
        """Take the directory's path, and what opens its files."""
        self.path = path
        self.settings_path = path / "config.json"
        self._files = files

    def settings(self) -> dict[str, Any]:
        """Read `config.json`; see `Checkpoint`."""
        if not self.path.is_dir():
            kind = "is neither a directory nor a GGUF file" if is_there(self.path) else "does not exist"
            raise ModelError(f"Model directory {str(self.path)!r} {kind}.")
        if not is_there(self.settings_path):
            raise ModelError(f"{self.settings_path}: missing; a model directory needs a config.json.")
        return self._files.read_object(self.settings_path)

    def signs(self) -> Signs:
        """Read the signs of `config.json`, `README.md` and the files of sentence-transformers; see `Checkpoint`."""
        return directory_signs(self.path, self._files)

    def stored_types(self) -> tuple[str, ...]:
        """Return the names of the types that become float32 and bfloat16; see `Checkpoint`."""
        return ("BF16", "F16", "F32", "F64")

    @contextlib.contextmanager
    def tensors(self) -> Iterator[dict[str, "_Tensor"]]:
        """Open the safetensors files, whose headers alone are read; see `Checkpoint`."""
        with contextlib.ExitStack() as opened:
            stored: dict[str, _Tensor] = {}
            for path in weight_files(self.path, self.settings(), self._files):
                handle, names = open_safetensors(opened, path)
                if len(stored) + len(names) > _MAX_TENSORS:
                    raise ModelError(f"{path}: brings the model to more than {_MAX_TENSORS:,} tensors.")
                for name in names:
                    if name in stored:
                        both = f"{stored[name].path.name} and {path.name}"
                        raise ModelError(f"{self.path}: both {both} hold tensor {shown(name, 200)}; keep one of them.")
                    stored[name] = _Tensor(handle, name, path)
            yield stored

    def parts(self, *, with_head: bool) -> tuple[ModelPart, ...]:
        """Read some of the weights, and a head's files whole; see `Checkpoint`."""
        settings = self.settings()
        weights = weights_sha256(settings, weight_files(self.path, settings, self._files))
        base = ModelPart("base", location(self.path), weights)
        head = read_head(self.path, self._files, settings) if with_head else None
        if head is None:
            return (base,)
        own = [] if head.file is None else [self.path / head.file]
        for path in own:
            self._files.check(path)
        digest = files_sha256([*(self.path / name for name in head.settings), *own])
        if head.file is None:
            with self.tensors() as stored:
                rows = [stored[name].read().tobytes() for name in head.names_within() if name in stored]
            digest = hashlib.sha256(b"".join([digest.encode(), *rows])).hexdigest()
        return base, ModelPart("head", head.file or self.settings_path.name, digest)

    def weight_paths(self) -> list[Path]:
        """Return the safetensors files; see `Checkpoint`."""
        return weight_files(self.path, self.settings(), self._files)

    def tokenizer(self) -> StoredTokenizer:
        """Read the tokenizer files by `transformers`, never with remote code; see `Checkpoint`."""
        return read_tokenizer(self.path, self._files)

    @contextlib.contextmanager
    def head_tensors(self, head: StoredHead | None) -> Iterator[dict[str, "_Tensor"]]:
        """Open the safetensors file of a head; see `Checkpoint`."""
        with contextlib.ExitStack() as opened:
            found: dict[str, _Tensor] = {}
            if head is not None and head.file is not None:
                path = self.path / head.file
                self._files.check(path)
                handle, names = open_safetensors(opened, path)
                for name, stored in head.names().items():
                    if stored not in names:
                        raise ModelError(f"{path}: tensor {stored} is missing.")
                    found[name] = _Tensor(handle, stored, path)
                others = sorted(set(names) - set(head.names().values()))
                if others:
                    raise ModelError(f"{path}: tensor {shown(others[0], 200)} is not part of a decision head.")
            yield found

    def decision(self) -> StoredDecision:
        """Read `decision.json` and `decision_template.jinja`, or a head's own files; see `Checkpoint`."""
        head = read_head(self.path, self._files, self.settings())
        if head is not None and head.asks is not None:  # by which transformers goes, whatever else is there
            return StoredDecision(head.asks, None, head, head.settings[0])
        settings, template = self.path / "decision.json", self.path / "decision_template.jinja"
        return StoredDecision(
            self._files.read_object(settings) if is_there(settings) else None,
            self._files.read_text(template) if is_there(template) else None,
            head,
        )


class _Tensor(StoredTensor):
    """A tensor of an open safetensors file; see `StoredTensor`."""

    def __init__(self, file: SafetensorsFile, name: str, path: Path) -> None:
        header = file.get_slice(name)
        self.shape = tuple(header.get_shape())
        self.stored_type = header.get_dtype()
        self.path = path
        self._file = file
        self._name = name

    def read(self) -> np.ndarray:
        """Return the elements as they are stored."""
        return self._file.get_tensor(self._name)
