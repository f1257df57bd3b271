"""An engine whose backend has two kinds of steps: both are compiled before the first request, and serve each other."""

from pathlib import Path

import numpy as np
import pytest

from mis_core import Engine
from mis_core.runner import runner
from mis_kernels import backends
from mis_kernels.backends.xla.backend import XlaCpuBackend
from mis_testing.bits import assert_bits_equal
from mis_testing.compilations import count_compilations
from mis_testing.options import SMALL_ENGINE

QUERY = np.random.default_rng(0).integers(5, 90, 190).tolist()
ITEMS = [np.random.default_rng(n).integers(5, 90, 1 + 3 * n).tolist() for n in range(5)]
LABELS = [7, 30, 55]


class Mixed(XlaCpuBackend):
    """The layout of contexts of up to two pages; that of plain XLA, so that bits can be compared."""


class Aligned(XlaCpuBackend):
    """That of all others, with runs of 128 rows for each context."""

    contexts = 2
    mixed_context = 128
    alignment = 128

    def for_mixed_steps(self) -> Mixed:
        return Mixed(self.heads, self.dtype)


def test_mixed_and_other_steps_share_cache_and_compile_nothing(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short query is the beginning of the long one, so pages of one kind are read by the other."""
    short, long = QUERY[:64], QUERY
    monkeypatch.setattr(backends, "REGISTRY", [XlaCpuBackend])
    with Engine.from_pretrained(checkpoint, progress=False, **SMALL_ENGINE) as engine:
        expected = [engine.score(query, ITEMS, LABELS).scores for query in (short, long)]
    monkeypatch.setattr(backends, "REGISTRY", [Aligned])
    monkeypatch.setattr(runner, "token_buckets", lambda budget: [budget])  # steps of one size: each is compiled twice
    options = {**SMALL_ENGINE, "skip_warmup": False, "context_length": 512}
    with Engine.from_pretrained(checkpoint, progress=False, **options) as engine:
        running, kinds = engine._loop._runner, []
        run = running.run
        monkeypatch.setattr(running, "run", lambda plan: kinds.append(plan.is_mixed) or run(plan))
        with count_compilations() as compiled:
            found = [engine.score(query, ITEMS, LABELS) for query in (short, long)]
        assert compiled.names == []
    assert (kinds[0], kinds[-1]) == (True, False)
    assert found[1].usage.cached_tokens == 64
    for one, other in zip(found, expected, strict=True):
        assert_bits_equal(np.asarray(one.scores), np.asarray(other))
