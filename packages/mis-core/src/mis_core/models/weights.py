"""Weights: from a checkpoint's tensors to the decoder's stacked arrays.

`tensors_of` says once where every tensor of a checkpoint goes and how it is turned; all families
share it, and a family's switches decide which lines apply. Only headers are read until everything
has been found complete, so a broken checkpoint fails in a moment and by name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
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
from mis_core.models.config import ModelConfig
from mis_core.models.decoder import NORM_OF, NORMS, Decoder
from mis_core.models.parallel import PRODUCTS, TENSOR, backend_for, make_mesh, packs, partition, placement, spread_heads
from mis_kernels.backends import Backend
from mis_kernels.heads import HeadShape
from mis_kernels.quantized import block_of, quantize
from mis_kernels.weights import StoredWeight

# Buffers that some exporters store though they follow from the configuration.
_DERIVED_SUFFIX = "rotary_emb.inv_freq"

_PREFIX = "model."
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_ROWS, _ROWS_AS_SAVED = "proj.weight", "weight"  # of a decision head

_WIDE = ("decision_head", "decision_bias", *NORMS)  # float32, whatever the others are

_CHECKED = 1 << 22  # elements at a time, so that no copy of a parameter is made

Store = Callable[[np.ndarray, np.ndarray], None]


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint and its place in the decoder.

    Attributes:
        name: Name in the checkpoint.
        shape: Shape in the checkpoint.
        target: Path of the decoder's parameter.
        store: Writes the stored array into its part of the target, turned as needed.
        layer: Index along the target's leading `layers` axis, or None where it has none.
    """

    name: str
    shape: tuple[int, ...]
    target: tuple[str, ...]
    store: Store
    layer: int | None = None


def tensors_of(config: ModelConfig, tensor_parallel: int = 1) -> Iterator[Tensor]:
    """List every tensor that a checkpoint of this shape must have.

    Args:
        config: The checkpoint's shape.
        tensor_parallel: Devices the layers are cut over; the decoder's heads are `spread_heads` of it.
    """
    spread = spread_heads(config, tensor_parallel).attention
    yield Tensor(_EMBEDDING, (config.vocab_size, config.embed), ("embedding",), _copy)
    yield Tensor("model.norm.weight", (config.embed,), ("norm",), _copy)
    if not config.tied:
        name = "score.weight" if config.family.classifies else _HEAD
        yield Tensor(name, (config.head_rows, config.embed), ("head",), _copy)
    if config.family.of_tokens:
        yield Tensor("score.bias", (config.head_rows,), ("head_bias",), _copy)
    if config.decision is not None:
        yield Tensor(_ROWS, (config.decision.count, config.embed), ("decision_head",), _copy)
        if config.decision.has_bias:
            yield Tensor("proj.bias", (config.decision.count,), ("decision_bias",), _copy)
    for layer in range(len(config.layers)):
        for name, shape, target, store in _layer_tensors(config, spread):
            yield Tensor(f"model.layers.{layer}.{name}", shape, ("layers", target), store, layer)


def _layer_tensors(config: ModelConfig, spread: HeadShape) -> Iterator[tuple[str, tuple[int, ...], str, Store]]:
    embed, mlp, heads = config.embed, config.mlp, config.attention
    q, kv = heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim
    for projection, width in (("q", q), ("k", kv), ("v", kv)):
        store = _queries(heads, spread) if projection == "q" else _keys_or_values(heads, spread, projection)
        yield f"self_attn.{projection}_proj.weight", (width, embed), "qkv", store
        if config.qkv_bias:
            yield f"self_attn.{projection}_proj.bias", (width,), "qkv_bias", store
    if config.family.qk_norm:
        yield "self_attn.q_norm.weight", (heads.head_dim,), "q_norm", _copy
        yield "self_attn.k_norm.weight", (heads.head_dim,), "k_norm", _copy
    yield "self_attn.o_proj.weight", (embed, q), "out", _output(heads, spread)
    if config.attention_bias:
        yield "self_attn.o_proj.bias", (embed,), "out_bias", _copy
    yield "input_layernorm.weight", (embed,), "attention_norm", _copy
    if config.family.norms_outputs:
        yield "post_attention_layernorm.weight", (embed,), "attention_out_norm", _copy
        yield "pre_feedforward_layernorm.weight", (embed,), "mlp_norm", _copy
        yield "post_feedforward_layernorm.weight", (embed,), "mlp_out_norm", _copy
    else:
        yield "post_attention_layernorm.weight", (embed,), "mlp_norm", _copy
    yield "mlp.gate_proj.weight", (mlp, embed), "gate_up", _half(0)
    yield "mlp.up_proj.weight", (mlp, embed), "gate_up", _half(1)
    yield "mlp.down_proj.weight", (embed, mlp), "down", _transposed
    if config.mlp_bias:
        yield "mlp.gate_proj.bias", (mlp,), "gate_up_bias", _half(0)
        yield "mlp.up_proj.bias", (mlp,), "gate_up_bias", _half(1)
        yield "mlp.down_proj.bias", (embed,), "down_bias", _copy


def _copy(target: np.ndarray, stored: np.ndarray) -> None:
    target[...] = stored


def _transposed(target: np.ndarray, stored: np.ndarray) -> None:
    target[...] = stored.T.reshape(target.shape)


def _spread(stored: np.ndarray, own: HeadShape, spread: HeadShape) -> np.ndarray:
    """Divide query heads `[heads, head_dim, ...]` among the copies of their KV head, zeros behind the last.

    Returns `[kv_heads of spread, group of spread, head_dim, ...]`.
    """
    copies = spread.kv_heads // own.kv_heads
    heads = stored.reshape(own.kv_heads, own.group, own.head_dim, *stored.shape[2:])
    missing = copies * spread.group - own.group
    heads = np.pad(heads, ((0, 0), (0, missing), *((0, 0),) * (heads.ndim - 2)))
    return heads.reshape(spread.kv_heads, spread.group, *heads.shape[2:])


def _by_head(target: np.ndarray, spread: HeadShape) -> np.ndarray:
    """View a weight `[embed, columns]` or a bias as `[(embed,) kv_heads, group + 2, head_dim]`."""
    heads = (spread.kv_heads, spread.group + 2, spread.head_dim)
    return target.reshape(heads if target.shape == heads else (len(target), *heads))


def _queries(own: HeadShape, spread: HeadShape) -> Store:
    def store(target: np.ndarray, stored: np.ndarray) -> None:
        heads = _spread(stored.reshape(own.heads, own.head_dim, *stored.shape[1:]), own, spread)
        by_head = _by_head(target, spread)
        by_head[..., : spread.group, :] = np.moveaxis(heads, 3, 0) if stored.ndim == 2 else heads

    return store


def _keys_or_values(own: HeadShape, spread: HeadShape, projection: str) -> Store:
    def store(target: np.ndarray, stored: np.ndarray) -> None:
        heads = stored.reshape(own.kv_heads, own.head_dim, *stored.shape[1:])
        heads = np.repeat(heads, spread.kv_heads // own.kv_heads, axis=0)
        by_head = _by_head(target, spread)
        by_head[..., spread.group + "kv".index(projection), :] = np.moveaxis(heads, 2, 0) if stored.ndim == 2 else heads

    return store


def _output(own: HeadShape, spread: HeadShape) -> Store:
    def store(target: np.ndarray, stored: np.ndarray) -> None:
        heads = _spread(stored.T.reshape(own.heads, own.head_dim, -1), own, spread)
        target[...] = heads.reshape(target.shape)

    return store


def _half(index: int) -> Store:
    def store(target: np.ndarray, stored: np.ndarray) -> None:
        target[index] = stored.T

    return store


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
        stored = _by_parameter(path, opened, names, tied=config.tied, is_within=config.is_within)
        # A classifier may still have its language model's head, which nothing uses; transformers leaves it out, too.
        unused_head = config.tied or config.family.classifies
        _check_found(checkpoint, wanted, stored, unused_head=unused_head)
        if config.tied and config.has_vocabulary_head and not _is_tied(stored):
            raise ModelError(
                f"{path}: lm_head.weight is not the embedding, though tie_word_embeddings is true; say false, or "
                "leave the tensor out."
            )
        spread = spread_heads(config, mesh.shape[TENSOR])
        backend = backend_for(spread, dtype, mesh)
        store = _Store(mesh, backend, quantization, packs=packs(spread, mesh.shape[TENSOR], backend))
        graph, state = nnx.split(nnx.eval_shape(lambda: Decoder(spread, dtype, backend)))
        parameters = nnx.to_flat_state(state)
        by_target: dict[tuple, list[Tensor]] = {}
        for tensor in wanted:
            by_target.setdefault(tensor.target, []).append(tensor)
        bar = tqdm(total=len(wanted), desc="Loading weights", unit="tensor", disable=not progress)
        has_one = config.family.norms_add_one and checkpoint.norms_have_one
        one = np.float32(config.family.norms_add_one and not has_one)
        loaded = {}
        with bar:
            for target_path, parameter in parameters:
                tensors = list(by_target[target_path])
                target = np.empty(parameter.shape, parameter.dtype)
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
                bar.update(len(tensors))
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
        if self.quantization == "int8":
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
    if _HEAD not in stored:
        return True
    return np.array_equal(stored[_HEAD].read(), stored[_EMBEDDING].read())


def _by_parameter(
    path: Path, stored: Mapping[str, StoredTensor], wanted: set[str], *, tied: bool, is_within: bool
) -> dict[str, StoredTensor]:
    """Return tensors by the names of what they are, as transformers finds them.

    Who saves a model without its head leaves out `model.` before each name; who wraps one may put it before all. Of a
    tied model the head may be stored in place of the embedding. transformers 5.24 saves the rows of a decision head as
    `weight`. Of a model that also reads images only the text is returned (`is_within`).
    """
    wanted = wanted | {_HEAD} if tied else wanted
    found: dict[str, StoredTensor] = {}
    names: dict[str, str] = {}
    for name, tensor in stored.items():
        if is_within and is_name_of_images(name):
            continue
        own = name_in_text(name)
        target = own if own in wanted else _PREFIX + own if _PREFIX + own in wanted else name
        if name == _ROWS_AS_SAVED and _ROWS in wanted:
            target = _ROWS
        if target in found:
            raise ModelError(f"{path}: tensors {names[target]} and {name} are the same parameter; keep one of them.")
        found[target], names[target] = tensor, name
    if tied and _EMBEDDING not in found and _HEAD in found:
        found[_EMBEDDING] = found.pop(_HEAD)
    return found


def _check_found(
    checkpoint: Checkpoint, expected: Iterable[Tensor], stored: Mapping[str, StoredTensor], *, unused_head: bool
) -> None:
    """Refuse tensors unless what is expected is all there, and nothing else."""
    path, settings, known_types = checkpoint.path, checkpoint.settings_path.name, checkpoint.stored_types()
    known = {_HEAD} if unused_head else set()
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
