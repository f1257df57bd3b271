"""The engine's programs compiled ahead of time, from shapes alone: no weights, no cache, no device."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from mis_core.aot.roofline import ITEM_BYTES, weight_bytes
from mis_core.models.config import ModelConfig
from mis_core.models.decoder import Decoder
from mis_core.models.layers import kept_elements, windows_of
from mis_core.models.parallel import DATA, PRODUCTS, TENSOR, backend_for, partition, placement, spread_heads
from mis_core.runner.arrays import step_arrays
from mis_core.runner.buckets import PAIRS
from mis_core.runner.memory import slots_within, state_bytes
from mis_core.runner.reads import make_reads
from mis_core.runner.sampling import SAMPLED_ROWS, DrawArrays
from mis_core.runner.step import BY_PAGE, BY_SLOT, Cache, cache_shape, decode, make_step
from mis_core.scheduler.plan import PAGE_SIZE, SLOTS, StepPlan, StepShape
from mis_kernels import RecurrentStates
from mis_kernels.aot.chips import CHIPS
from mis_kernels.aot.targets import Topology
from mis_kernels.aot.targets import mesh as mesh_of
from mis_kernels.backends import Backend
from mis_kernels.quantized import QuantizedWeight, block_of

_MOST_PAGES = 2048
_USED = 0.75  # of a device's memory, by weights and cache; temporaries need the rest


def compile_step(
    config: ModelConfig,
    mesh: Mesh,
    plan: StepPlan,
    shape: StepShape,
    *,
    dtype: str = "bfloat16",
    quantization: str = "none",
    pages: int = 1024,
    slots: int = 32,
    backend: Backend | None = None,
) -> jax.stages.Compiled:
    """Compile the step that a plan needs, as the runner would on these devices.

    Choose the platform with `mis_kernels.target.compiling_for` where the mesh is of devices that are not here.

    Args:
        config: The model's shape.
        mesh: Devices with axes `DATA` and `TENSOR`, which may exist for the compiler only.
        plan: What the step computes; its tile lists decide nothing but the arrays' sizes.
        shape: Room of a step of this kind; `shape.tokens` is the size that is compiled, but of decode steps, which have
            one.
        dtype: Type of weights and activations.
        quantization: `int8`: of the layers' products; `none`.
        pages: Pages of the KV cache on each device along `DATA`.
        slots: Slots for states there, if layers are recurrent.
        backend: Who computes; default: the first that fits, as the runner chooses.
    """
    spread, backend, graph, abstract = _abstract_model(config, mesh, dtype, quantization, backend)

    def on_mesh(shape: tuple[int, ...], dtype: jnp.dtype, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    by_page: Any = on_mesh(cache_shape(spread, mesh.shape[DATA], pages, backend), backend.storage_dtype, BY_PAGE)
    states = None
    if config.recurrence is not None:
        on_all = config.recurrent_layers * slots * mesh.shape[DATA]
        empty = jax.eval_shape(partial(RecurrentStates.zeros, on_all, config.recurrence))
        states = jax.tree.map(lambda x, spec: on_mesh(x.shape, x.dtype, spec), empty, BY_SLOT)
    cache = Cache((by_page, by_page), states)  # of shapes
    step = make_step(graph, abstract, mesh, pages, backend, slots=0 if states is None else slots)
    tokens, scored = (SLOTS, SLOTS) if plan.is_decoding else (shape.tokens, min(shape.scored, shape.tokens))
    is_recurrent = states is not None
    arrays = step_arrays(backend, shape, plan, tokens, scored, windows_of(config.layers), is_recurrent=is_recurrent)
    arrays = jax.tree.map(lambda x: on_mesh(x.shape, x.dtype, P(DATA)), arrays)
    if plan.is_decoding:
        last = on_mesh((SLOTS * mesh.shape[DATA],), jnp.dtype("int32"), P(DATA))
        decoding = jax.jit(partial(decode, step), donate_argnums=1)
        return decoding.lower(abstract, cache, arrays, last).compile()
    return jax.jit(step, donate_argnums=1).lower(abstract, cache, arrays).compile()


def compile_head(
    config: ModelConfig, mesh: Mesh, shape: StepShape, *, dtype: str = "bfloat16"
) -> tuple[jax.stages.Compiled, jax.stages.Compiled]:
    """Compile what reads a step's scored rows, as the runner would: label logits, and the log-sum-exp.

    Args:
        config: The model's shape.
        mesh: As in `compile_step`.
        shape: Room of a step.
        dtype: Type of weights and activations.

    Returns:
        The programs for `PAIRS` pairs and for as many rows as one call normalises, on each device along `DATA`.
    """
    _, backend, graph, abstract = _abstract_model(config, mesh, dtype)

    def ints(size: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size,), jnp.int32, sharding=NamedSharding(mesh, P()))

    scored = mesh.shape[DATA] * min(shape.scored, shape.tokens)
    hidden = jax.ShapeDtypeStruct((scored, config.embed), jnp.dtype(dtype), sharding=NamedSharding(mesh, P(DATA)))
    reads, pairs = make_reads(graph, abstract, mesh), ints(PAIRS * mesh.shape[DATA])
    return (
        reads.label_logits.lower(abstract, hidden, pairs, pairs).compile(),
        reads.log_sum_exp.lower(abstract, hidden, ints(backend.normalised_rows * mesh.shape[DATA])).compile(),
    )


def compile_vocabulary_reads(
    config: ModelConfig, mesh: Mesh, *, dtype: str = "bfloat16"
) -> tuple[jax.stages.Compiled, ...]:
    """Compile what finds the most probable tokens of rows, what keeps logits, and what draws, as the runner would.

    Args:
        config: The model's shape.
        mesh: As in `compile_step`.
        dtype: Type of weights and activations.
    """
    _, backend, graph, abstract = _abstract_model(config, mesh, dtype)

    def rows(count: int) -> jax.ShapeDtypeStruct:
        size = (count * mesh.shape[DATA], config.embed)
        return jax.ShapeDtypeStruct(size, jnp.dtype(dtype), sharding=NamedSharding(mesh, P(DATA)))

    how = DrawArrays.of([], 0, SAMPLED_ROWS * mesh.shape[DATA])
    devices, on_each = mesh.shape[DATA], NamedSharding(mesh, P(DATA))
    shapes = (devices,), (SLOTS * devices,), (SLOTS * devices, config.head_rows)
    count, last, counts = (jax.ShapeDtypeStruct(shape, jnp.int32, sharding=on_each) for shape in shapes)
    logits = jax.ShapeDtypeStruct((SAMPLED_ROWS * devices, config.head_rows), jnp.float32, sharding=on_each)
    reads = make_reads(graph, abstract, mesh)
    return (
        reads.most_probable.lower(abstract, rows(backend.normalised_rows)).compile(),
        *(held.lower(abstract, rows(SAMPLED_ROWS), logits).compile() for held in reads.hold_logits.values()),
        reads.next_tokens.lower(logits, count, how, last, counts).compile(),
    )


def cache_pages(config: ModelConfig, chip: str, backend: Backend, tensor: int) -> int:
    """Return the pages of a cache as a server has it on each device, up to `_MOST_PAGES`: small ones would fit VMEM."""
    spread = spread_heads(config, tensor)
    room = _room(config, chip, tensor) - cache_slots(config, chip, tensor) * state_bytes(config, tensor)
    page = ITEM_BYTES * PAGE_SIZE * kept_elements(spread.layers, backend.cache_head_dim) // tensor
    return min(int(room / page), _MOST_PAGES)


def cache_slots(config: ModelConfig, chip: str, tensor: int) -> int:
    """Return the slots for states of recurrent layers that a server has on each device."""
    return slots_within(_room(config, chip, tensor), config, tensor)


def _room(config: ModelConfig, chip: str, tensor: int) -> float:
    return _USED * CHIPS[chip].memory - weight_bytes(config) / tensor


def topology_mesh(target: Topology, data: int, tensor: int) -> Mesh:
    """Return a mesh of the first `data * tensor` devices of a topology, which exist for the compiler only."""
    devices = np.array(mesh_of(target).devices).reshape(-1)[: data * tensor]
    return Mesh(devices.reshape(data, tensor), (DATA, TENSOR))


def _abstract_model(
    config: ModelConfig, mesh: Mesh, dtype: str, quantization: str = "none", backend: Backend | None = None
) -> tuple[ModelConfig, Backend, nnx.GraphDef, nnx.State]:
    """Return a model as the runner has it: its shape with heads spread, who computes, its graph and its state."""
    spread = spread_heads(config, mesh.shape[TENSOR])
    backend = backend or backend_for(spread, jnp.dtype(dtype), mesh)
    graph, weights = nnx.split(nnx.eval_shape(lambda: Decoder(spread, backend.storage_dtype, backend)))
    flat = nnx.to_flat_state(weights)

    def on_mesh(path: tuple, leaf: jax.ShapeDtypeStruct) -> Any:
        weight = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        if quantization != "none" and path[-1] in PRODUCTS:
            depth, columns = NamedSharding(mesh, partition(path)).shard_shape(leaf.shape)[-2:]
            values = np.broadcast_to(np.int8(0), leaf.shape)  # takes no memory
            scales = np.broadcast_to(np.float32(0), (*leaf.shape[:-2], leaf.shape[-1]))
            weight = backend.pack_quantized(QuantizedWeight(values, scales, block_of(depth)), depth, columns)
        return jax.tree.map(
            lambda each, sharding: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding),
            weight,
            placement(path, weight, mesh, backend),
        )

    return spread, backend, graph, nnx.from_flat_state({path: leaf.replace(on_mesh(path, leaf)) for path, leaf in flat})
