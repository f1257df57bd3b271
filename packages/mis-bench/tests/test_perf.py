"""`mis-bench perf`: two versions put in place, taking turns, judged, and put beside stored figures."""

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mis_bench.artifacts.base import read_artifact
from mis_bench.artifacts.perf import Baseline, PerfResult
from mis_bench.cli import main
from mis_bench.perf import compare as module
from mis_bench.perf.errors import PerfError
from mis_bench.perf.sources import default_base, put_in_place, resolve

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
        says = {"slowdown": slowdown, "platform": "cpu", "native": True} | more
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
    """Run the command on the repository."""
    return runner(checkout, checkpoint, monkeypatch)


def runner(checkout: Checkout, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return the command on a repository, with workers that compute nothing."""
    starter = module.starter
    monkeypatch.setattr(module, "starter", lambda *arguments: starter(*arguments, worker=WORKER))
    monkeypatch.setattr(module, "PAIRS", 10)
    monkeypatch.setattr("mis_bench.perf.judge._RESAMPLES", 300)

    def run(*arguments: str) -> Result:
        command = ["perf", "--repository", str(checkout.path), "--model", str(checkpoint), *arguments]
        return CliRunner().invoke(main, command)

    return run


def test_unchanged_code_passes(checkout: Checkout, perf: Callable[..., Result], tmp_path: Path) -> None:
    checkout.commit("second")
    result = perf("--output", str(tmp_path / "perf.json"))
    assert result.exit_code == 0, result.output
    assert "every difference is noise" in result.stdout
    found = read_artifact(tmp_path / "perf.json")
    assert isinstance(found, PerfResult)
    assert (found.verdict, found.sources_are_equal) == ("ok", True)
    assert list(found.inconsistencies()) == []
    assert found.base_commit == checkout.git("rev-parse", "HEAD~1")
    assert {each.head.batch_size for each in found.workloads} >= {1, 4, 16}


def test_artifacts_are_valid(checkout: Checkout, perf: Callable[..., Result], tmp_path: Path) -> None:
    checkout.speed(1.2)
    folder = tmp_path / "artifacts"
    assert perf("--output", str(folder / "perf.json"), "--baselines", str(folder), "--update-baseline").exit_code == 1
    assert len(list(folder.glob("*.json"))) == 2
    valid = CliRunner().invoke(main, ["validate-artifacts", str(folder)])
    assert valid.exit_code == 0, valid.output


Fields = dict[str, Any]
PLANTED: dict[str, tuple[Callable[[Fields], object], str]] = {
    "verdict": (lambda f: f.update(verdict="ok"), "verdict is ok"),
    "slower called ok": (
        lambda f: f["workloads"][0]["judgement"].update(
            status="ok", throughput={"value": -0.5, "low": -0.51, "high": -0.49, "confidence": f["confidence"]}),
        "status is ok by clock, but the intervals make it fail by clock",
    ),
    "decided by the other": (lambda f: f["workloads"][0]["judgement"].update(by="cpu"), "by cpu, but the intervals"),
    "a wider limit": (lambda f: f["workloads"][0]["judgement"].update(limit=0.5), "limit is 0.5"),
    "a narrower interval": (
        lambda f: f["workloads"][0]["judgement"]["throughput"].update(confidence=0.5), "throughput.confidence is 0.5",
    ),
    "less confidence": (lambda f: f.update(confidence=0.5), "confidence is 0.5"),
    "tail called ok": (lambda f: f["workloads"][0]["tails"][0].update(status="ok"), "but the rise makes it fail"),
    "tail of others": (lambda f: f["workloads"][0]["tails"][1].update(head_ms=9.0), "head_ms is 9.0"),
    "rise of others": (
        lambda f: f["workloads"][0]["tails"][0]["rise"].update(value=0.0, low=0.0), "rise.value is 0.0",
    ),
    "too few calls": (lambda f: f["workloads"][0]["tails"][0].update(is_enough=False), "is_enough is False of"),
    "no tails": (lambda f: f["workloads"][0].update(tails=[]), "tails are not p95 and p99"),
    "calls of others": (lambda f: f["workloads"][0]["base"].update(successful_runs=9), "successful_runs is 9"),
    "throughput": (lambda f: f["workloads"][0]["head"].update(throughput_ips=9.0), "throughput_ips is 9.0"),
    "percentiles": (lambda f: f["workloads"][0]["head"].update(latency_p95_ms=9e9), "above latency_p99_ms"),
    "another request": (
        lambda f: f["workloads"][0]["head"].update(workload_sha256="0" * 64), "head.workload_sha256 is 000",
    ),
    "another model": (lambda f: f["workloads"][0]["head"].update(model="x"), "head.model is x"),
    "pairs": (lambda f: f.update(sessions=7), "which 7 sessions do not make"),
    "stored row called ok": (
        lambda f: f["stored"]["rows"][0].update(status="OK", reasons=[]), "but the changes make it REGRESSION",
    ),
    "stored row left out": (lambda f: f["stored"]["rows"].pop(), "rows are not those of the workloads"),
    "stored made to decide nothing": (lambda f: f["stored"].update(decides=False), "but why_not is None"),
}  # fmt: skip


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Fields:
    """Return the fields of a comparison that failed in every way."""
    folder = tmp_path_factory.mktemp("slower")
    checkout = Checkout(folder / "repository")
    with pytest.MonkeyPatch.context() as patch:
        run = runner(checkout, checkpoint, patch)
        patch.setattr(module, "PAIRS", 20)  # enough calls for p95
        assert run("--base", "HEAD", "--update-baseline").exit_code == 0
        checkout.speed(1.3)
        assert run("--output", str(folder / "perf.json")).exit_code == 1
    fields = json.loads((folder / "perf.json").read_text())
    assert list(PerfResult.model_validate(fields).inconsistencies()) == []
    return fields


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(slower: Fields, name: str) -> None:
    plant, sentence = PLANTED[name]
    fields = copy.deepcopy(slower)
    plant(fields)
    found = list(PerfResult.model_validate(fields).inconsistencies())
    assert any(sentence in fault for fault in found), found


def test_a_stored_baseline_whose_figures_contradict_each_other_is_found(
    checkout: Checkout, perf: Callable[..., Result]
) -> None:
    perf("--base", "HEAD", "--update-baseline")
    (path,) = (checkout.path / "benchmarks/baselines").glob("*.json")
    fields = json.loads(path.read_text())
    assert list(Baseline.model_validate(fields).inconsistencies()) == []
    fields["figures"][0]["throughput_ips"] *= 2
    fields["figures"][1]["dtype"] = "float32"
    faults = list(Baseline.model_validate(fields).inconsistencies())
    assert len(faults) == 2
    assert "figures.0.throughput_ips" in faults[0]
    refused = CliRunner().invoke(main, ["run", "--model", "x", "--baseline", str(path)])
    assert refused.exit_code == 2
    assert "not a mis-baseline-v1" in refused.stderr


def test_a_slowdown_of_12_percent_fails(checkout: Checkout, perf: Callable[..., Result]) -> None:
    checkout.speed(1.12)
    result = perf()
    assert result.exit_code == 1
    assert "FAIL" in result.stdout
    assert "with changes" in result.stdout


def test_a_speedup_passes(checkout: Checkout, perf: Callable[..., Result]) -> None:
    checkout.speed(0.8)
    assert perf().exit_code == 0


def test_a_head_that_lost_the_native_library_is_refused(checkout: Checkout, perf: Callable[..., Result]) -> None:
    checkout.speed(1.0, native=False)
    result = perf()
    assert result.exit_code == 1
    assert "native" in result.stderr


def test_a_library_that_compiles_on_one_side_only_is_refused(checkout: Checkout, perf: Callable[..., Result]) -> None:
    checkout.write(f"{KERNELS}/hatch_build.py", "raise SystemExit('error: expected ;')")
    result = perf()
    assert result.exit_code == 1
    assert "one side only" in result.stderr
    assert "expected ;" in result.stderr


def test_sources_that_are_not_the_sides_own_are_refused(checkout: Checkout, perf: Callable[..., Result]) -> None:
    checkout.speed(1.0, source="/usr/lib")
    result = perf()
    assert result.exit_code == 1
    assert "not the version to be measured" in result.stderr


def test_what_a_dying_worker_said_is_told(checkout: Checkout, perf: Callable[..., Result]) -> None:
    checkout.speed(1.0, dies=True)
    result = perf()
    assert result.exit_code == 1
    assert "worker of the head ended with status 1: the device is on fire" in result.stderr


def test_an_unknown_commit_is_named(perf: Callable[..., Result]) -> None:
    result = perf("--base", "nowhere")
    assert result.exit_code == 1
    assert "no commit 'nowhere'" in result.stderr


def test_an_accelerator_is_held_by_one_process_at_a_time(
    checkout: Checkout, perf: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERF_WORKER_DEVICE", str(tmp_path / "device"))
    checkout.speed(1.0, platform="tpu")
    checkout.commit("on a TPU")
    checkout.speed(1.12, platform="tpu")
    result = perf("--output", str(tmp_path / "perf.json"))
    assert result.exit_code == 1
    assert "FAIL" in result.stdout
    assert read_artifact(tmp_path / "perf.json").environment.hardware == "1 x tpu"


def test_stored_figures_decide_where_they_were_taken(
    checkout: Checkout, perf: Callable[..., Result], tmp_path: Path
) -> None:
    assert perf("--base", "HEAD", "--update-baseline").exit_code == 0
    (path,) = (checkout.path / "benchmarks/baselines").glob("*.json")
    assert isinstance(read_artifact(path), Baseline)
    checkout.speed(1.3)
    slower = checkout.commit("slower, and nobody saw it")
    result = perf("--base", slower)
    assert result.exit_code == 1
    assert "decides" in result.stdout
    assert "REGRESSION" in result.stdout


@pytest.mark.parametrize(
    ("part", "field", "value", "said"),
    [
        ("conditions", "dtype", "float32", "dtype was float32 and is bfloat16"),
        ("conditions", "model_sha256", "0" * 64, "model_sha256 was"),
        ("conditions", "versions", {"jax": "0.1"}, "jax was 0.1"),
        ("yardstick", "p50_ms", 9.0, "another state"),
    ],
)
def test_elsewhere_stored_figures_are_information(
    checkout: Checkout, perf: Callable[..., Result], part: str, field: str, value: object, said: str
) -> None:
    perf("--base", "HEAD", "--update-baseline")
    (path,) = (checkout.path / "benchmarks/baselines").glob("*.json")
    stored = json.loads(path.read_text())
    stored[part][field] = value
    path.write_text(json.dumps(stored))
    checkout.speed(1.3)
    result = perf("--base", checkout.commit("slower"))
    assert result.exit_code == 0, result.output
    assert "for information only" in result.stdout
    assert said in result.stdout


def test_figures_of_other_hardware_are_not_even_shown(checkout: Checkout, perf: Callable[..., Result]) -> None:
    perf("--base", "HEAD", "--update-baseline")
    folder = checkout.path / "benchmarks/baselines"
    (path,) = folder.glob("*.json")
    path.rename(folder / "another-machine.json")
    assert "Stored" not in perf("--base", "HEAD").stdout


def test_the_base_is_the_commit_before_the_change(checkout: Checkout) -> None:
    first = resolve(checkout.path, "HEAD")
    second = checkout.commit("second")
    assert resolve(checkout.path, default_base(checkout.path, is_dirty=False)) == first
    assert resolve(checkout.path, default_base(checkout.path, is_dirty=True)) == second
    checkout.git("switch", "-q", "-c", "branch")
    checkout.commit("third")
    checkout.commit("fourth")
    assert resolve(checkout.path, default_base(checkout.path, is_dirty=False)) == second


def test_the_head_is_the_working_tree_with_new_and_without_deleted_files(checkout: Checkout, tmp_path: Path) -> None:
    checkout.write(f"{CORE}/src/mis_core/new.py", "")
    (checkout.path / CORE / "src/mis_core/__init__.py").unlink()
    sources = put_in_place(checkout.path, "HEAD", tmp_path / "sides")
    assert sources.is_dirty
    assert not sources.are_equal
    assert (sources.head / CORE / "src/mis_core/new.py").is_file()
    assert not (sources.head / CORE / "src/mis_core/__init__.py").exists()
    assert (sources.base / CORE / "src/mis_core/__init__.py").is_file()
    for side in (sources.base, sources.head):
        assert (side / KERNELS / "src/mis_kernels/lib/native.so").read_text() == "compiled"


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PerfError, match="git checkout"):
        put_in_place(tmp_path, None, tmp_path / "sides")
