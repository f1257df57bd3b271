"""Runs step plans: owns the weights, the KV cache and the compiled shapes.

The only place that turns a host `StepPlan` into device arrays. Steps are padded to a few bucket
sizes, compiled once each.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Float32, Int32
from tqdm import tqdm

from mis_core.models.decoder import Decoder
from mis_core.runner.head import label_logits, log_sum_exp, scored_hidden
from mis_core.scheduler.plan import LONG_ITEM, PAGE_SIZE, StepPlan
from mis_kernels import Segments, device_blocks, lay_out, segment_attention, tile_capacity, write_pages
from mis_kernels.tiles import CONTEXT_TILE, MIN_TOKENS, OWN_BLOCK, OWN_TILE, row_block

SCORED_BUCKETS = (64, 256)
PAIRS = 1024

Cache = tuple[Array, Array]
"""Keys and values, each `[kv_heads, layers * pages, page_size, head_dim]`."""


def token_buckets(token_budget: int) -> list[int]:
    """Return the step sizes to compile: powers of two from `MIN_TOKENS`, and the budget itself."""
    powers = [MIN_TOKENS << n for n in range(20) if MIN_TOKENS << n < token_budget]
    return [*powers, token_budget]


class Runner:
    """Executes steps of one model on one device."""

    def __init__(self, decoder: Decoder, token_budget: int, context_length: int) -> None:
        """Allocate the cache for one query and one long item of `context_length` tokens.

        Args:
            decoder: Weights, on the device.
            token_budget: Most new tokens of a step, a multiple of `LONG_ITEM`.
            context_length: Longest query + item, in tokens.
        """
        self.token_budget = token_budget
        self.pages_per_context = -(-context_length // PAGE_SIZE)
        self._graph, self._weights = nnx.split(decoder)
        config = decoder.config
        pages = 2 * self.pages_per_context
        shape = (config.kv_heads, config.layers * pages, PAGE_SIZE, config.head_dim)
        dtype = decoder.embedding[...].dtype
        self._cache: Cache = (jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
        self._blocks = device_blocks(
            heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim, dtype=str(dtype)
        )
        self._step = jax.jit(partial(_step, self._graph, pages), donate_argnums=1)
        self._scored = jax.jit(self._on_decoder(scored_hidden))
        self._labels = jax.jit(self._on_decoder(label_logits))
        self._normalisers = jax.jit(self._on_decoder(log_sum_exp))

    def _on_decoder(self, function: Any) -> Any:
        return lambda weights, *arrays: function(nnx.merge(self._graph, weights), *arrays)

    def warm_up(self, progress: bool = True) -> None:
        """Compile every shape, so that no request waits for the compiler."""
        for size in tqdm(token_buckets(self.token_budget), desc="Compiling steps", unit="shape", disable=not progress):
            # Segments without context fit however short the longest context is.
            starts = np.arange(0, size, MIN_TOKENS, dtype=np.int32)
            plan = StepPlan(
                token_ids=np.zeros(size, np.int32),
                positions=np.zeros(size, np.int32),
                starts=starts,
                lens=np.full(len(starts), MIN_TOKENS, np.int32),
                context_lens=np.zeros(len(starts), np.int32),
                paged=np.zeros(len(starts), bool),
                page_table=np.zeros(self.pages_per_context, np.int32),
                scored_rows=np.zeros(0, np.int32),
                scored_items=np.zeros(0, np.int32),
            )
            hidden = self.run(plan)
            for count in SCORED_BUCKETS:
                self.read_head(hidden, np.zeros(count, np.int32), np.zeros((count, 1), np.int32), normalise=True)

    def run(self, plan: StepPlan) -> Array:
        """Execute one step; return the hidden states of its rows, padding included, on the device."""
        size = next(bucket for bucket in token_buckets(self.token_budget) if bucket >= _rows(plan))
        rows = np.repeat(plan.starts, plan.lens) + _ramp(plan.lens)
        token_ids, positions = np.zeros(size, np.int32), np.zeros(size, np.int32)
        token_ids[rows], positions[rows] = plan.token_ids, plan.positions
        hidden, self._cache = self._step(self._weights, self._cache, token_ids, positions, self._segments(plan, size))
        return hidden

    def _segments(self, plan: StepPlan, size: int) -> Segments:
        context_tokens = self.pages_per_context * PAGE_SIZE
        if self._blocks is None:
            tiles = size // row_block(size) * -(-context_tokens // CONTEXT_TILE)
        else:
            tiles = tile_capacity(size, context_tokens, self._blocks)
        return lay_out(
            starts=plan.starts,
            lens=plan.lens,
            context_ids=np.zeros(len(plan.lens), np.int32),
            context_lens=plan.context_lens,
            paged=plan.paged,
            page_table=plan.page_table[None],
            page_size=PAGE_SIZE,
            tokens=size,
            tile_capacity=tiles,
            own_rank_capacity=2 * (OWN_BLOCK + LONG_ITEM) // OWN_TILE,
            blocks=self._blocks,
        )

    def read_head(
        self,
        hidden: Array,
        rows: Int32[np.ndarray, " scored"],
        labels: Int32[np.ndarray, "scored labels"],
        normalise: bool,
    ) -> tuple[Float32[np.ndarray, "scored labels"], Float32[np.ndarray, " scored"] | None]:
        """Return label logits, and normalisers if asked for, at rows of a step's hidden states."""
        logits, normalisers = [], []
        for begin in range(0, len(rows), SCORED_BUCKETS[-1]):
            part = rows[begin : begin + SCORED_BUCKETS[-1]]
            size = next(bucket for bucket in SCORED_BUCKETS if bucket >= len(part))
            scored = self._scored(self._weights, hidden, _padded(part, size))
            logits.append(self._label_logits(scored, labels[begin : begin + len(part)]))
            if normalise:
                normalisers.append(np.asarray(self._normalisers(self._weights, scored))[: len(part)])
        return np.concatenate(logits), np.concatenate(normalisers) if normalise else None

    def _label_logits(self, scored: Array, labels: np.ndarray) -> np.ndarray:
        pair_row = np.repeat(np.arange(len(labels), dtype=np.int32), labels.shape[1])
        pair_label = np.maximum(labels.reshape(-1), 0)  # -1 fills short rows; their values are never used
        parts = [
            self._labels(
                self._weights,
                scored,
                _padded(pair_row[b : b + PAIRS], PAIRS),
                _padded(pair_label[b : b + PAIRS], PAIRS),
            )
            for b in range(0, len(pair_row), PAIRS)
        ]
        return np.concatenate([np.asarray(part) for part in parts])[: len(pair_row)].reshape(labels.shape)


def _step(
    graph: Any, pages: int, weights: Any, cache: Cache, token_ids: Array, positions: Array, segments: Segments
) -> tuple[Array, Cache]:
    decoder: Decoder = nnx.merge(graph, weights)
    scale = decoder.config.head_dim**-0.5

    def attend(q: Array, k: Array, v: Array, cache: Cache, layer: Array) -> tuple[Array, Cache]:
        here = segments.shift_pages(layer * pages)
        k_pages, v_pages = write_pages(cache[0], k, here), write_pages(cache[1], v, here)
        return segment_attention(q, k, v, k_pages, v_pages, here, scale=scale), (k_pages, v_pages)

    return decoder(token_ids, positions, attend, cache)


def _rows(plan: StepPlan) -> int:
    return int(plan.starts[-1] + plan.lens[-1])


def _ramp(lens: np.ndarray) -> np.ndarray:
    ends = np.cumsum(lens)
    return np.arange(ends[-1]) - np.repeat(ends - lens, lens)


def _padded(array: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([array, np.zeros(size - len(array), array.dtype)])
