"""`mis-bench perf`: two versions put in place, taking turns, and judged."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mis_bench.cli import main
from mis_bench.perf import judge as judging
from mis_bench.perf import plan, side
from mis_bench.perf.judge import judge
from mis_bench.perf.side import Side
from mis_bench.perf.sources import PerfError, check_out, default_base, resolve
from mis_bench.results.folder import read_results
from mis_bench.targets.target import TargetUnavailable
from mis_bench.workload import build_workload

REPOSITORY = Path(__file__).parents[3]
WORKER = Path(__file__).with_name("perf_worker.py")
KERNELS, CORE = "packages/mis-kernels", "packages/mis-core"
BUILD = """
from pathlib import Path
library = Path(__file__).parent / "src/mis_kernels/lib/native.so"
library.parent.mkdir(exist_ok=True)
library.write_text("compiled")
"""


class Checkout:
    """A repository with an engine of one file, whose speed it says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write(f"{KERNELS}/hatch_build.py", BUILD)
        self.write(f"{KERNELS}/src/mis_kernels/__init__.py", "")
        self.write(f"{CORE}/src/mis_core/__init__.py", "")
        self.write(".gitignore", "lib/\n")
        self.speed()
        self.git("init", "-q", "-b", "main")
        self.commit("first")

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text)

    def speed(self, slowdown: float = 1.0, **more: object) -> None:
        says = {"slowdown": slowdown} | more
        self.write(f"{CORE}/src/mis_core/speed.json", json.dumps(says))

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        command = ["git", "-C", str(self.path), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self, message: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "repository")


@pytest.fixture
def perf(checkout: Checkout, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command on the repository, with workers that compute nothing."""
    monkeypatch.setattr(plan, "PAIRS", 10)
    monkeypatch.setattr(side, "WORKER", WORKER)
    monkeypatch.setattr(judging, "_RESAMPLES", 300)

    def run(*arguments: str) -> Result:
        command = ["perf", "--repository", str(checkout.path), "--model", str(checkpoint), *arguments]
        return CliRunner().invoke(main, command)

    return run


def test_equal_commits_are_not_flagged(checkout: Checkout, perf: Callable[..., Result], tmp_path: Path) -> None:
    second = checkout.commit("second")
    result = perf("--output", str(tmp_path / "results"))
    assert result.exit_code == 0, result.output
    assert "every difference is noise" in result.stdout
    found = read_results(tmp_path / "results")
    assert [target.spec for target in found.plan.targets] == [
        f"engine of {checkout.git('rev-parse', 'HEAD~1')}", f"engine of {second}",
    ]  # fmt: skip
    compared = judge(found)
    assert {each.status for each in compared} == {"ok"}
    assert {each.wall_ms.shape for each in compared} == {(2, 30, 3)}  # three sessions
    assert {case.workload.num_items for case in found.plan.cases} == {1, 4, 16, 50}


def test_sides_take_turns_and_each_goes_first_as_often(perf: Callable[..., Result], tmp_path: Path) -> None:
    perf("--base", "HEAD", "--output", str(tmp_path / "results"))
    timed = [window for window in read_results(tmp_path / "results").windows if window.phase == "timed"]
    timed.sort(key=lambda window: window.began)
    firsts = [window.case.rpartition(" ")[2] for window in timed[::2]]
    assert all(
        one.case.rpartition(" ")[0] == other.case.rpartition(" ")[0] and one.round == other.round
        for one, other in zip(timed[::2], timed[1::2], strict=True)
    )
    assert firsts.count("base") == firsts.count("head")


@pytest.mark.parametrize(("slowdown", "status"), [(1.12, 1), (0.8, 0)])
def test_a_slowdown_of_12_percent_fails_and_a_speedup_passes(
    checkout: Checkout, perf: Callable[..., Result], slowdown: float, status: int
) -> None:
    checkout.speed(slowdown)
    result = perf()
    assert result.exit_code == status, result.output
    assert ("FAIL" in result.stdout) == bool(status)
    assert "with changes" in result.stdout


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"score": 0.3}, "head: correctness: scores differ by up to 0.0500"),
        ({"compiles": 1}, "head: 30 compilations in the timed window"),
        ({"cached_tokens": 5}, "head: the cache was not cold"),
        ({"source": "/usr/lib"}, "which is not the code under test"),
        ({"dies": True}, "worker of the head ended with status 1: the device is on fire"),
    ],
)
def test_what_makes_figures_worthless_fails(
    checkout: Checkout, perf: Callable[..., Result], fault: dict[str, object], said: str
) -> None:
    checkout.speed(1.0, **fault)
    result = perf("--sessions", "1")
    assert result.exit_code == 1
    assert said in result.output


def test_an_accelerator_is_held_by_one_process_at_a_time(
    checkout: Checkout, perf: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERF_WORKER_DEVICE", str(tmp_path / "device"))
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    checkout.speed(1.12)
    result = perf("--sessions", "1")
    assert result.exit_code == 1
    assert "FAIL" in result.stdout


def test_a_library_that_fails_to_compile_quotes_the_compiler(checkout: Checkout, perf: Callable[..., Result]) -> None:
    checkout.write(f"{KERNELS}/hatch_build.py", "raise RuntimeError('error: expected ;')")
    result = perf()
    assert result.exit_code == 1
    assert "native library of the head does not compile" in result.stderr
    assert "expected ;" in result.stderr


def test_a_machine_without_the_library_measures_without_it(checkout: Checkout, perf: Callable[..., Result]) -> None:
    checkout.write(f"{KERNELS}/hatch_build.py", "raise SystemExit('no C++ compiler was found')")
    checkout.commit("no compiler")
    result = perf("--base", "HEAD", "--sessions", "1")
    assert result.exit_code == 0, result.output


def test_an_unknown_commit_is_named(perf: Callable[..., Result]) -> None:
    result = perf("--base", "nowhere")
    assert result.exit_code == 1
    assert "no commit 'nowhere'" in result.stderr


def test_the_base_is_the_commit_before_the_change(checkout: Checkout) -> None:
    first = resolve(checkout.path, "HEAD")
    second = checkout.commit("second")
    assert resolve(checkout.path, default_base(checkout.path, is_dirty=False)) == first
    assert resolve(checkout.path, default_base(checkout.path, is_dirty=True)) == second
    checkout.git("switch", "-q", "-c", "branch")
    checkout.commit("third")
    checkout.commit("fourth")
    assert resolve(checkout.path, default_base(checkout.path, is_dirty=False)) == second


def test_the_head_is_the_working_tree_with_all_its_changes(checkout: Checkout, tmp_path: Path) -> None:
    checkout.write(f"{CORE}/src/mis_core/new.py", "")
    (checkout.path / CORE / "src/mis_core/__init__.py").unlink()
    sources = check_out(checkout.path, "HEAD", tmp_path / "sides")
    base, head = sources.folder / "base", sources.folder / "head"
    assert sources.commits["head"] == f"{sources.commits['base']} with changes"
    assert not sources.are_equal
    assert (head / CORE / "src/mis_core/new.py").is_file()
    assert not (head / CORE / "src/mis_core/__init__.py").exists()
    assert (base / CORE / "src/mis_core/__init__.py").is_file()
    for folder in (base, head):
        assert (folder / KERNELS / "src/mis_kernels/lib/native.so").read_text() == "compiled"


def test_the_checkout_is_left_as_it_is(checkout: Checkout, tmp_path: Path) -> None:
    checkout.write(f"{CORE}/src/mis_core/new.py", "")
    before = checkout.git("status", "--porcelain")
    assert "new.py" in before
    check_out(checkout.path, "HEAD", tmp_path / "sides")
    assert checkout.git("status", "--porcelain") == before


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PerfError, match="git"):
        check_out(tmp_path, None, tmp_path / "sides")


@pytest.mark.full
def test_a_side_is_an_engine_of_the_sources_that_it_is_given(checkpoint: Path) -> None:
    workload = build_workload("probe-30-3-4@2").within(960)
    head = Side(REPOSITORY, checkpoint, {"chunked_prefill_size": 256, "max_total_tokens": 1024})
    try:
        assert head.about.accelerators is None
        reply = head.score(workload)
        assert reply.scores.shape == (3, 2)
        assert min(reply.stages_ms["engine"], reply.stages_ms["cpu"]) > 0
        assert head.counts()["compilations"] >= 0
        assert head.score(workload).cached_tokens
        head.forget()
        assert head.score(workload).cached_tokens == 0
    finally:
        head.close()
        head.close()


def test_an_engine_that_does_not_start_says_why(checkpoint: Path) -> None:
    with pytest.raises(TargetUnavailable, match=r"worker of the .* ended.*chunked_pre"):
        Side(REPOSITORY, checkpoint, {"chunked_prefil_size": 256})
