"""A checkpoint as the Hugging Face hub has it: a directory with `config.json`, safetensors and tokenizer files."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from mis_core.checkpoints.checkpoint import Checkpoint, StoredTensor, StoredTokenizer
from mis_core.checkpoints.signs import Signs, directory_signs
from mis_core.errors import ModelError


class DirectoryCheckpoint(Checkpoint):
    """A directory of files; see `Checkpoint`."""

    def __init__(self, path: Path) -> None:
        """Take the directory's path."""
        self.path = path
        self.settings_path = path / "config.json"

    def settings(self) -> dict[str, Any]:
        """Read `config.json`; see `Checkpoint`."""
        path = self.settings_path
        if not self.path.is_dir():
            raise ModelError(f"Model directory {str(self.path)!r} does not exist.")
        try:
            raw = json.loads(path.read_text("utf-8-sig"))
        except FileNotFoundError:
            raise ModelError(f"{path}: missing; a model directory needs a config.json.") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ModelError(f"{path}: not valid JSON ({error}).") from None
        if not isinstance(raw, dict):
            raise ModelError(f"{path}: holds a JSON {type(raw).__name__}, not an object.")
        return raw

    def signs(self) -> Signs:
        """Read the signs of `config.json`, `README.md` and the files of sentence-transformers; see `Checkpoint`."""
        return directory_signs(self.path)

    def stored_types(self) -> tuple[str, ...]:
        """Return the names of the types that become float32 and bfloat16; see `Checkpoint`."""
        return ("BF16", "F16", "F32", "F64")

    @contextlib.contextmanager
    def tensors(self) -> Iterator[dict[str, "_Tensor"]]:
        """Open the safetensors files, whose headers alone are read; see `Checkpoint`."""
        with contextlib.ExitStack() as files:
            stored: dict[str, _Tensor] = {}
            for path in self._files():
                try:
                    handle = files.enter_context(safe_open(path, framework="np"))
                except FileNotFoundError:
                    raise ModelError(f"{path}: missing, though {_INDEX} names it.") from None
                except (SafetensorError, OSError) as error:
                    raise ModelError(f"{path}: truncated or not a safetensors file ({error}).") from None
                stored |= {name: _Tensor(handle, name) for name in handle.keys()}  # noqa: SIM118  not a mapping
            yield stored

    def tokenizer(self) -> StoredTokenizer:
        """Read the tokenizer files by `transformers`, never with remote code; see `Checkpoint`."""
        _check_tokenizer_files(self.path)
        from transformers import AutoTokenizer  # slow to import; requests of token ids never need it

        try:
            loaded: Any = AutoTokenizer.from_pretrained(str(self.path), trust_remote_code=False, local_files_only=True)
            backend = loaded.backend_tokenizer
        except Exception as error:  # every tokenizer class fails in its own way; all mean the same to the user
            reason = next(iter(str(error).splitlines()), "")[:200]
            raise ModelError(
                f"The tokenizer of model {self.path.name!r} cannot be read from its tokenizer.json and "
                f"tokenizer_config.json: {type(error).__name__}: {reason}"
            ) from None
        template = loaded.chat_template
        if isinstance(template, dict):  # several by name
            template = template.get("default")
        special_tokens = {name: str(token) for name, token in loaded.special_tokens_map.items()}
        return StoredTokenizer(backend, special_tokens, _end_ids(self.path, loaded.eos_token_id), template)

    def _files(self) -> list[Path]:
        """Return the files that hold the weights."""
        index = self.path / _INDEX
        if index.exists():
            try:
                names = sorted(set(json.loads(index.read_text("utf-8-sig"))["weight_map"].values()))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ModelError(f"{index}: not a safetensors index ({type(error).__name__}).") from None
            return [self.path / Path(name).name for name in names]  # an index must not reach outside its directory
        whole = self.path / "model.safetensors"  # what is beside it belongs to others, an adapter for instance
        files = [whole] if whole.exists() else sorted(self.path.glob("*.safetensors"))
        if not files:
            raise ModelError(f"{self.path}: no .safetensors files; other weight formats are not read.")
        return files


_INDEX = "model.safetensors.index.json"


class _Tensor(StoredTensor):
    """A tensor of an open safetensors file; see `StoredTensor`."""

    def __init__(self, file: Any, name: str) -> None:
        header = file.get_slice(name)
        self.shape = tuple(header.get_shape())
        self.stored_type = header.get_dtype()
        self._file = file
        self._name = name

    def read(self) -> np.ndarray:
        """Return the elements as they are stored."""
        return self._file.get_tensor(self._name)


def _end_ids(directory: Path, eos_id: int | None) -> frozenset[int]:
    """Return the tokens that end an answer: the tokenizer's, and those of the model's config files."""
    found: list[object] = [eos_id]
    for name in ("config.json", "generation_config.json"):
        try:
            ids = json.loads((directory / name).read_bytes())["eos_token_id"]
        except (OSError, ValueError, LookupError, TypeError):
            continue
        found += ids if isinstance(ids, list) else [ids]
    return frozenset(each for each in found if isinstance(each, int))


def _check_tokenizer_files(directory: Path) -> None:
    """Say which file is at fault before `transformers` says it at length."""
    kinds = ("tokenizer.json", "tokenizer.model", "vocab.json")
    if not any((directory / name).is_file() for name in kinds):
        raise ModelError(f"Model {directory.name!r} has no tokenizer: the file tokenizer.json is missing.")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = directory / name
        try:
            if path.is_file() and not isinstance(json.loads(path.read_bytes()), dict):
                raise ModelError(f"The file {name} of model {directory.name!r} does not hold a JSON object.")
        except ValueError:
            raise ModelError(f"The file {name} of model {directory.name!r} is not valid JSON.") from None
