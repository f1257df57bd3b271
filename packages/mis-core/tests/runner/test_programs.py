"""What a runner compiles before its first step."""

from collections import Counter
from pathlib import Path

from mis_core import Engine
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
