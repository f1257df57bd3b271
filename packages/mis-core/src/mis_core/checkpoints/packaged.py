"""Language models with a pointer head of a folder beside them, and the folder's tokenizer: see `pointer_files`."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mis_core.checkpoints.checkpoint import Checkpoint, StoredDecision, StoredTensor, StoredTokenizer
from mis_core.checkpoints.decision_files import StoredHead
from mis_core.checkpoints.digests import ModelPart, files_sha256
from mis_core.checkpoints.files import Files
from mis_core.checkpoints.merged import LoraAdapter
from mis_core.checkpoints.pointer_files import ADAPTER, SETTINGS, TOKENIZER, WEIGHTS, StoredPointer, read_pointer
from mis_core.checkpoints.safetensors_files import SafetensorsFile, open_safetensors
from mis_core.checkpoints.signs import Signs, location
from mis_core.checkpoints.text_settings import is_name_of_images, is_tied, name_in_text, text_settings
from mis_core.checkpoints.tokenizer_files import read_tokenizer
from mis_core.errors import ModelError, shown

_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_LINEAR = ("q", "k")
_ROWS = {f"proj.{part}": [f"{name}.{part}" for name in _LINEAR] for part in ("weight", "bias")}

# Classes of texts, and those without a head, which are named otherwise than others.
_TEXTS = {"Gemma3ForCausalLM": "Gemma3TextModel", "Qwen3_5ForCausalLM": "Qwen3_5TextModel"}


class PackagedCheckpoint(Checkpoint):
    """A language model without its own head, whose decisions are read by the head of a folder. See `Checkpoint`.

    The rows of `q` come first, then those of `k`. Tokens that the folder's tokenizer has beyond the model's have rows
    of the embedding that the adapter brings.
    """

    def __init__(self, checkpoint: Checkpoint, folder: Path, files: Files) -> None:
        """Take the language model, the folder, and what opens its files."""
        self.path = checkpoint.path
        self.settings_path = checkpoint.settings_path
        self.adapter = LoraAdapter(folder / ADAPTER, files)
        self._checkpoint, self._folder, self._files = checkpoint, folder, files

    @property
    def norms_have_one(self) -> bool:
        """Whether the language model's are stored so; see `Checkpoint`."""
        return self._checkpoint.norms_have_one

    @property
    def has_windows(self) -> bool:
        """Whether layers slide: any2jev has a mask of its own, which hides nothing but other branches."""
        return False

    def settings(self) -> dict[str, Any]:
        """Return the settings of a model that has no head of its own, and the folder's tokens; see `Checkpoint`."""
        own = text_settings(self._checkpoint.settings())
        if own.get("hidden_size") != self._pointer.embed:
            raise ModelError(
                f"{self._folder / SETTINGS}: hidden_size is {self._pointer.embed}, but in {self.path.name} it is "
                f"{own.get('hidden_size')}: the head was trained on another model. Serve that model with the head."
            )
        return own | {"architectures": _without_head(own.get("architectures")), "vocab_size": self._rows(own)}

    def signs(self) -> Signs:
        """Return the language model's signs; see `Checkpoint`."""
        return self._checkpoint.signs()

    def parts(self, *, with_head: bool) -> tuple[ModelPart, ...]:
        """Return the language model's weights, and the folder's files; see `Checkpoint`."""
        own = self._checkpoint.parts(with_head=False)
        files = [self._folder / name for name in (SETTINGS, WEIGHTS)]
        return (*own, ModelPart("head", location(self._folder), files_sha256(files))) if with_head else own

    def stored_types(self) -> tuple[str, ...]:
        """Return the types of the language model's tensors; see `Checkpoint`."""
        return self._checkpoint.stored_types()

    def weight_paths(self) -> list[Path]:
        """Return the files of the model without the rest; see `Checkpoint`."""
        return self._checkpoint.weight_paths()

    def tokenizer(self) -> StoredTokenizer:
        """Read the folder's tokenizer; see `Checkpoint`."""
        return read_tokenizer(self._folder / TOKENIZER, self._files)

    def decision(self) -> StoredDecision:
        """Read what the folder says of its head; see `Checkpoint`."""
        rows = len(_LINEAR) * self._pointer.dimensions
        head = StoredHead(rows, {}, None, True, WEIGHTS, None, (SETTINGS,))
        return StoredDecision(head=head, source=SETTINGS, pointer=self._pointer)

    @contextlib.contextmanager
    def head_tensors(self, head: StoredHead | None) -> Iterator[Mapping[str, StoredTensor]]:
        """Open the rows of both linear layers; see `Checkpoint`."""
        with contextlib.ExitStack() as opened:
            found: dict[str, StoredTensor] = {}
            if head is not None:
                path = self._folder / WEIGHTS
                self._files.check(path)
                file, names = open_safetensors(opened, path)
                if others := sorted(set(names) - {name for parts in _ROWS.values() for name in parts}):
                    raise ModelError(f"{path}: tensor {shown(others[0], 200)} is not part of a pointer head.")
                for name, parts in _ROWS.items():
                    if missing := [part for part in parts if part not in names]:
                        raise ModelError(f"{path}: tensor {missing[0]} is missing.")
                    found[name] = _Stacked(path, file, parts, self._pointer.dimensions)
            yield found

    @contextlib.contextmanager
    def tensors(self) -> Iterator[Mapping[str, StoredTensor]]:
        """Open the language model's tensors, the embedding with rows for the folder's tokens; see `Checkpoint`."""
        with self._checkpoint.tensors() as stored:
            own = text_settings(self._checkpoint.settings())
            names = [name for name in stored if name.endswith(_EMBEDDING)]
            if not names and is_tied(own):
                names = [_HEAD]  # such a model may have either
            unread = [name for name in stored if is_name_of_images(name) or name_in_text(name) == _HEAD]
            found = {name: tensor for name, tensor in stored.items() if name not in unread or name in names}
            if (rows := self._rows(own)) != own.get("vocab_size"):
                found |= {name: _Lengthened(found[name], rows) for name in names if name in found}
            yield found

    @cached_property
    def _pointer(self) -> StoredPointer:
        return read_pointer(self._folder, self._files)

    def _rows(self, own: Mapping[str, Any]) -> Any:
        """Return the rows of the embedding: the language model's, and those that the adapter has behind them."""
        count = own.get("vocab_size")
        if not isinstance(count, int):
            return count  # such a model is refused where its settings are parsed
        return self.adapter.vocab_size(count)


def _without_head(architectures: Any) -> Any:
    """Return the names of classes without the head of a language model; what is no list of names is refused later."""
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        return architectures
    return [_TEXTS.get(name) or re.sub("ForCausalLM$", "Model", name) for name in architectures]


class _Stacked(StoredTensor):
    """The same part of both linear layers, one behind the other; see `StoredTensor`."""

    def __init__(self, path: Path, file: SafetensorsFile, names: list[str], dimensions: int) -> None:
        slices = [file.get_slice(name) for name in names]
        for name, each in zip(names, slices, strict=True):
            shape = tuple(each.get_shape())
            if shape[:1] != (dimensions,) or shape[1:] != tuple(slices[0].get_shape())[1:]:
                raise ModelError(f"{path}: tensor {name} has shape {shape}; {SETTINGS} says head_dim {dimensions}.")
        types = {each.get_dtype() for each in slices}
        self.shape = (len(names) * dimensions, *slices[0].get_shape()[1:])
        self.stored_type = types.pop() if len(types) == 1 else ", ".join(sorted(types))
        self._file, self._names = file, names

    def read(self) -> np.ndarray:
        """Return the rows as they are stored."""
        return np.concatenate([self._file.get_tensor(name) for name in self._names])


class _Lengthened(StoredTensor):
    """An embedding with rows of zeros behind it, in place of which an adapter has others; see `StoredTensor`."""

    def __init__(self, tensor: StoredTensor, rows: int) -> None:
        self.shape = (rows, *tensor.shape[1:])
        self.stored_type = tensor.stored_type
        self._tensor = tensor

    def read(self) -> np.ndarray:
        """Return the whole."""
        own = self._tensor.read()
        return np.concatenate([own, np.zeros((self.shape[0] - len(own), *own.shape[1:]), own.dtype)])
