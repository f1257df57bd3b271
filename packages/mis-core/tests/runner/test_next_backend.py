"""The next backend is a folder and a line: one that is written here is chosen by the engine, and scores with it."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax
from jax.sharding import PartitionSpec

from mis_core import Engine
from mis_kernels import backends
from mis_kernels.activations import Gate
from mis_kernels.backends import LaidOut, StepLimits, explain
from mis_kernels.backends.xla.backend import XlaBackend
from mis_kernels.heads import HeadShape
from mis_kernels.segments import Segments
from mis_kernels.weights import FoldedNorm, UnfusedWeight
from mis_testing.options import SMALL_ENGINE
from mis_testing.tolerances import TINY_PROBABILITIES

ROWS = 16


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Turned(UnfusedWeight):
    """Weights of a product, their columns first: `[*stack, out, in]`."""

    columns: Any

    def __getitem__(self, key: Any) -> "Turned":
        return Turned(self.columns[key])

    def at_layer(self, layer: Array) -> "Turned":
        return self[layer]

    def partition(self, partition: PartitionSpec) -> "Turned":
        *stack, rows, columns = (*partition, *[None] * (self.columns.ndim - len(partition)))
        return Turned(PartitionSpec(*stack, columns, rows))

    def product(self, rows: Array) -> Array:
        return jnp.dot(rows, self.columns.T, preferred_element_type=jnp.float32)

    def linear(self, x: Array, residual: Array | None = None, norm: FoldedNorm | None = None) -> Array:
        ToyBackend.calls.add("linear")
        return super().linear(x, residual, norm)

    def gated_linear(
        self, x: Array, bias: Array | None = None, norm: FoldedNorm | None = None, gate: Gate = "silu"
    ) -> Array:
        ToyBackend.calls.add("gated_linear")
        return super().gated_linear(x, bias, norm, gate)


class ToyBackend(XlaBackend):
    """Attends in blocks of `ROWS` rows over whole contexts, and multiplies with turned weights."""

    name = "toy"
    platforms = ("cpu",)
    alignment = ROWS
    calls: ClassVar[set[str]] = set()

    @classmethod
    def misfit(cls, heads: HeadShape, dtype: str) -> str | None:
        return super().misfit(heads, dtype) or (None if dtype == "float32" else f"computes float32, not {dtype}")

    def tile_capacity(self, tokens: int, limits: StepLimits) -> tuple[int, ...]:
        return (tokens // ROWS,)

    def lay_out(self, segments: Segments, page_size: int, capacity: tuple[int, ...] | None = None) -> LaidOut:
        """Say of each block of rows how long its longest context is."""
        longest = segments.context_len.reshape(-1, ROWS).max(1)
        assert capacity is None or capacity == longest.shape
        return LaidOut(**vars(segments), tiles=longest)

    def attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        k_pages: Array,
        v_pages: Array,
        segments: LaidOut,
        *,
        scale: float,
        cap: float | None = None,
    ) -> Array:
        assert cap is None
        self.calls.add("attend")
        group, new = q.shape[1] // k.shape[1], jnp.arange(len(q))
        slots = segments.page_table.shape[1] * k_pages.shape[2]

        def block(index: Array) -> Array:
            rows = lax.dynamic_slice_in_dim(new, index * ROWS, ROWS)

            def row(token: Array) -> Array:
                pages = segments.page_table[segments.context_id[token]]
                in_context = jnp.arange(slots) < jnp.minimum(segments.context_len[token], segments.tiles[index])
                in_segment = (new >= segments.segment_start[token]) & (new <= token)
                seen = jnp.concatenate([in_context, in_segment])
                keys, values = (
                    jnp.where(seen[:, None, None], jnp.concatenate([self._cached(c, pages), n]), 0)
                    for c, n in ((k_pages, k), (v_pages, v))
                )
                mine = q[token].reshape(-1, group, q.shape[2])
                logits = jnp.where(seen, jnp.einsum("hgd,khd->hgk", mine, keys) * scale, -jnp.inf)
                weights = jnp.where(seen.any(), jax.nn.softmax(logits), 0)
                return jnp.einsum("hgk,khd->hgd", weights, values).reshape(q.shape[1:])

            return lax.map(row, rows)

        return lax.map(block, jnp.arange(len(q) // ROWS)).reshape(q.shape)

    @staticmethod
    def _cached(cache: Array, pages: Array) -> Array:
        return cache[:, pages].reshape(len(cache), -1, cache.shape[3]).swapaxes(0, 1)

    def packs(self, *dimensions: int, gate_bias: bool) -> bool:
        return not gate_bias

    def pack(self, weight: np.ndarray) -> Turned:
        return Turned(np.ascontiguousarray(weight.swapaxes(-1, -2)))


QUERY = np.random.default_rng(0).integers(5, 90, 150).tolist()
ITEMS = [np.random.default_rng(n).integers(5, 90, 1 + 7 * n).tolist() for n in range(9)]


def scores(path: Path, **options: Any) -> np.ndarray:
    with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE, **options) as engine:
        return np.asarray(engine.score(QUERY, ITEMS, [7, 30, 55], apply_softmax=True).scores)


def test_the_engine_scores_with_a_backend_that_no_package_knows(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reference = scores(checkpoint)
    monkeypatch.setattr(ToyBackend, "calls", set())
    monkeypatch.setattr(backends, "REGISTRY", [ToyBackend, *backends.REGISTRY])
    with caplog.at_level("INFO"):
        found = scores(checkpoint)
    assert ToyBackend.calls == {"attend", "linear", "gated_linear"}
    assert "Steps are computed by toy." in caplog.text
    np.testing.assert_allclose(found, reference, rtol=0, atol=TINY_PROBABILITIES)


def test_a_backend_that_does_not_fit_is_passed_over_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "REGISTRY", [ToyBackend, *backends.REGISTRY])
    assert explain(HeadShape(2, 1, 16), "float32") == "toy"
    assert explain(HeadShape(2, 1, 16), "bfloat16").split("; ")[1] == "toy computes float32, not bfloat16"
