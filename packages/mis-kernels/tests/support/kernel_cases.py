"""Steps for tests of every backend: segments, random tensors, and a cache full of NaN where nobody wrote."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _pytest.mark import ParameterSet

from mis_kernels import lay_out, reference_attention, write_pages
from mis_kernels.activations import Gate
from mis_kernels.backends import ANY_HEADS, Backend, LaidOut, StepLimits, choose
from mis_kernels.backends.gpu.backend import GpuBackend
from mis_kernels.backends.native import library as native
from mis_kernels.backends.tpu.backend import TpuBackend
from mis_kernels.backends.tpu.tiles import TpuBlocks
from mis_kernels.heads import HeadShape

PAGE = 64
SMALL = TpuBlocks(tokens=128, keys=128, strip=128, key_step=64)
UNOPTIMISED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Options of the CPU's compiler for what runs once or twice: optimising it would take longer than running it."""

EMULATED = None if jax.default_backend() == "tpu" else UNOPTIMISED
"""Options of the compiler for kernels for TPUs: none where they are not emulated."""

# Compiled as a whole: outside of `jit` every operation of every new shape is compiled by itself.
write_pages = jax.jit(write_pages, static_argnames="backend")
_reference = jax.jit(reference_attention, static_argnames=("scale", "cap"), compiler_options=UNOPTIMISED)


GATES: dict[Gate, Callable[[np.ndarray], np.ndarray]] = {
    "silu": lambda x: x * (1 + np.tanh(x / 2)) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
}
"""What gates are, of float64."""


def unless(lacking: str | None) -> pytest.MarkDecorator:
    """Mark what runs natively, of which something is lacking here, or nothing, and then it must run."""
    reason = lacking or ""
    if "not compiled" in reason and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        reason = "needs a C++ compiler"
    return pytest.mark.skipif(bool(reason), reason=reason)


NEEDS_NATIVE, NEEDS_INT8 = unless(native.why_not()), unless(native.why_not_int8())
NEEDS_FLOAT32 = unless(native.why_not_float32())
NATIVE_TYPES = {"bfloat16": NEEDS_NATIVE, "float32": NEEDS_FLOAT32}
"""Types that native kernels compute, each with what it needs."""

NATIVE = pytest.param("native", marks=NEEDS_NATIVE)
ON_CPU = ["xla", NATIVE]


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
        how = {name: arrays[name] for name in ("segments", "scale", "cap") if name in arrays}
        return np.asarray(_reference(**wide, **how))


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
    window: int | None = None
    cap: float | None = None
    spread: float = 1.0  # of the logits, their standard deviation
    limits: StepLimits | None = None  # cases within the same ones are compiled together; None: made for this one

    def layout(self, backend: Backend | str = "xla") -> tuple[LaidOut, np.ndarray]:
        """Return the segments, laid out for a backend, and the first row of each."""
        starts, row = [], 0
        for segment in self.segments:
            row = -(-row // PAGE) * PAGE if segment.paged else row
            starts.append(row)
            row += segment.length + self.gap
        tokens = self.tokens or (64 << max(0, (row - 1).bit_length() - 6) if row <= 256 else -(-row // 256) * 256)
        backend = choose(ANY_HEADS, "bfloat16", backend) if isinstance(backend, str) else backend
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
                backend=backend,
                tile_capacity=None if self.limits is None else backend.tile_capacity(tokens, self.limits),
                window=self.window,
            ),
            np.array(starts, np.int32),
        )

    def page_table(self) -> np.ndarray:
        """Scattered pages for every context, with room for what paged segments add."""
        added = sum(segment.length for segment in self.segments if segment.paged)
        pages = -(-max(1, max(self.contexts) + added) // PAGE)
        shuffled = np.random.default_rng(self.seed).permutation(len(self.contexts) * pages + 3)
        return shuffled[: len(self.contexts) * pages].reshape(len(self.contexts), pages).astype(np.int32)

    def arrays(self, dtype: jnp.dtype, backend: Backend | str = "xla") -> dict[str, object]:
        """Return the keyword arguments of `segment_attention`, pages written."""
        backend = choose(ANY_HEADS, "bfloat16", backend) if isinstance(backend, str) else backend
        segments, starts = self.layout(backend)
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
            f"{name}_pages": write_pages(jnp.asarray(cache.astype(dtype)), new[name], segments, backend)
            for name, cache in zip("kv", caches, strict=True)
        }
        how = {} if self.cap is None else {"cap": self.cap}
        return {
            **new,
            **pages,
            "segments": segments,
            "scale": self.spread * self.head_dim**-0.5,
            **how,
            "backend": backend,
        }

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


def backend_of(name: str, case: Case, dtype: str) -> Backend:
    """Return a backend for the heads of a case; for TPUs with small blocks, so that steps have several."""
    heads = HeadShape(case.kv_heads * case.group, case.kv_heads, case.head_dim)
    if name == "gpu":
        return GpuBackend.create(heads, dtype)  # emulated in float32, too, where it is held to fewer errors
    return TpuBackend(heads, dtype, SMALL) if name == "tpu" else choose(heads, dtype, name)


CASES: dict[str, Case] = {
    "one item without context": Case([Segment(3)]),
    "items behind a short context": Case([Segment(n) for n in (5, 1, 20, 7)], contexts=(100,)),
    "context ends on a page edge": Case([Segment(9), Segment(2)], contexts=(128,)),
    "context longer than a tile": Case([Segment(20)] * 10, contexts=(1300,), kv_heads=1),
    "many contexts in one block": Case([Segment(4, context=c) for c in range(6)], contexts=(1, 63, 64, 65, 600, 0)),
    "a query in one chunk": Case([Segment(200, paged=True)]),
    "a later chunk of a query": Case([Segment(130, paged=True)], contexts=(512,)),
    "a query and items in one step": Case([Segment(100, paged=True)] + [Segment(6, context=1)] * 3, contexts=(0, 70)),
    "an item longer than a block": Case([Segment(3), Segment(300), Segment(4)], contexts=(65,)),
    "an item that crosses blocks": Case([Segment(250), Segment(20), Segment(20)], contexts=(65,), group=1),
    "items see parts of a context": Case([Segment(5, context_len=n) for n in (0, 1, 64, 99)], contexts=(100,)),
    "padding between segments": Case([Segment(5), Segment(6)], contexts=(30,), gap=9, tokens=64),
    "head_dim 64, group 7": Case([Segment(20)] * 4, contexts=(200,), group=7, head_dim=64),
    "head_dim 96, multi-query": Case([Segment(20)] * 4, contexts=(200,), kv_heads=1, group=8, head_dim=96),
    "head_dim 128, group 1": Case([Segment(20)] * 4, contexts=(200,), kv_heads=8, group=1, head_dim=128),
    "head_dim 256": Case([Segment(20)] * 4, contexts=(200,), group=4, head_dim=256),
    "context of 40,000 tokens": Case([Segment(4), Segment(1)], contexts=(40_000,), kv_heads=1, group=1),
    "a window shorter than items": Case([Segment(40), Segment(7), Segment(300)], contexts=(300,), window=33),
    "a window at a page's edge over a later chunk": Case([Segment(130, paged=True)], contexts=(512,), window=128),
    "a window longer than a tile": Case([Segment(20)] * 10, contexts=(1300,), kv_heads=1, window=600),
    "a window over many contexts": Case(
        [Segment(4, context=c) for c in range(6)], contexts=(1, 63, 64, 65, 600, 0), window=65
    ),
    "a window of one token": Case([Segment(70, paged=True), Segment(5, context=1)], contexts=(64, 100), window=1),
    "a cap that bites": Case([Segment(20)] * 4 + [Segment(130)], contexts=(300,), cap=5.0, spread=15.0),
    "a cap and a window over many contexts": Case(
        [Segment(4, context=c) for c in range(6)], contexts=(1, 63, 64, 65, 600, 0), window=65, cap=5.0, spread=15.0
    ),
    "2,000 items": Case([Segment(1 + n % 4) for n in range(2000)], contexts=(129,), kv_heads=1, group=1),
}
