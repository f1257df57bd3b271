"""Decode steps of few rows: the bits of a row are those that it has in a step of 64, in every family."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mis_core.models.config import read_model_config
from mis_core.models.parallel import make_mesh
from mis_core.models.weights import load_decoder
from mis_core.runner.runner import Runner
from mis_core.runner.step import Cache
from mis_core.scheduler.plan import SLOTS, ShardPlan, StepPlan, StepShape
from mis_core.scheduler.recurrence import PlannedChunks
from mis_kernels.backends.native import library
from mis_testing import tiny_checkpoint
from mis_testing.bits import assert_bits_equal

PAGES = 2 * SLOTS
SHAPE = StepShape(tokens=256, scored=256, contexts=8, pages_per_context=2, longest_item=256)
FEW = {"bfloat16": (1, 8, 32), "float32": (1, 2, 4, 8, 16, 32)}


def plan(rows: int) -> StepPlan:
    """A row for each place from the last on, each behind a context of another length."""
    slots = (SLOTS - 1 - np.arange(rows)).astype(np.int32)
    table = np.zeros((SLOTS, 2), np.int32)
    table[:rows] = 2 * slots[:, None] + np.arange(2)
    lens, numbers = (slots * 2).astype(np.int32), np.arange(rows, dtype=np.int32)
    ones = np.ones(rows, np.int32)
    chunks = PlannedChunks.of_next_tokens(slots)
    shard = ShardPlan(slots, lens, numbers, ones, numbers, lens, ones.astype(bool), table, numbers, chunks)
    return StepPlan((shard,), (), is_decoding=True)


def runner(path: Path, quantization: str, dtype: str) -> Runner:
    mesh = make_mesh(1, 1)
    config = read_model_config(path)
    decoder = load_decoder(path, config, jnp.dtype(dtype), mesh, False, quantization)
    made = Runner(decoder, mesh, SHAPE, PAGES, slots=0 if config.recurrence is None else SLOTS)
    random = np.random.default_rng(0)
    keys, _ = made._cache.key_values
    caches = [jnp.asarray(random.standard_normal(keys.shape), dtype) for _ in range(2)]
    keys, values = (jax.lax.bitcast_convert_type(cache, keys.dtype) for cache in caches)
    states = jax.tree.map(lambda x: jnp.asarray(random.standard_normal(x.shape), x.dtype), made._cache.states)
    made._cache = Cache((keys, values), states)
    made._slots.last = jnp.asarray(random.integers(0, 300, SLOTS), jnp.int32)
    return made


IN_BFLOAT16 = pytest.mark.skipif(library.why_not() is not None, reason="needs AVX-512 in bfloat16")
IN_FLOAT32 = pytest.mark.skipif(library.why_not_float32() is not None, reason="needs AVX2 and the native library")


@pytest.mark.parametrize(
    ("family", "quantization", "dtype", "sizes"),
    [
        pytest.param("qwen3", "none", "bfloat16", FEW["bfloat16"], marks=IN_BFLOAT16),
        pytest.param("qwen2", "none", "bfloat16", (8,), marks=[IN_BFLOAT16, pytest.mark.full]),
        pytest.param("llama", "none", "bfloat16", (8,), marks=[IN_BFLOAT16, pytest.mark.full]),
        pytest.param("qwen3", "int8", "bfloat16", (1, 8), marks=IN_BFLOAT16),
        pytest.param("qwen3_5", "none", "bfloat16", (1, 8), marks=IN_BFLOAT16),
        pytest.param("qwen3", "none", "float32", FEW["float32"], marks=IN_FLOAT32),
        pytest.param("qwen3", "int8", "float32", (1, 8), marks=[IN_FLOAT32, pytest.mark.full]),
        pytest.param("qwen2", "none", "float32", (8,), marks=[IN_FLOAT32, pytest.mark.full]),
        pytest.param("qwen3_5", "none", "float32", (1, 8), marks=[IN_FLOAT32, pytest.mark.full]),
        pytest.param("gemma3", "none", "float32", (1, 8), marks=[IN_FLOAT32, pytest.mark.full]),
    ],
)
def test_a_row_has_the_bits_that_it_has_among_64(
    family: str, quantization: str, dtype: str, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    made = runner(tiny_checkpoint(tmp_path / family, family, head_dim=32), quantization, dtype)
    assert made._decode_sizes == [*FEW[dtype], SLOTS]
    states = jax.tree.map(jnp.copy, made._cache.states)  # which a step changes

    def hidden(rows: int, size: int) -> np.ndarray:
        made._cache = made._cache._replace(states=jax.tree.map(jnp.copy, states))
        return np.asarray(made._hidden(plan(rows), size), np.float32)

    whole = hidden(SLOTS, SLOTS)[:SLOTS]
    assert len(np.unique(whole, axis=0)) == SLOTS
    for size in sizes:
        for rows in {size, size - size // 4}:  # full, and some that are padded to it
            assert made._size(plan(rows)) == size
            assert_bits_equal(hidden(rows, size)[:rows], whole[:rows])
