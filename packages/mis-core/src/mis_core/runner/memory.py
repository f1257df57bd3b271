"""How much of a device's memory the KV cache and a step get, and what lies there."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError
from mis_core.models.config import ModelConfig
from mis_core.models.layers import kept_elements
from mis_core.models.parallel import TENSOR, backend_for
from mis_core.scheduler.algorithm import largest_safe_budget
from mis_core.scheduler.plan import LONGEST_ITEM, PAGE_SIZE, longest_item
from mis_core.scheduler.recurrence import STATES_AT_ONCE
from mis_kernels import RecurrentStates
from mis_kernels.backends.reference.dense import DENSE_BYTES

CPU_CACHE_TOKENS = 32_768
CPU_BUDGET = 2048
BUDGETS = [LONGEST_ITEM, 2048, 4096]

CPU_SLOTS = 32
LEAST_SLOTS = 2 * STATES_AT_ONCE + 2  # scores leave room for a sequence, and sequences for scores
MOST_SLOTS = 1024
STATE_SHARE = 0.1  # of the memory that is left by weights


@dataclass(frozen=True, slots=True)
class Resident:
    """An array that stays on the devices: its shape as a whole, its type, and its bytes on all devices together."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int

    @classmethod
    def of(cls, array: Array) -> "Resident":
        """Describe an array, cut over devices or copied to each."""
        part = math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
        return cls(array.shape, array.dtype.name, part * len(array.sharding.device_set))


def step_bytes_per_token(config: ModelConfig, item_bytes: int, devices: int) -> int:
    """Return the temporary bytes of a step per new token on each of `devices`, rounded up generously.

    What is alive at once: gate and up products in float32 and their activation, the packed projections
    in float32 with their normed copies, and a few rows of hidden states. Of layers with attention and recurrent ones,
    those with more are counted.
    """
    gates = config.attention.heads if config.family.gates_attention else 0
    projected = (config.attention.heads + gates + 2 * config.attention.kv_heads) * config.attention.head_dim
    if (recurrence := config.recurrence) is not None:
        values = recurrence.value_heads * recurrence.value_dim  # of the gate, and of the output
        projected = max(projected, recurrence.channels + 2 * values)
    divided = (2 * config.mlp * 4 + config.mlp * item_bytes) + 2 * projected * (4 + item_bytes)
    return 2 * divided // devices + 8 * config.embed * 4


def free_bytes(fraction: float) -> float | None:
    """Return the memory left on the fullest device within a fraction of its whole; None on CPUs."""
    statistics = [device.memory_stats() for device in jax.local_devices()]
    known = [each for each in statistics if each and "bytes_limit" in each]
    if jax.default_backend() == "cpu" or not known:
        return None
    return min(fraction * each["bytes_limit"] - each["bytes_in_use"] for each in known)


def token_budget(engine: EngineConfig, config: ModelConfig, mesh: Mesh) -> int:
    """Return the most new tokens of a step on each device; weights must be loaded."""
    if engine.chunked_prefill_size is not None:
        return engine.chunked_prefill_size
    free = free_bytes(1.0)
    if free is None:
        return CPU_BUDGET
    per_token = step_bytes_per_token(config, jnp.dtype(engine.dtype).itemsize, mesh.shape[TENSOR])
    return largest_safe_budget(BUDGETS, per_token, free / 4)


def longest_whole_item(engine: EngineConfig) -> int:
    """Return the longest item, in tokens, that a step takes whole: by options alone, since an item's bits depend on it.

    A device with little memory has smaller steps, of which such an item may take all.
    """
    usual = CPU_BUDGET if jax.default_backend() == "cpu" else BUDGETS[-1]
    return longest_item(engine.chunked_prefill_size or usual)


def state_bytes(config: ModelConfig, devices: int) -> int:
    """Return the bytes of a slot on each of `devices`: the states of all recurrent layers after one prefix."""
    if config.recurrence is None:
        return 0
    shape = config.recurrence.on_device(devices)
    slot = jax.eval_shape(lambda: RecurrentStates.zeros(1, shape))
    return config.recurrent_layers * sum(math.prod(x.shape) * x.dtype.itemsize for x in slot)


def state_slots(engine: EngineConfig, config: ModelConfig) -> int:
    """Return how many slots for states each device has; weights must be loaded. 0: no layer is recurrent."""
    if config.recurrence is None:
        return 0
    free = free_bytes(engine.mem_fraction_static)
    return CPU_SLOTS if free is None else slots_within(free, config, engine.tp_size)


def slots_within(free: float, config: ModelConfig, devices: int) -> int:
    """Return how many slots for states a device gets of the bytes that weights leave. 0: no layer is recurrent.

    Args:
        free: Bytes that weights leave on it.
        config: The model's shape.
        devices: How many share a state.
    """
    if config.recurrence is None:
        return 0
    return min(max(int(STATE_SHARE * free / state_bytes(config, devices)), LEAST_SLOTS), MOST_SLOTS)


def cache_pages(engine: EngineConfig, config: ModelConfig, mesh: Mesh, budget: int, slots: int = 0) -> tuple[int, int]:
    """Size the KV cache; weights must be loaded.

    Args:
        engine: Options.
        config: The model's shape, as spread over the mesh.
        mesh: Devices.
        budget: Most new tokens of a step.
        slots: Slots for states of recurrent layers, which are allocated beside it.

    Returns:
        Pages of the cache on each device along `DATA`, and the context length in tokens: the one asked for, or else
        the model's own, or what the cache has room for.

    Raises:
        ConfigError: a context of the length asked for does not fit.
    """
    longest = config.max_positions
    item_bytes = jnp.dtype(engine.dtype).itemsize
    tokens = engine.max_total_tokens
    if tokens is None:
        free = free_bytes(engine.mem_fraction_static)
        if free is None:
            tokens = max(CPU_CACHE_TOKENS, (2 if slots else 1) * (engine.context_length or 0) + 2 * PAGE_SIZE)
        else:
            step = budget * step_bytes_per_token(config, item_bytes, mesh.shape[TENSOR])
            step += DENSE_BYTES if engine.mask_impl == "dense" else 0
            step += slots * state_bytes(config, mesh.shape[TENSOR])
            head_dim = backend_for(config, jnp.dtype(engine.dtype), mesh).cache_head_dim
            per_token = kept_elements(config.layers, head_dim) * item_bytes // mesh.shape[TENSOR]
            tokens = int((free - step) // per_token)
    pages = tokens // PAGE_SIZE
    room = (pages - 1) * PAGE_SIZE  # a long item's pages repeat up to one page of its query
    if slots:
        room //= 2  # or all of it, where it departs from its query before any state
    if room < (engine.context_length or PAGE_SIZE):
        raise ConfigError(
            f"the KV cache has room for {max(tokens, 0)} tokens, too few for a context of "
            f"{engine.context_length or PAGE_SIZE}; lower context_length, or raise max_total_tokens or "
            "mem_fraction_static.",
            "max_total_tokens",
        )
    return pages, engine.context_length or min(longest, room)
