"""Random steps for tests of attention: segments, tensors, and a cache full of NaN where nobody wrote."""

import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _pytest.mark import ParameterSet

from mis_kernels import Segments, lay_out, reference_attention, write_pages
from mis_kernels.backends.native import library as native

PAGE = 64
# Compiled as a whole: outside of `jit` every operation of every new shape is compiled by itself.
write_pages = jax.jit(write_pages)
_reference = jax.jit(reference_attention, static_argnames="scale")


def without_native() -> str:
    """Return why nothing can run natively here; empty where it must."""
    reason = native.why_not() or ""
    if "not compiled" in reason and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        return "needs a C++ compiler"
    return reason


NEEDS_NATIVE = pytest.mark.skipif(bool(without_native()), reason=without_native())
NATIVE = pytest.param("native", marks=NEEDS_NATIVE)
CPU_IMPLEMENTATIONS = ["xla", NATIVE]


def on_host() -> AbstractContextManager[Any]:
    """Within the block, what is computed is computed by the CPU, also beside a TPU or GPU: for references."""
    return jax.default_device(jax.devices("cpu")[0])


def on_gpu(points: Sequence[ParameterSet]) -> list[ParameterSet]:
    """Mark the points in bfloat16 as those that a GPU runs, too: it multiplies float32 with fewer bits."""
    return [
        point._replace(marks=(*point.marks, pytest.mark.gpu)) if "bfloat16" in point.values[0] else point
        for point in points
    ]


def in_float32(arrays: dict[str, Any]) -> np.ndarray:
    """Return what the reference makes of a step's arrays in float32, `[tokens, heads, head_dim]`."""
    with on_host():
        names = ("q", "k", "v", "k_pages", "v_pages")
        wide = {name: jnp.asarray(np.asarray(arrays[name], np.float32)) for name in names}
        return np.asarray(_reference(**{**arrays, **wide}))


@dataclass(frozen=True)
class Segment:
    """One segment of a case: `length` new tokens behind the first `context_len` tokens of a context."""

    length: int
    context: int = 0
    context_len: int | None = None  # None: all of it
    paged: bool = False


@dataclass(frozen=True)
class Case:
    """A step. Contexts hold `contexts[i]` cached tokens each; paged segments extend theirs."""

    segments: Sequence[Segment]
    contexts: Sequence[int] = (0,)
    tokens: int | None = None
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 16
    seed: int = 0
    gap: int = 0  # padding tokens between segments

    def layout(self) -> tuple[Segments, np.ndarray]:
        """Return the segments and the first row of each."""
        starts, row = [], 0
        for segment in self.segments:
            row = -(-row // PAGE) * PAGE if segment.paged else row
            starts.append(row)
            row += segment.length + self.gap
        tokens = self.tokens or (64 << max(0, (row - 1).bit_length() - 6) if row <= 256 else -(-row // 256) * 256)
        lens = np.array([segment.length for segment in self.segments], np.int32)
        context_ids = np.array([segment.context for segment in self.segments], np.int32)
        context_lens = np.array(
            [self.contexts[s.context] if s.context_len is None else s.context_len for s in self.segments], np.int32
        )
        return (
            lay_out(
                starts=np.array(starts, np.int32),
                lens=lens,
                context_ids=context_ids,
                context_lens=context_lens,
                paged=np.array([segment.paged for segment in self.segments]),
                page_table=self.page_table(),
                page_size=PAGE,
                tokens=tokens,
            ),
            np.array(starts, np.int32),
        )

    def page_table(self) -> np.ndarray:
        """Scattered pages for every context, with room for what paged segments add."""
        added = sum(segment.length for segment in self.segments if segment.paged)
        pages = -(-max(1, max(self.contexts) + added) // PAGE)
        shuffled = np.random.default_rng(self.seed).permutation(len(self.contexts) * pages + 3)
        return shuffled[: len(self.contexts) * pages].reshape(len(self.contexts), pages).astype(np.int32)

    def arrays(self, dtype: jnp.dtype) -> dict[str, object]:
        """Return the keyword arguments of `segment_attention`, pages written."""
        segments, starts = self.layout()
        table = self.page_table()
        shape = (self.kv_heads, table.size + 3, PAGE, self.head_dim)
        caches = [np.full(shape, np.nan, np.float32) for _ in range(2)]
        for cache, salt in zip(caches, (1, 2), strict=True):
            for context, length in enumerate(self.contexts):
                values = self._random(self.seed, salt, context, size=(length, self.kv_heads, self.head_dim))
                position = np.arange(length)
                cache[:, table[context, position // PAGE], position % PAGE] = values.swapaxes(0, 1)
        new = {
            name: jnp.asarray(self._new(segments.num_tokens, starts, salt, heads).astype(dtype))
            for name, salt, heads in (
                ("q", 3, self.kv_heads * self.group),
                ("k", 4, self.kv_heads),
                ("v", 5, self.kv_heads),
            )
        }
        pages = {
            f"{name}_pages": write_pages(jnp.asarray(cache.astype(dtype)), new[name], segments)
            for name, cache in zip("kv", caches, strict=True)
        }
        return {**new, **pages, "segments": segments, "scale": self.head_dim**-0.5}

    def _new(self, tokens: int, starts: np.ndarray, salt: int, heads: int) -> np.ndarray:
        """New tokens' values: a segment's own depend on the segment alone, not on where it lies."""
        out = self._random(self.seed, salt, 99, size=(tokens, heads, self.head_dim))
        for segment, start in zip(self.segments, starts, strict=True):
            key = (segment.length, segment.context, int(segment.paged))
            out[start : start + segment.length] = self._random(
                self.seed, salt, *key, size=(segment.length, heads, self.head_dim)
            )
        return out

    @staticmethod
    def _random(*key: int, size: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng(key).standard_normal(size, dtype=np.float32)
