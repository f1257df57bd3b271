"""Runs step plans: owns the weights, the KV cache and the compiled shapes.

The only place that turns a host `StepPlan` into device arrays. Steps are padded to a few bucket
sizes, compiled once each. Nothing here waits for the device but `Running.wait`.
"""

import dataclasses
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from tqdm import tqdm

from mis_core.models.decoder import Decoder
from mis_core.models.parallel import DATA, TENSOR
from mis_core.runner.arrays import step_arrays
from mis_core.runner.buckets import PAIRS, SMALLEST_STEP, full_step, token_buckets
from mis_core.runner.head import label_logits, log_sum_exp
from mis_core.runner.memory import Resident
from mis_core.runner.step import KeyValueCache, make_step
from mis_core.scheduler.plan import PAGE_SIZE, StepPlan, StepShape


@dataclass(slots=True, eq=False)
class Running:
    """A step under way on the device.

    Attributes:
        plan: The step.
        logits: Values of its (row, label) pairs, in parts of `PAIRS`.
        normalisers: Log-sum-exp of the rows that want one, in parts of the backend's `normalised_rows`.
    """

    plan: StepPlan
    logits: list[Array]
    normalisers: list[Array]

    def wait(self) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
        """Wait for the device; return logits `[items, labels]` and normalisers `[items]` of each reading."""
        with jax.profiler.TraceAnnotation("mis.wait"):
            jax.block_until_ready((self.logits, self.normalisers))
        with jax.profiler.TraceAnnotation("mis.read"):
            pairs = np.concatenate([np.zeros(0, np.float32), *map(np.asarray, self.logits)])
            rows = np.concatenate([np.zeros(0, np.float32), *map(np.asarray, self.normalisers)])
        logits: list[np.ndarray] = []
        normalisers: list[np.ndarray | None] = []
        pair = row = 0
        for reading in self.plan.readings:
            shape = reading.label_ids.shape
            logits.append(pairs[pair : pair + shape[0] * shape[1]].reshape(shape))
            pair += shape[0] * shape[1]
            normalisers.append(rows[row : row + shape[0]] if reading.normalise else None)
            row += shape[0] if reading.normalise else 0
        return logits, normalisers


class Runner:
    """Executes steps of one model on a mesh of devices."""

    def __init__(self, decoder: Decoder, mesh: Mesh, shape: StepShape, pages: int) -> None:
        """Allocate the cache.

        Args:
            decoder: Weights, cut over the mesh.
            mesh: Devices with axes `DATA` and `TENSOR`.
            shape: Room of a step; the decoder's backend says the alignment.
            pages: Pages of the KV cache, each of `PAGE_SIZE` tokens in every layer.
        """
        self.mesh, self.shape, self.pages = mesh, shape, pages
        self._graph, self._weights = nnx.split(decoder)
        config, self._backend = decoder.config, decoder.backend
        self._cache_shape = (config.kv_heads, config.layers * pages, PAGE_SIZE, self._backend.cache_head_dim)
        self._cache = self._empty_cache()
        steps = {
            dense: make_step(self._graph, self._weights, mesh, pages, self._backend, dense_mask=dense)
            for dense in (False, True)
        }
        self._steps = {dense: jax.jit(step, donate_argnums=1) for dense, step in steps.items()}
        self._label_logits = jax.jit(lambda weights, *arrays: label_logits(nnx.merge(self._graph, weights), *arrays))
        self._log_sum_exp = jax.jit(
            lambda weights, *arrays: log_sum_exp(nnx.merge(self._graph, weights), mesh, *arrays)
        )

    def _empty_cache(self) -> KeyValueCache:
        sharding = NamedSharding(self.mesh, P(TENSOR))
        zeros = jax.jit(lambda: jnp.zeros(self._cache_shape, self._backend.storage_dtype), out_shardings=sharding)
        return zeros(), zeros()

    def reset(self) -> None:
        """Replace the cache by an empty one, after an error that may have lost it."""
        self._cache = self._empty_cache()

    def warm_up(self, *, dense_mask: bool, progress: bool = True) -> dict[str, float]:
        """Compile every shape, so that no request waits for the compiler.

        Args:
            dense_mask: Also compile the steps with materialised masks.
            progress: Show a progress bar on standard error.

        Returns:
            Seconds by shape.
        """
        shapes = [
            (size, dense) for dense in (False, True)[: 1 + dense_mask] for size in token_buckets(self.shape.tokens)
        ]
        seconds = {}
        for size, dense in tqdm(shapes, desc="Compiling steps", unit="shape", disable=not progress):
            began = time.perf_counter()
            plan = full_step(dataclasses.replace(self.shape, tokens=size), context=0, item=SMALLEST_STEP)
            hidden = self._hidden(dataclasses.replace(plan, dense_mask=dense))
            self._pairs(hidden, np.zeros(1, np.int32), np.zeros(1, np.int32))[0].block_until_ready()
            self._normalised(hidden, np.zeros(1, np.int32))[0].block_until_ready()
            seconds[f"{size} tokens{', dense mask' if dense else ''}"] = round(time.perf_counter() - began, 3)
        return seconds

    def memory(self) -> dict[str, Resident]:
        """Return what stays on the devices: the weights by their path in the model, and the cache."""
        weights = {"/".join(map(str, path)): leaf.get_value() for path, leaf in nnx.to_flat_state(self._weights)}
        arrays = {**weights, "cache/keys": self._cache[0], "cache/values": self._cache[1]}
        return {name: Resident.of(array) for name, value in arrays.items() for array in jax.tree.leaves(value)}

    def run(self, plan: StepPlan) -> Running:
        """Start one step, and the reading of its scored rows."""
        hidden = self._hidden(plan)
        if not plan.readings:
            return Running(plan, [], [])
        scored = hidden.shape[0] // len(plan.shards)
        rows = [r.shard * scored + r.first + np.arange(len(r.items), dtype=np.int32) for r in plan.readings]
        pair_row = [np.repeat(row, r.label_ids.shape[1]) for row, r in zip(rows, plan.readings, strict=True)]
        pair_label = [np.maximum(r.label_ids.reshape(-1), 0) for r in plan.readings]  # -1 fills; nobody reads it
        logits = self._pairs(hidden, np.concatenate(pair_row), np.concatenate(pair_label))
        wanted = [row for row, reading in zip(rows, plan.readings, strict=True) if reading.normalise]
        return Running(plan, logits, self._normalised(hidden, np.concatenate(wanted)) if wanted else [])

    def size_of(self, plan: StepPlan) -> int:
        """Return the tokens that a step is padded to, on all devices together."""
        return self._bucket(plan) * len(plan.shards)

    def _bucket(self, plan: StepPlan) -> int:
        return next(bucket for bucket in token_buckets(self.shape.tokens) if bucket >= plan.rows)

    def _hidden(self, plan: StepPlan) -> Array:
        size = self._bucket(plan)
        arrays = step_arrays(self._backend, self.shape, plan, size, min(size, self.shape.scored))
        arrays = jax.device_put(arrays, NamedSharding(self.mesh, P(DATA)))
        hidden, self._cache = self._steps[plan.dense_mask](self._weights, self._cache, *arrays)
        return hidden

    def _pairs(self, hidden: Array, rows: np.ndarray, labels: np.ndarray) -> list[Array]:
        parts = range(0, len(rows), PAIRS)
        padded = [[_padded(array[begin : begin + PAIRS], PAIRS) for array in (rows, labels)] for begin in parts]
        return [self._label_logits(self._weights, hidden, *arrays) for arrays in padded]

    def _normalised(self, hidden: Array, rows: np.ndarray) -> list[Array]:
        size = self._backend.normalised_rows * self.mesh.shape[DATA]  # the devices along `DATA` share them
        parts = [_padded(rows[begin : begin + size], size) for begin in range(0, len(rows), size)]
        return [self._log_sum_exp(self._weights, hidden, part) for part in parts]


def _padded(array: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([array, np.zeros(size - len(array), np.int32)]).astype(np.int32)
