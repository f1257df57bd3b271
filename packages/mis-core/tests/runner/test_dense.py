"""Steps with dense masks take the memory that is counted for them, which follows what a request needs."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mis_core import Engine
from mis_core.errors import ConfigError, RequestError
from mis_core.models.config import read_model_config
from mis_core.models.parallel import make_mesh
from mis_core.models.weights import load_decoder
from mis_core.runner import dense
from mis_core.runner.arrays import step_arrays
from mis_core.runner.buckets import empty_dense_step, full_step
from mis_core.runner.dense import DenseMemory, context_buckets, with_short_contexts
from mis_core.runner.memory import step_bytes_per_token
from mis_core.runner.runner import Runner
from mis_core.scheduler.plan import PAGE_SIZE, StepPlan, StepShape
from mis_kernels.backends import choose
from mis_kernels.backends.reference.dense import DENSE_BYTES
from mis_kernels.heads import HEAD_SHAPES
from mis_testing import tiny_checkpoint
from mis_testing.compilations import count_compilations
from mis_testing.options import SMALL_ENGINE

SHAPE = StepShape(tokens=2048, scored=256, contexts=8, pages_per_context=511, longest_item=256)
"""A CPU's defaults for a model of 32,768 positions or more."""


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("dense") / "model")


def test_contexts_have_a_few_lengths() -> None:
    assert context_buckets(511) == [32, 128, 511]
    assert context_buckets(640) == [32, 128, 512, 640]
    assert context_buckets(32) == [32]
    assert context_buckets(2) == [2]


@pytest.mark.parametrize(("context", "pages"), [(0, 32), (2048, 32), (2049, 128), (8192, 128), (32_704, 511)])
def test_a_plan_has_room_for_its_longest_context_only(context: int, pages: int) -> None:
    plan = full_step(SHAPE, context=context, item=20)
    (shard,) = with_short_contexts(plan).shards
    assert shard.page_table.shape == (8, pages)
    np.testing.assert_array_equal(shard.page_table, plan.shards[0].page_table[:, :pages])


def test_a_querys_own_tokens_are_of_its_context() -> None:
    (shard,) = full_step(SHAPE, context=2048, item=64).shards
    paged = dataclasses.replace(shard, paged=np.ones(len(shard.lens), bool))
    assert with_short_contexts(StepPlan((paged,), ())).shards[0].page_table.shape == (8, 128)


@pytest.mark.parametrize("pages", [pytest.param(32, marks=pytest.mark.full), 511])
def test_a_step_takes_what_is_counted(path: Path, pages: int) -> None:
    mesh, config = make_mesh(1, 1), read_model_config(path)
    made = Runner(load_decoder(path, config, jnp.dtype("float32"), mesh, False, "none"), mesh, SHAPE, pages=600)
    shape = dataclasses.replace(SHAPE, pages_per_context=pages)
    arrays = step_arrays(made._backend, shape, empty_dense_step(SHAPE, pages), SHAPE.tokens, SHAPE.scored)
    leaves, tree = jax.tree.flatten(arrays)

    def step(weights, cache, *leaves):
        return made._steps[True](weights, cache, tree.unflatten(leaves))

    compiled = jax.jit(step, donate_argnums=1).lower(made._weights, made._cache, *leaves).compile()
    counted = DenseMemory(SHAPE, made._backend).bytes_for(pages * PAGE_SIZE)
    others = SHAPE.tokens * step_bytes_per_token(config, 4, 1)
    assert compiled.memory_analysis().temp_size_in_bytes <= counted + others
    assert counted <= DENSE_BYTES


@pytest.mark.parametrize(("tokens", "context"), [(2048, 32_704), (4096, 40_960)])
def test_the_published_shape_fits(tokens: int, context: int) -> None:
    shape = dataclasses.replace(SHAPE, tokens=tokens, pages_per_context=context // PAGE_SIZE)
    DenseMemory(shape, choose(HEAD_SHAPES["qwen3-0.6b"], "bfloat16", "xla")).check_longest()


def test_an_engine_whose_masks_are_too_large_is_refused(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(dense, "DENSE_BYTES", 1000)
    with pytest.raises(
        ConfigError, match=r"mask_impl dense takes [\d,]{5,} bytes for .*; lower context_length"
    ) as found:
        Engine.from_pretrained(path, **SMALL_ENGINE | {"mask_impl": "dense", "skip_warmup": False})
    assert found.value.option == "context_length"


def test_a_request_whose_masks_are_too_large_compiles_nothing(path: Path, monkeypatch) -> None:
    with Engine.from_pretrained(path, **SMALL_ENGINE) as engine:
        limit = engine._dense_memory.bytes_for(2048)
        monkeypatch.setattr(dense, "DENSE_BYTES", limit)
        with count_compilations() as compilations, pytest.raises(RequestError) as found:
            engine.score([1] * 2040, [[2] * 9], [7], mask_impl="dense")
        assert compilations.count == 0
        assert (found.value.code, found.value.param) == ("invalid_mask_impl", "mask_impl")
        assert f"for 2049 tokens of query and item, but at most {limit:,}" in str(found.value)
        assert engine.score([1] * 60, [[2] * 9], [7], mask_impl="dense").algorithm == "packed (dense mask)"


@pytest.mark.full
def test_nothing_compiles_after_a_warm_up_with_dense_masks(path: Path) -> None:
    options = {"mask_impl": "dense", "context_length": 2200, "skip_warmup": False}
    with Engine.from_pretrained(path, **SMALL_ENGINE | options) as engine, count_compilations() as compilations:
        for query in (10, 300, 2100):
            engine.score([1] * query, [[2] * 9] * 30, [7])
        assert compilations.count == 0
