"""Checkpoints with LoRA adapters merged into their weights: `W + scale * B A` (arXiv 2106.09685), as PEFT merges."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mis_core.checkpoints.checkpoint import Checkpoint, StoredDecision, StoredTensor, StoredTokenizer
from mis_core.checkpoints.decision_files import StoredHead
from mis_core.checkpoints.digests import ModelPart, files_sha256
from mis_core.checkpoints.files import Files, is_there
from mis_core.checkpoints.lora_settings import EMBEDDING, LoraSettings, parse_lora_settings
from mis_core.checkpoints.safetensors_files import open_safetensors
from mis_core.checkpoints.signs import Signs, location
from mis_core.checkpoints.text_settings import is_name_of_images, is_tied, name_in_text
from mis_core.errors import ModelError, shown

_SETTINGS, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_WRAPPED = "base_model.model."
_ENDINGS = {".lora_A.weight": "A", ".lora_B.weight": "B"}
_TOKENS = f"{EMBEDDING}.token_adapter.trainable_tokens_delta"  # the new rows, not differences, despite the name
_WHOLE = f"{EMBEDDING}.weight", f"{EMBEDDING}.token_adapter.base_layer.weight"  # saved where tokens were added
_HEAD = "lm_head.weight"
_ATTENTION, _MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
_RECURRENCE = ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj")
_PRODUCTS = (*_ATTENTION, *_RECURRENCE, *_MLP)
"""Modules that adapters may change, besides single rows of the embedding; others are refused by name."""
_LAYERS = "layers."  # what their names begin with in a language model


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A folder with an adapter, as PEFT saves it.

    Attributes:
        path: The folder.
        files: Opens its files.
    """

    path: Path
    files: Files

    def settings(self) -> LoraSettings:
        """Read `adapter_config.json`.

        Raises:
            ModelError: it is missing or broken, or says what is not understood.
        """
        path = self.path / _SETTINGS
        if not is_there(path):
            raise ModelError(f"{path}: missing; a folder with a LoRA adapter needs one.")
        given = self.files.read_object(path)
        with _naming(path):
            return parse_lora_settings(given)

    def vocab_size(self, count: int) -> int:
        """Return how many tokens a model of so many has with the adapter, which may bring embeddings of more.

        Raises:
            ModelError: as `settings` and `tensors`, or there are tokens in between of which nobody has one.
        """
        with self.tensors() as matrices:
            if matrices.embedding is not None:
                file, name = matrices.embedding
                shape = file.get_slice(name).get_shape()
                if len(shape) != 2:
                    raise ModelError(
                        f"{self.path / _WEIGHTS}: tensor {shown(name, 200)} must have two dimensions, not {shape}."
                    )
                return int(shape[0])
        beyond = sorted(token for token in self.settings().tokens() if token >= count)
        if beyond != [*range(count, count + len(beyond))]:
            raise ModelError(
                f"{self.path}: has embeddings of {len(beyond)} tokens up to {beyond[-1]}; they must follow the model's "
                f"{count} tokens without a gap."
            )
        return count + len(beyond)

    def part(self) -> ModelPart:
        """Read the files whole, for a checksum."""
        files = [self.path / name for name in (_SETTINGS, _WEIGHTS)]
        return ModelPart("adapter", location(self.path), files_sha256(files))

    @contextlib.contextmanager
    def tensors(self) -> Iterator["Matrices"]:
        """Open the matrices.

        Raises:
            ModelError: the file is missing or broken, or holds something else.
        """
        path = self.path / _WEIGHTS
        self.files.check(path)
        with contextlib.ExitStack() as opened:
            file, names = open_safetensors(opened, path)
            found: dict[str, dict[str, Any]] = {}
            of_embedding: dict[bool, tuple[Any, str]] = {}
            for name in names:
                within = name_in_text(name.removeprefix(_WRAPPED))
                if within == _TOKENS or within in _WHOLE:
                    if (within in _WHOLE) in of_embedding:
                        raise ModelError(f"{path}: has two tensors for rows of the embedding.")
                    of_embedding[within in _WHOLE] = file, name
                    continue
                ending = next((each for each in _ENDINGS if name.endswith(each)), None)
                if ending is None:
                    raise ModelError(f"{path}: tensor {shown(name, 200)} is not part of a LoRA adapter.")
                module, part = name.removesuffix(ending).removeprefix(_WRAPPED), _ENDINGS[ending]
                if part in found.setdefault(module, {}):
                    raise ModelError(f"{path}: has two tensors lora_{part} of {shown(module, 200)}.")
                found[module][part] = (file, name)
            yield Matrices(found, of_embedding.get(False), of_embedding.get(True))


class Matrices(NamedTuple):
    """What an adapter holds; each tensor is its file and its name there.

    Attributes:
        products: By the name of each module its `A` `[rank, inputs]` and `B` `[outputs, rank]`.
        rows: Rows of the embedding, `[tokens, embed]`, if it has some.
        embedding: The whole embedding, whose place those rows take, `[vocab, embed]`, if it has it.
    """

    products: dict[str, dict[str, tuple[Any, str]]]
    rows: tuple[Any, str] | None
    embedding: tuple[Any, str] | None


class MergedCheckpoint(Checkpoint):
    """A checkpoint whose weights have adapters merged into them; all else is the checkpoint's. See `Checkpoint`."""

    def __init__(self, checkpoint: Checkpoint, adapters: Sequence[LoraAdapter]) -> None:
        """Take the checkpoint, and the adapters in the order in which they are merged."""
        self.path = checkpoint.path
        self.settings_path = checkpoint.settings_path
        self._checkpoint = checkpoint
        self._adapters = adapters

    @property
    def has_windows(self) -> bool:
        """Whether the checkpoint's layers slide; see `Checkpoint`."""
        return self._checkpoint.has_windows

    @property
    def norms_have_one(self) -> bool:
        """Whether the checkpoint's are stored so; see `Checkpoint`."""
        return self._checkpoint.norms_have_one

    def settings(self) -> dict[str, Any]:
        """Return the checkpoint's settings; see `Checkpoint`."""
        return self._checkpoint.settings()

    def signs(self) -> Signs:
        """Return the checkpoint's signs; see `Checkpoint`."""
        return self._checkpoint.signs()

    def parts(self, *, with_head: bool) -> tuple[ModelPart, ...]:
        """Return the checkpoint's parts, and the adapters; see `Checkpoint`."""
        return (*self._checkpoint.parts(with_head=with_head), *(adapter.part() for adapter in self._adapters))

    def stored_types(self) -> tuple[str, ...]:
        """Return the types of the checkpoint's tensors; see `Checkpoint`."""
        return self._checkpoint.stored_types()

    def weight_paths(self) -> list[Path]:
        """Return the files of the model without the rest; see `Checkpoint`."""
        return self._checkpoint.weight_paths()

    def tokenizer(self) -> StoredTokenizer:
        """Read the checkpoint's tokenizer; see `Checkpoint`."""
        return self._checkpoint.tokenizer()

    def decision(self) -> StoredDecision:
        """Read what the checkpoint says of decisions; see `Checkpoint`."""
        return self._checkpoint.decision()

    def head_tensors(self, head: StoredHead | None) -> contextlib.AbstractContextManager[Mapping[str, StoredTensor]]:
        """Open the tensors of the checkpoint's head; see `Checkpoint`."""
        return self._checkpoint.head_tensors(head)

    @contextlib.contextmanager
    def tensors(self) -> Iterator[Mapping[str, StoredTensor]]:
        """Open the tensors, those that adapters change as what they are with them; see `Checkpoint`."""
        with contextlib.ExitStack() as opened:
            stored = dict(opened.enter_context(self._checkpoint.tensors()))
            for adapter in self._adapters:
                matrices = opened.enter_context(adapter.tensors())
                with _naming(adapter.path):
                    tied = is_tied(self.settings())
                    stored |= _changed(adapter, adapter.settings(), matrices, stored, is_tied=tied)
            yield stored


class _MergedTensor(StoredTensor):
    """A weight with an adapter's product added; see `StoredTensor`."""

    def __init__(self, weight: StoredTensor, a: tuple[Any, str], b: tuple[Any, str], scale: float) -> None:
        self.shape = weight.shape
        self.stored_type = weight.stored_type
        self._weight, self._a, self._b, self._scale = weight, a, b, scale

    def read(self) -> np.ndarray:
        """Return the sum, in float32: whoever keeps it rounds it once."""
        a, b = (file.get_tensor(name).astype(np.float32) for file, name in (self._a, self._b))
        return self._weight.read().astype(np.float32) + np.float32(self._scale) * (b @ a)


class _ReplacedRows(StoredTensor):
    """An embedding that is another, or of which some rows are others; see `StoredTensor`."""

    def __init__(self, weight: StoredTensor, tokens: Sequence[int], matrices: "Matrices") -> None:
        self.shape = weight.shape
        self.stored_type = weight.stored_type
        self._weight, self._tokens, self._matrices = weight, tokens, matrices

    def read(self) -> np.ndarray:
        """Return the whole, in float32: whoever keeps it rounds it once."""
        rows, embedding = (
            None if each is None else each[0].get_tensor(each[1]).astype(np.float32)
            for each in (self._matrices.rows, self._matrices.embedding)
        )
        whole = self._weight.read().astype(np.float32) if embedding is None else embedding
        if rows is not None:
            whole[np.array(self._tokens)] = rows
        return whole


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name a path in errors that do not."""
    try:
        yield
    except ModelError as error:
        raise ModelError(error.message if str(path) in error.message else f"{path}: {error.message}") from None


def _changed(
    adapter: LoraAdapter,
    settings: LoraSettings,
    matrices: Matrices,
    stored: Mapping[str, StoredTensor],
    *,
    is_tied: bool,
) -> dict[str, StoredTensor]:
    """Return the tensors that an adapter changes, by name; whatever PEFT would pass over in silence is refused."""
    path, products = adapter.path / _WEIGHTS, _products(stored)
    changed = _with_rows(path, settings.tokens(), matrices, stored, is_tied=is_tied)
    for module, pair in matrices.products.items():
        if is_name_of_images(module):
            continue
        name = products.get(name_in_text(module))
        if name is None:
            found = {each.rpartition(".")[2] for each in products}
            known = ", ".join(each for each in _PRODUCTS if each in found)
            raise ModelError(f"{path}: {shown(module, 200)} is not a module that adapters can change; known: {known}.")
        if not settings.targets(module):
            raise ModelError(f"{path}: has tensors of {shown(module, 200)}, which target_modules does not name.")
        if len(pair) < len(_ENDINGS):
            raise ModelError(f"{path}: {shown(module, 200)} has only lora_{next(iter(pair))}.")
        outputs, inputs = stored[name].shape
        for part, shape in (("A", (settings.rank(module), inputs)), ("B", (outputs, settings.rank(module)))):
            _check_shape(path, pair[part], shape)
        if name in changed:
            raise ModelError(f"{path}: changes {name} twice.")
        changed[name] = _MergedTensor(stored[name], pair["A"], pair["B"], settings.scale(module))
    prefixes = {module.removesuffix(name_in_text(module)) for module in matrices.products}
    prefix = prefixes.pop() if len(prefixes) == 1 else ""
    for module, name in products.items():
        if name not in changed and settings.targets(prefix + module):
            raise ModelError(f"{path}: {prefix}{module} has no tensors, though target_modules names it.")
    if not changed:
        raise ModelError(f"{path}: changes no weight.")
    return changed


def _with_rows(
    path: Path,
    tokens: Sequence[int],
    matrices: Matrices,
    stored: Mapping[str, StoredTensor],
    *,
    is_tied: bool,
) -> dict[str, StoredTensor]:
    """Return the embedding with the rows that an adapter has for some tokens, by its name; nothing if it has none.

    Where the head is the embedding, a checkpoint may store it by either name, or by both.
    """
    if (matrices.rows is None) != (not tokens):
        raise ModelError(f"{path}: trainable_token_indices and rows of the embedding must be given together.")
    if matrices.rows is None and matrices.embedding is None:
        return {}
    names = [name for name in stored if name_in_text(name) == f"{EMBEDDING}.weight"]
    names += [_HEAD] if is_tied and _HEAD in stored else []
    if not names:
        raise ModelError(f"{path}: has rows of an embedding that the model does not have.")
    for name in names:
        shape = stored[name].shape
        if len(shape) != 2 or not all(0 <= token < shape[0] for token in tokens):
            raise ModelError(f"{path}: trainable_token_indices are not all rows of {name}, which is {shape}.")
        for tensor, count in ((matrices.rows, len(tokens)), (matrices.embedding, shape[0])):
            if tensor is not None:
                _check_shape(path, tensor, (count, shape[1]))
    return {name: _ReplacedRows(stored[name], tokens, matrices) for name in names}


def _check_shape(path: Path, tensor: tuple[Any, str], shape: tuple[int, ...]) -> None:
    file, name = tensor
    header = file.get_slice(name)
    if tuple(header.get_shape()) != shape or header.get_dtype() not in ("BF16", "F16", "F32", "F64"):
        has = f"{header.get_dtype()} {tuple(header.get_shape())}"
        raise ModelError(f"{path}: tensor {shown(name, 200)} is {has}; it must be floats of {shape}.")


def _products(stored: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Return the names of the tensors that may be changed, by their modules' names within the language model.

    Layers elsewhere, of images or for guessing tokens ahead, may have modules of the same names.
    """
    endings = tuple(f".{product}.weight" for product in _PRODUCTS)
    modules = {name_in_text(name.removesuffix(".weight")): name for name in stored if name.endswith(endings)}
    return {module: name for module, name in modules.items() if module.startswith(_LAYERS)}
