"""The worker of `mis-bench perf` with a real engine."""

from pathlib import Path

import pytest

from mis_bench.perf.compare import workloads
from mis_bench.perf.errors import PerfError
from mis_bench.perf.side import Side

REPOSITORY = Path(__file__).parents[3]
OPTIONS = {"chunked_prefill_size": 256, "max_total_tokens": 1024}


def test_a_worker_measures_the_sources_that_it_is_given(checkpoint: Path) -> None:
    name, workload = next(iter(workloads(960).items()))
    job = {"model": str(checkpoint), "options": OPTIONS, "requests": {name: workload.request}}
    with Side("head", REPOSITORY, job) as side:
        about = side.wait()
        assert Path(about.source).is_relative_to(REPOSITORY)
        assert about.platform == "cpu"
        turn = side.turn(name, 3)
        assert len(turn.wall_s) == len(turn.cpu_s) == 3
        assert all(seconds > 0 for seconds in (*turn.wall_s, *turn.cpu_s, *side.yardstick().wall_s))
        side.close()


def test_an_engine_that_does_not_start_says_why(checkpoint: Path) -> None:
    job = {"model": str(checkpoint), "options": {"chunked_prefil_size": 256}, "requests": {}}
    with (
        Side("base", REPOSITORY, job) as side,
        pytest.raises(PerfError, match=r"worker of the base ended.*chunked_pre"),
    ):
        side.wait()
