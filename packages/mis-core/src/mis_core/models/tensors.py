"""The tensors of a checkpoint: where each goes in the decoder, and how it is turned.

`tensors_of` says it once for all families; a family's switches decide which lines apply.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mis_core.models.config import ModelConfig
from mis_core.models.parallel import spread_heads
from mis_kernels.heads import HeadShape
from mis_kernels.recurrence import RecurrentShape

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
"""Names of the embedding, and of a language model's own head."""

ROWS = "proj.weight"
"""Name of the rows of a decision head."""

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
    yield Tensor(EMBEDDING, (config.vocab_size, config.embed), ("embedding",), _copy)
    yield Tensor("model.norm.weight", (config.embed,), ("norm",), _copy)
    if not config.tied:
        name = "score.weight" if config.family.classifies else HEAD
        yield Tensor(name, (config.head_rows, config.embed), ("head",), _copy)
    if config.family.of_tokens:
        yield Tensor("score.bias", (config.head_rows,), ("head_bias",), _copy)
    if config.decision is not None:
        yield Tensor(ROWS, (config.decision.count, config.embed), ("decision_head",), _copy)
        if config.decision.has_bias:
            yield Tensor("proj.bias", (config.decision.count,), ("decision_bias",), _copy)
    counts = {"layers": 0, "recurrent": 0}
    for layer, row in enumerate(config.layers):
        stack = "layers" if row.recurrence is None else "recurrent"
        recurrence = row.recurrence
        first = (
            _attention(config, spread) if recurrence is None else _recurrence(config.embed, recurrence, tensor_parallel)
        )
        for name, shape, target, store in (*first, *_mlp(config)):
            yield Tensor(f"model.layers.{layer}.{name}", shape, (stack, target), store, counts[stack])
        counts[stack] += 1


_Part = tuple[str, tuple[int, ...], str, Store]
"""Of a layer: name and shape of a tensor, name of the parameter, and how it is stored there."""


def _attention(config: ModelConfig, spread: HeadShape) -> Iterator[_Part]:
    embed, heads = config.embed, config.attention
    q, kv = heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim
    is_gated = config.family.gates_attention
    for projection, width in (("q", q), ("k", kv), ("v", kv)):
        store = _queries(heads, spread) if projection == "q" else _keys_or_values(heads, spread, projection)
        if projection != "v" and config.rotated < heads.head_dim:
            store = _reordered(config.rotated, heads.head_dim, store)
        if projection == "q" and is_gated:
            width, store = 2 * width, _one_of_two(0, heads.heads, store)
        yield f"self_attn.{projection}_proj.weight", (width, embed), "qkv", store
        if config.qkv_bias:
            yield f"self_attn.{projection}_proj.bias", (width,), "qkv_bias", store
    if is_gated:
        gate = _one_of_two(1, heads.heads, _gates(heads, spread))
        yield "self_attn.q_proj.weight", (2 * q, embed), "attention_gate", gate
    if config.family.qk_norm:
        is_partial = config.rotated < heads.head_dim
        store = _reordered(config.rotated, heads.head_dim, _copy) if is_partial else _copy
        yield "self_attn.q_norm.weight", (heads.head_dim,), "q_norm", store
        yield "self_attn.k_norm.weight", (heads.head_dim,), "k_norm", store
    yield "self_attn.o_proj.weight", (embed, q), "out", _output(heads, spread)
    if config.attention_bias:
        yield "self_attn.o_proj.bias", (embed,), "out_bias", _copy
    yield "input_layernorm.weight", (embed,), "attention_norm", _copy


def _recurrence(embed: int, shape: RecurrentShape, devices: int) -> Iterator[_Part]:
    heads, channels, values = shape.value_heads, shape.channels, shape.value_heads * shape.value_dim
    keys = shape.key_heads * shape.key_dim
    parts = keys, keys, values  # queries are as wide as keys
    yield "linear_attn.in_proj_qkv.weight", (channels, embed), "qkvz", _columns(0, parts, devices)
    yield "linear_attn.in_proj_z.weight", (values, embed), "qkvz", _columns(channels // devices, (values,), devices)
    yield "linear_attn.in_proj_a.weight", (heads, embed), "rates", _columns(0, (heads,))
    yield "linear_attn.in_proj_b.weight", (heads, embed), "rates", _columns(heads, (heads,))
    yield "linear_attn.conv1d.weight", (channels, 1, shape.taps), "convolution", _channels(parts, devices)
    yield "linear_attn.A_log", (heads,), "decay_log", _copy
    yield "linear_attn.dt_bias", (heads,), "decay_bias", _copy
    yield "linear_attn.norm.weight", (shape.value_dim,), "state_norm", _copy
    yield "linear_attn.out_proj.weight", (embed, values), "out", _transposed
    yield "input_layernorm.weight", (embed,), "recurrence_norm", _copy


def _mlp(config: ModelConfig) -> Iterator[_Part]:
    embed, mlp = config.embed, config.mlp
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


def _by_device(stored: np.ndarray, parts: Sequence[int], devices: int) -> np.ndarray:
    """Cut each of several parts of the rows over devices; return the rows by device, `[devices, rows, ...]`."""
    split = np.split(stored, np.cumsum(parts)[:-1])
    return np.concatenate([part.reshape(devices, -1, *stored.shape[1:]) for part in split], axis=1)


def _columns(begin: int, parts: Sequence[int], devices: int = 1) -> Store:
    """Put rows, which have several parts, among the columns of every device, from its column `begin` on."""

    def store(target: np.ndarray, stored: np.ndarray) -> None:
        rows = _by_device(stored, parts, devices)
        columns = target.reshape(len(target), devices, -1)
        columns[:, :, begin : begin + rows.shape[1]] = np.moveaxis(rows, 2, 0)

    return store


def _channels(parts: Sequence[int], devices: int) -> Store:
    """Put channels in the order of the columns that they come from."""

    def store(target: np.ndarray, stored: np.ndarray) -> None:
        target[...] = _by_device(stored, parts, devices).reshape(target.shape)

    return store


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


def _gates(own: HeadShape, spread: HeadShape) -> Store:
    """Put the gates of heads in the order of the rows of `_output`, as columns."""

    def store(target: np.ndarray, stored: np.ndarray) -> None:
        heads = _spread(stored.reshape(own.heads, own.head_dim, -1), own, spread)
        target[...] = heads.reshape(target.shape[::-1]).T

    return store


def _one_of_two(index: int, heads: int, store: Store) -> Store:
    """Take one of two parts of every head, which lie side by side."""

    def store_part(target: np.ndarray, stored: np.ndarray) -> None:
        parts = stored.reshape(heads, 2, -1, *stored.shape[1:])
        store(target, parts[:, index].reshape(-1, *stored.shape[1:]))

    return store_part


def _reordered(rotated: int, head_dim: int, store: Store) -> Store:
    """Take the elements of every head in the order of `_halves_of_rotated`, made once sizes are known to fit."""

    def store_reordered(target: np.ndarray, stored: np.ndarray) -> None:
        heads = stored.reshape(-1, head_dim, *stored.shape[1:])
        store(target, heads[:, _halves_of_rotated(rotated, head_dim)].reshape(stored.shape))

    return store_reordered


def _halves_of_rotated(rotated: int, head_dim: int) -> np.ndarray:
    """Return the order in which the first elements, which are rotated, begin both halves of a head.

    Then RoPE over the whole head rotates the pairs that it would rotate among them, as it takes element i of both
    halves together, and others by no angle. Products of queries and keys do not depend on the order that both have.
    """
    first, second = np.split(np.arange(rotated), 2)
    third, fourth = np.split(np.arange(rotated, head_dim), 2)
    return np.concatenate([first, third, second, fourth])


def _output(own: HeadShape, spread: HeadShape) -> Store:
    def store(target: np.ndarray, stored: np.ndarray) -> None:
        heads = _spread(stored.T.reshape(own.heads, own.head_dim, -1), own, spread)
        target[...] = heads.reshape(target.shape)

    return store


def _half(index: int) -> Store:
    def store(target: np.ndarray, stored: np.ndarray) -> None:
        target[index] = stored.T

    return store
