"""What a runner compiles before its first step."""

from collections import Counter, deque
from pathlib import Path

import jax
import pytest

from mis_core import Engine
from mis_core.runner.sampling import SAMPLED_ROWS
from mis_kernels.backends.xla.backend import XlaCpuBackend
from mis_testing import tiny_checkpoint
from mis_testing.options import SMALL_ENGINE


def test_one_program_for_steps_of_all_sizes_reads_their_rows(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path / "qwen3", family="qwen3")
    with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE) as engine:
        runner = engine._loop._runner
        programs = list(runner._programs(dense_mask=False))
        names = Counter(name for name, _ in programs)
        reads = names.pop("reads")
        assert reads == 6 + len(runner._reads.hold_logits) + 1
        assert set(names.values()) == {1}
        assert len(names) == len(runner._sizes) + len(runner._decode_sizes)
        assert len({runner._rows_of(program).shape for name, program in programs if name != "reads"}) == 1


def test_what_draws_is_compiled_with_options_of_the_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(XlaCpuBackend, "brief", {"an_option_that_nobody_knows": True})
    path = tiny_checkpoint(tmp_path / "qwen3", family="qwen3")
    with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE) as engine:
        runner = engine._loop._runner
        step = next(program for _, program in runner._programs(dense_mask=False))
        rows = jax.ShapeDtypeStruct((SAMPLED_ROWS, runner._rows_of(step).shape[1]), "float32")
        draw, count = deque(runner._slots.programs(rows), 2)
        for program in (draw, count):
            with pytest.raises(jax.errors.JaxRuntimeError, match="an_option_that_nobody_knows"):
                program.compile()
