"""Weights: from a checkpoint's tensors to the decoder's stacked arrays.

`tensors.tensors_of` says where every tensor goes. Only headers are read until everything has been found complete, so a
broken checkpoint fails in a moment and by name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from tqdm import tqdm

from mis_core.checkpoints import Checkpoint, StoredTensor, open_checkpoint
from mis_core.checkpoints.text_settings import is_name_of_images, name_in_text
from mis_core.errors import ModelError
from mis_core.models.blocks import NORM_OF, NORMS
from mis_core.models.config import ModelConfig
from mis_core.models.decoder import Decoder
from mis_core.models.parallel import PRODUCTS, TENSOR, backend_for, make_mesh, packs, partition, placement, spread_heads
from mis_core.models.recurrent import WIDE
from mis_core.models.tensors import EMBEDDING, HEAD, ROWS, Tensor, tensors_of
from mis_kernels.backends import Backend
from mis_kernels.quantized import block_of, quantize
from mis_kernels.weights import StoredWeight

# Buffers that some exporters store though they follow from the configuration.
_DERIVED_SUFFIX = "rotary_emb.inv_freq"

_PREFIX = "model."
_ROWS_AS_SAVED = "weight"  # of a decision head

_WIDE = ("decision_head", "decision_bias", *WIDE, *NORMS)  # float32, whatever the others are
_UNQUANTIZED = ("rates",)  # few weights, whose errors a state would add up

_CHECKED = 1 << 22  # elements at a time, so that no copy of a parameter is made


def load_decoder(
    path: Path | Checkpoint,
    config: ModelConfig,
    dtype: jnp.dtype,
    mesh: Mesh | None = None,
    progress: bool = True,
    quantization: str = "none",
) -> Decoder:
    """Read a checkpoint into a decoder, cut over the devices of a mesh.

    Parameters are read, turned, converted to `dtype` and moved to the devices one after the other;
    the host never holds more than one of them, and a device never more than its share.

    Args:
        path: The checkpoint: a directory, or a GGUF file.
        config: Its shape.
        dtype: Type of the weights.
        mesh: Devices with axes `data` and `TENSOR`; default: the first device.
        progress: Show a progress bar on standard error.
        quantization: `int8`: the weights of the layers' products are quantised; `none`: they keep their type.

    Raises:
        ModelError: a file is missing or truncated, or a tensor is missing, extra, misshapen or of
            an unknown type; it is named.
    """
    checkpoint = open_checkpoint(path)
    path = checkpoint.path
    head = checkpoint.decision().head if config.decision is not None else None
    with checkpoint.tensors() as own, checkpoint.head_tensors(head) as of_head:
        if both := sorted(own.keys() & of_head.keys()):
            raise ModelError(f"{path}: {both[0]} is both a tensor of the model and one of its decision head.")
        opened = {**own, **of_head}
        mesh = make_mesh(1, 1) if mesh is None else mesh
        wanted = list(tensors_of(config, mesh.shape[TENSOR]))
        names = {tensor.name for tensor in wanted}
        unread = config.family.unread
        opened = {name: tensor for name, tensor in opened.items() if not name.startswith(unread)}
        stored = _by_parameter(path, opened, names, tied=config.tied, is_within=config.is_within)
        # A classifier may still have its language model's head, which nothing uses; transformers leaves it out, too.
        unused_head = config.tied or config.family.classifies
        _check_found(checkpoint, wanted, stored, unused_head=unused_head)
        if config.tied and config.has_vocabulary_head and not _is_tied(stored):
            raise ModelError(
                f"{path}: lm_head.weight is not the embedding, though tie_word_embeddings is true; set it to false, or "
                "remove the tensor."
            )
        spread = spread_heads(config, mesh.shape[TENSOR])
        backend = backend_for(spread, dtype, mesh)
        store = _Store(mesh, backend, quantization, packs=packs(spread, mesh.shape[TENSOR], backend))
        graph, state = nnx.split(nnx.eval_shape(lambda: Decoder(spread, dtype, backend)))
        parameters = nnx.to_flat_state(state)
        by_target: dict[tuple, list[Tensor]] = {}
        for tensor in wanted:
            by_target.setdefault(tensor.target, []).append(tensor)
        bar = tqdm(total=len(names), desc="Loading weights", unit="tensor", disable=not progress)
        has_one = config.family.norms_add_one and checkpoint.norms_have_one
        one = np.float32(config.family.norms_add_one and not has_one)
        loaded, read = {}, set()
        with bar:
            for target_path, parameter in parameters:
                tensors = list(by_target[target_path])
                target = np.zeros(parameter.shape, parameter.dtype)  # some have columns that no tensor fills
                for tensor in tensors:
                    part = target if tensor.layer is None else target[tensor.layer]
                    tensor.store(part, stored[tensor.name].read())
                if backend.folds_norms and target_path[-1] in NORM_OF:
                    norms = by_target[*target_path[:-1], NORM_OF[target_path[-1]]]
                    for layer, norm in zip(target, norms, strict=True):
                        factors = stored[norm.name].read().astype(np.float32) + one
                        layer[...] = layer.astype(np.float32) * factors[:, None]
                    tensors += norms
                if target_path[-1] in NORMS:  # what the checkpoint stores is rounded as all weights are
                    target = target if has_one else target.astype(dtype).astype(np.float32) + one
                read |= {tensor.name for tensor in tensors}
                bar.update(len(read) - bar.n)
                if not _is_finite(target):
                    kept = jnp.dtype(dtype) if target_path[-1] in NORMS else target.dtype
                    names = (tensor.name for tensor in tensors)
                    as_kept = ((name, stored[name].read().astype(kept)) for name in names)
                    name = next((name for name, values in as_kept if not _is_finite(values)), tensors[0].name)
                    raise ModelError(f"{path}: tensor {name} holds NaN or infinity as {kept.name}.")
                loaded[target_path] = parameter.replace(store.put(target_path, target))
        return nnx.merge(graph, nnx.from_flat_state(loaded))


@dataclass(frozen=True)
class _Store:
    """How parameters are kept on the devices: weights of products quantised, or packed, or like all others."""

    mesh: Mesh
    backend: Backend
    quantization: str
    packs: bool

    def put(self, path: tuple, weight: np.ndarray) -> StoredWeight:
        """Move the parameter at a path of the decoder to the devices."""
        stored = self._stored(path, weight)
        return jax.device_put(stored, placement(path, stored, self.mesh, self.backend))

    def _stored(self, path: tuple, weight: np.ndarray) -> StoredWeight:
        if path[-1] in _WIDE:
            return weight
        if path[-1] not in PRODUCTS:
            return weight.view(self.backend.storage_dtype)
        if self.quantization == "int8" and path[-1] not in _UNQUANTIZED:
            depth, columns = NamedSharding(self.mesh, partition(path)).shard_shape(weight.shape)[-2:]
            return self.backend.pack_quantized(quantize(weight, block_of(depth)), depth, columns)
        return self.backend.pack(weight) if self.packs else weight.view(self.backend.storage_dtype)


def _is_finite(weight: np.ndarray) -> bool:
    """Whether no element is NaN or infinite: those have all bits of the exponent set, in bfloat16 and float32 alike."""
    bits = weight.reshape(-1).view({2: np.uint16, 4: np.uint32}[weight.itemsize])
    exponent = bits.dtype.type(0x7F80 << 8 * (weight.itemsize - 2))
    parts = (bits[begin : begin + _CHECKED] for begin in range(0, len(bits), _CHECKED))
    return not any(((part & exponent) == exponent).any() for part in parts)


def _is_tied(stored: Mapping[str, StoredTensor]) -> bool:
    """Whether a stored head, if there is one, equals the embedding."""
    if HEAD not in stored:
        return True
    return np.array_equal(stored[HEAD].read(), stored[EMBEDDING].read())


def _by_parameter(
    path: Path, stored: Mapping[str, StoredTensor], wanted: set[str], *, tied: bool, is_within: bool
) -> dict[str, StoredTensor]:
    """Return tensors by the names of what they are, as transformers finds them.

    Who saves a model without its head leaves out `model.` before each name; who wraps one may put it before all. Of a
    tied model the head may be stored in place of the embedding. transformers 5.24 saves the rows of a decision head as
    `weight`. Of a model that also reads images only the text is returned (`is_within`).
    """
    wanted = wanted | {HEAD} if tied else wanted
    found: dict[str, StoredTensor] = {}
    names: dict[str, str] = {}
    for name, tensor in stored.items():
        if is_within and is_name_of_images(name):
            continue
        own = name_in_text(name)
        target = own if own in wanted else _PREFIX + own if _PREFIX + own in wanted else name
        if name == _ROWS_AS_SAVED and ROWS in wanted:
            target = ROWS
        if target in found:
            raise ModelError(f"{path}: tensors {names[target]} and {name} are the same parameter; keep one of them.")
        found[target], names[target] = tensor, name
    if tied and EMBEDDING not in found and HEAD in found:
        found[EMBEDDING] = found.pop(HEAD)
    return found


def _check_found(
    checkpoint: Checkpoint, expected: Iterable[Tensor], stored: Mapping[str, StoredTensor], *, unused_head: bool
) -> None:
    """Refuse tensors unless what is expected is all there, and nothing else."""
    path, settings, known_types = checkpoint.path, checkpoint.settings_path.name, checkpoint.stored_types()
    known = {HEAD} if unused_head else set()
    for tensor in expected:
        if tensor.name not in stored:
            raise ModelError(f"{path}: tensor {tensor.name} is missing.")
        shape, stored_type = stored[tensor.name].shape, stored[tensor.name].stored_type
        if shape != tensor.shape:
            raise ModelError(f"{path}: tensor {tensor.name} has shape {shape}; {settings} asks for {tensor.shape}.")
        if stored_type not in known_types:
            raise ModelError(
                f"{path}: tensor {tensor.name} is stored as {stored_type}; known: {', '.join(known_types)}."
            )
        known.add(tensor.name)
    for name in stored:
        if name not in known and not name.endswith(_DERIVED_SUFFIX):
            raise ModelError(f"{path}: tensor {name} belongs to no part of the model that {settings} describes.")
