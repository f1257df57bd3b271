"""How a decoder is cut over devices: layers by KV head, key head and MLP column, tables by embedding column.

The scheme is that of Megatron-LM (arXiv 1909.08053): the first product of a pair is cut by column, the
second by row, and one sum over the devices follows it. A KV head stays with its query heads, so attention
needs no communication. With fewer KV heads than devices, each KV head is copied and its query heads are
divided among the copies, padded with heads of zeros where they do not divide; so every device has one.

A recurrent layer is cut by key head, which stays with its value heads and with what they remember.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from mis_core.errors import ConfigError
from mis_core.models.config import ModelConfig
from mis_kernels.backends import Backend, choose
from mis_kernels.weights import StoredWeight, Weight, weight_of

DATA = "data"
"""Mesh axis that new tokens are cut over; weights and cache are the same along it."""

TENSOR = "tensor"
"""Mesh axis that weights and cache are cut over."""

_LAYER_AXES: dict[str, P] = {
    "qkv": P(None, None, TENSOR),
    "qkv_bias": P(None, TENSOR),
    "out": P(None, TENSOR),
    "attention_gate": P(None, None, TENSOR),
    "qkvz": P(None, None, TENSOR),
    "convolution": P(None, TENSOR),
    "gate_up": P(None, None, None, TENSOR),
    "gate_up_bias": P(None, None, TENSOR),
    "down": P(None, TENSOR),
}

PRODUCTS = ("qkv", "attention_gate", "qkvz", "rates", "out", "gate_up", "down")
"""Names of a layer's weights that products are made with."""


def partition(path: tuple[Any, ...]) -> P:
    """Return how the parameter at a path of the decoder is cut; layers are stacked along the first axis."""
    if path[0] in ("layers", "recurrent"):
        return _LAYER_AXES.get(path[1], P())
    return P(None, TENSOR) if path[0] in ("embedding", "head") else P()


def placement(path: tuple[Any, ...], weight: StoredWeight, mesh: Mesh, backend: Backend) -> Any:
    """Return how the parameter at a path of the decoder, as it is stored, lies on devices: a tree like it."""
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), weight_of(weight).partition(partition(path)))
    return backend.placement(weight, shardings) if path[-1] in PRODUCTS else shardings


def backend_for(config: ModelConfig, dtype: jnp.dtype, mesh: Mesh) -> Backend:
    """Return what computes a model on a mesh; the config's heads are spread over it."""
    return choose(config.attention.on_device(mesh.shape[TENSOR]), jnp.dtype(dtype).name)


def packs(config: ModelConfig, devices: int, backend: Backend) -> bool:
    """Whether every product of a layer is best made with packed weights; heads are spread over the devices."""
    heads, kv_heads = (n * config.attention.head_dim // devices for n in config.attention[:2])
    dimensions = [config.embed, heads, heads + 2 * kv_heads, config.mlp // devices]
    if config.recurrence is not None:
        recurrence = config.recurrence.on_device(devices)
        values = recurrence.value_heads * recurrence.value_dim
        dimensions += [values, recurrence.channels + values]
    return backend.packs(*dimensions, gate_bias=config.mlp_bias)


def few_rows(config: ModelConfig, devices: int, backend: Backend) -> tuple[int, ...]:
    """Return the sizes of steps, fewer rows than others have, that give a row the same bits; heads are spread."""
    return backend.few_rows if packs(config, devices, backend) else ()


def spread_heads(config: ModelConfig, devices: int) -> ModelConfig:
    """Return the shape with as many KV heads as devices need; the same shape if there are enough.

    Raises:
        ConfigError: the devices do not divide a dimension that is cut; names it.
    """
    sizes = {"hidden_size": config.embed, "intermediate_size": config.mlp}
    if config.recurrence is not None:
        sizes["linear_num_key_heads"] = config.recurrence.key_heads
    for name, size in sizes.items():
        if size % devices:
            raise ConfigError(f"tp_size {devices} does not divide the model's {name}, {size}.", "tp_size")
    try:
        layers = (dataclasses.replace(layer, heads=layer.heads.spread(devices)) for layer in config.layers)
        return dataclasses.replace(config, layers=tuple(layers))
    except ValueError:
        message = f"tp_size {devices} and the model's {config.attention.kv_heads} KV heads do not divide each other."
        raise ConfigError(message, "tp_size") from None


def add_product(residual: Array, x: Array, weight: Weight, bias: Array | None = None) -> Array:
    """Add the product with a weight that was cut by row to a residual; within a `shard_map` over `TENSOR`.

    The bias, which every device has whole, joins the residual: it must not be summed over the devices.
    """
    if bias is not None:
        residual = residual + bias
    if lax.axis_size(TENSOR) == 1:  # a sum of one part would still be a copy
        return weight.linear(x, residual)
    return residual + whole_product(x, weight)


def whole_product(x: Array, weight: Weight) -> Array:
    """Return the product with a weight that was cut by row; within a `shard_map` over `TENSOR`."""
    product = weight.linear(x)
    return product if lax.axis_size(TENSOR) == 1 else lax.psum(product, TENSOR)


def gather_columns(x: Array) -> Array:
    """Put the columns that each device has side by side; within a `shard_map` over `TENSOR`."""
    return x if lax.axis_size(TENSOR) == 1 else lax.all_gather(x, TENSOR, axis=1, tiled=True)


def own_columns(x: Array) -> Array:
    """Return a device's share of columns that every device has; within a `shard_map` over `TENSOR`."""
    if lax.axis_size(TENSOR) == 1:
        return x
    count = x.shape[1] // lax.axis_size(TENSOR)
    return lax.dynamic_slice_in_dim(x, lax.axis_index(TENSOR) * count, count, axis=1)


def make_mesh(data: int, tensor: int) -> Mesh:
    """Return a mesh of the first `data * tensor` devices.

    Raises:
        ConfigError: there are not so many.
    """
    devices = jax.devices()
    if len(devices) < data * tensor:
        raise ConfigError(
            f"dp_size {data} x tp_size {tensor} needs {data * tensor} devices; this machine has {len(devices)}.",
            "tp_size",
        )
    return Mesh(np.array(devices[: data * tensor]).reshape(data, tensor), (DATA, TENSOR))
