"""The nightly comparison of speed: a script on the folders of two runs, and the baseline of the repository."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from documented_commands import ROOT, faults
from mis_bench.results.folder import read_results

SCRIPT = ROOT / "deploy" / "nightly" / "speed.sh"
BASELINE = SCRIPT.parent / "baseline" / "smoke"

BENCH = """#!{python}
import asyncio, os, sys, types
sys.path.insert(0, "{support}")
import mis_bench.measuring.loop, mis_bench.targets.registry
from bench_fakes import CallFailed, Clock, Fakes, VirtualLoop
from mis_bench.cli import main

clock = Clock()
fakes = Fakes(clock)
fakes.prepare = lambda target: setattr(target, "seconds", lambda workload: 0.01 * float(os.environ.get("TIMES", "1")))
mis_bench.measuring.loop.time = types.SimpleNamespace(perf_counter=lambda: clock.seconds)
mis_bench.targets.registry.opener = fakes.opener
def refuse(number, workload):
    if number > 20:
        raise CallFailed("rejected", "It is tired.")

if "FAILING" in os.environ:
    fakes.prepare = lambda target: setattr(target, "before", refuse)

def run(work):
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(work)

asyncio.run = run
main()
"""
"""`mis-bench` in virtual time, on an engine whose calls all take 10 ms times the variable `TIMES`, or fail at last."""


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    program = tmp_path / "bin" / "mis-bench"
    program.parent.mkdir()
    program.write_text(
        BENCH.format(python=sys.executable, support=ROOT / "packages" / "mis-bench" / "tests" / "support")
    )
    program.chmod(0o755)
    return program


def speed(bench: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PATH": f"{bench.parent}:{os.environ['PATH']}"} | env
    command = [str(SCRIPT), *arguments]
    folder = bench.parent.parent
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)


def test_a_night_is_held_against_the_one_before(bench: Path, checkpoint: Path) -> None:
    model = {"MODEL": str(checkpoint)}
    speed(bench, "monday", **model)
    same = speed(bench, "tuesday", "monday", **model)
    assert same.returncode == 0, same.stderr
    made_by = f"mis-bench run --profile smoke --repeat 4 --model {checkpoint} --output monday/smoke"
    assert f"Against smoke, made by `{made_by}" in same.stdout
    assert "ok, p95 +0%, p99 +0% of 120 calls" in same.stdout
    slower = speed(bench, "wednesday", "tuesday", **model, TIMES="1.3")
    assert slower.returncode == 1
    assert "failed: REGRESSION, p95 +30%, p99 +30% of 120 calls" in slower.stdout


def test_the_first_night_is_compared_with_the_stored_baseline(bench: Path, checkpoint: Path) -> None:
    done = speed(bench, "monday", "no-such-folder", MODEL=str(checkpoint), TIMES="0.001")
    assert done.returncode == 0, done.stderr
    assert "no earlier run in 'no-such-folder'; taking the baseline of the repository" in done.stdout
    assert read_results(BASELINE).plan.command in done.stdout
    assert "Nothing was judged; the next run is compared with this one." in done.stdout  # another model


@pytest.mark.full
def test_a_run_of_other_requests_is_replaced_as_the_baseline(bench: Path, checkpoint: Path) -> None:
    other = [bench, "run", "--workload", "probe-9-3-4", "--runs", "3", "--output", "other/smoke", "--model", checkpoint]
    subprocess.run(list(map(str, other)), cwd=bench.parent.parent, check=True, capture_output=True)
    done = speed(bench, "monday", "other", MODEL=str(checkpoint))
    assert done.returncode == 0, done.stderr
    assert "Nothing was judged; the next run is compared with this one." in done.stdout
    assert (bench.parent.parent / "monday" / "smoke" / "summary.json").is_file()
    failed = speed(bench, "tuesday", "other", MODEL=str(checkpoint), FAILING="yes")
    assert failed.returncode == 1, failed.stdout  # it is no success, whatever it cannot be held against


@pytest.mark.full
def test_a_broken_night_is_no_baseline(bench: Path, checkpoint: Path) -> None:
    broken = bench.parent.parent / "sunday" / "smoke"
    broken.mkdir(parents=True)
    (broken / "plan.json").write_text("{}")
    done = speed(bench, "monday", "sunday", MODEL=str(checkpoint), TIMES="0.001")
    assert done.returncode == 0, done.stderr
    assert "The earlier run in 'sunday' is broken; taking the baseline of the repository." in done.stdout


def test_a_run_that_cannot_begin_fails(bench: Path) -> None:
    done = speed(bench, "monday", MODEL="random:nothing")
    assert done.returncode == 2
    assert "There is no shape 'nothing'" in done.stderr
    assert not (bench.parent.parent / "monday").exists()


def test_the_stored_baseline_names_its_machine_and_command() -> None:
    plan = read_results(BASELINE).plan
    command = shlex.split(plan.command)
    assert faults(command) == []
    assert command[command.index("--output") + 1] == str(BASELINE.relative_to(ROOT))
    assert {"--profile", "--repeat", "--model"} <= set(command)
    page = (ROOT / "docs" / "runbooks" / "performance.md").read_text(encoding="utf-8")
    assert plan.command in page
    assert plan.environment.hardware in page
    program = [sys.executable, "-m", "mis_bench", "validate-artifacts", str(BASELINE)]
    assert subprocess.run(program, capture_output=True, check=False).returncode == 0
