"""A folder of every kind of evidence, made by its command in virtual time, or on a trace made by hand."""

import asyncio
import gzip
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bench_fakes import FakeOpener, Fakes, FakeTarget, options_of, plain_scores, virtual
from mis_bench.cli import main
from mis_bench.environment import environment
from mis_bench.manifest import Kind
from mis_bench.measuring.execution import execute
from mis_bench.perf.plan import plan_of
from mis_bench.perf.sources import SIDES, PerfSources
from mis_bench.profile import run as profiling
from mis_bench.profile.scenarios import ScenarioPlan
from mis_bench.targets.spec import TargetSpec
from mis_bench.validation.cases import build_cases
from mis_bench.workload import Workload
from validation_fakes import Fake, rounds
from xplanes import request_marks, tpu_trace

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BOTH = options_of(["a=engine", "b=engine"])


@dataclass(frozen=True, slots=True)
class Maker:
    """What makers need.

    Attributes:
        patch: Undone by whoever made it.
        fakes: Targets, in virtual time.
        model: Directory of a checkpoint.
    """

    patch: pytest.MonkeyPatch
    fakes: Fakes
    model: Path

    def command(self, folder: Path, *arguments: str) -> None:
        """Run a measuring command."""
        self.patch.setattr("sys.argv", ["mis-bench", *arguments])
        result = CliRunner().invoke(main, [*arguments, "--output", str(folder)])
        assert result.exit_code == 0, result.output


def _run(maker: Maker, folder: Path) -> None:
    maker.command(
        folder, "run", "--workload", "probe-9-3-4", "--runs", "12", "--warmup-runs", "2", "--repeat", "2",
        "--max-p99-ms", "100",
    )  # fmt: skip


def _callers(maker: Maker, folder: Path) -> None:
    maker.command(
        folder, "run", "--profile", "callers", "--callers", "1,4", "--load", "1x15/60", "--seconds", "0.1", "--shares",
        "0.5", "--rounds", "2", "--model", str(maker.model), *BOTH,
    )  # fmt: skip


def _stress(maker: Maker, folder: Path) -> None:
    maker.command(folder, "stress", "--seconds", "0.2")


def _trace(maker: Maker, folder: Path) -> None:
    maker.command(folder, "run", "--trace", "mixed:50:9")


def _matrix(maker: Maker, folder: Path) -> None:
    maker.command(folder, "matrix", "--workload", "probe-9-6-4", "--chunk-sizes", "1,3,6")


def _compare(maker: Maker, folder: Path) -> None:
    maker.command(folder, "compare", *BOTH, "--workload", "probe-20-6-4", "--chunk-sizes", "3,6")


def _sweep(maker: Maker, folder: Path) -> None:
    loads = ("--rates", "9", "--concurrencies", "2", "--requests", "4", "--slo-p99-ms", "500")
    maker.command(folder, "sweep", "--workload", "probe-9-3-4", *loads, *BOTH)


def _decisions(maker: Maker, folder: Path) -> None:
    maker.command(
        folder, "decisions", "speed", "--seconds", "0.1", "--callers", "2", "--load", "ticket", "--rounds", "2"
    )


def _perf(maker: Maker, folder: Path) -> None:
    sources = PerfSources(folder, dict.fromkeys(SIDES, COMMIT), are_equal=True)
    plan = plan_of(sources, maker.model, 2048, sessions=1).model_copy(update={"rounds": 2})
    execute(plan, {side: FakeOpener(maker.fakes, TargetSpec(side, side)) for side in SIDES}, folder)


def _validate(maker: Maker, folder: Path) -> None:
    def opener(spec: TargetSpec, **_: object) -> Fake:
        if spec.spec == "transformers-serial":
            return Fake(rounds, is_serial_faulty=True) if spec.options["dtype"] == "bfloat16" else Fake()
        token = spec.options.get("multi_item_scoring_delimiter")
        return Fake(delimiter=int(token)) if token else Fake()

    maker.patch.setattr("mis_bench.targets.registry.opener", opener)
    cases = build_cases(2048)
    few = SimpleNamespace(
        isolated=cases.isolated[:1], compared=cases.compared[:1], free_token=cases.free_token, to_time=cases.to_time
    )
    maker.patch.setattr("mis_bench.validation.cases.build_cases", lambda *_: few)
    maker.command(folder, "validate", "--model", str(maker.model))


@contextmanager
def _recording(folder: Path) -> Iterator[None]:
    yield
    traces = folder / "traces"
    traces.mkdir()
    (traces / "host.xplane.pb").write_bytes(tpu_trace() + request_marks((0, 50), (50, 100)))
    (traces / "host.trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))


class _Engine:
    """What a profile of memory asks an engine."""

    def memory(self) -> dict[str, Any]:
        return {"cache/keys": SimpleNamespace(bytes=2**20, shape=(4, 4), dtype="bfloat16")}

    def save_memory_profile(self, path: Path) -> None:
        path.write_bytes(gzip.compress(b"pprof"))


def profile_of(maker: Maker, folder: Path, plan: ScenarioPlan) -> None:
    """Profile a fake."""
    folder.mkdir()
    target = FakeTarget(TargetSpec("engine", "engine"), maker.fakes.clock, forgets=True)
    engine: Any = _Engine()
    subject = profiling.ProfiledTarget(target, 60.0, engine=engine)
    found = asyncio.run(profiling.profile(plan, subject, _recording(folder), folder, environment("a TPU")))
    found.keep(folder)


def _profile(maker: Maker, folder: Path) -> None:
    profile_of(maker, folder, ScenarioPlan("single", ("single-9-1-4", "single-9-2-4"), timed=3, profiled=1))


def memory_profile(maker: Maker, folder: Path) -> None:
    """The scenario that has no trace."""
    profile_of(maker, folder, ScenarioPlan("memory", ("single-9-1-4",), timed=2, profiled=0))


MAKERS: Mapping[Kind, Callable[[Maker, Path], None]] = {
    "run": _run, "callers": _callers, "stress": _stress, "trace": _trace, "matrix": _matrix, "compare": _compare,
    "sweep": _sweep, "decisions": _decisions, "perf": _perf, "validate": _validate, "profile": _profile,
}  # fmt: skip


@contextmanager
def making(model: Path) -> Iterator[Maker]:
    """Have commands ask fakes in virtual time, each with fakes of its own."""
    with pytest.MonkeyPatch.context() as patch:
        fakes = Fakes(virtual(patch))

        def prepare(target: FakeTarget) -> None:
            target.flops_per_s = 1e9
            target.scores = lambda workload: plain_scores(workload) if workload.task == "score" else _lengths(workload)

        fakes.prepare = prepare
        patch.setattr("mis_bench.targets.registry.opener", fakes.opener)
        yield Maker(patch, fakes, model)


def _lengths(workload: Workload) -> np.ndarray:
    """Scores of texts, of each alone."""
    return np.array([[len(str(item)) % 7 / 7] for item in workload.items])
