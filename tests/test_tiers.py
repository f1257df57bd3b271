"""The tiers that need an accelerator hold what they promise, and none passes without a test."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MARKED = ("packages/mis-kernels/tests", "packages/mis-core/tests/test_accelerators.py")


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.full
@pytest.mark.parametrize(("tier", "least"), [("tpu", 40), ("gpu", 25)])
def test_a_tier_holds_many_different_tests(tier: str, least: int) -> None:
    done = run_pytest("--collect-only", "-q", "--tier", tier, *MARKED)
    assert done.returncode == 0, done.stdout[-2000:]
    functions = {line.split("[")[0] for line in done.stdout.splitlines() if "::" in line}
    assert len(functions) >= least, sorted(functions)


def test_a_selection_of_no_test_fails() -> None:
    done = run_pytest("-n", "1", "-m", "tpu and tpu_aot", "tests/test_versions.py")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout[-2000:]


def test_a_test_marked_tpu_that_does_not_emulate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.tpu\ndef test_it(): pass\n", encoding="utf-8")
    done = run_pytest("-c", str(ROOT / "pyproject.toml"), "-p", "conftest", str(tmp_path))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "takes the fixture `interpret`" in done.stdout + done.stderr


TESTS = """
import pytest
@pytest.mark.quick
def test_quick(): pass
@pytest.mark.quick
@pytest.mark.full
def test_long(): pass
@pytest.mark.gpu
@pytest.mark.parametrize("case", [1, pytest.param(2, marks=pytest.mark.full)])
def test_cases(case): pass
@pytest.mark.tpu_aot
def test_compiled(): pass
"""


def run_in(folder: Path, *arguments: str) -> list[str]:
    done = run_pytest("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "conftest", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_table_counts_the_tests_of_each_tier(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "test_other.py").write_text("def test_it(): pass\n", encoding="utf-8")
    rows = [line.split() for line in run_in(tmp_path, "--tiers", str(tmp_path))]
    first = rows.index(["quick", "cpu", "full", "tpu", "gpu", "tpu_aot"])
    assert rows[first + 1 : first + 4] == [
        ["test_it.py", "1", "2", "4", "-", "2", "1"],
        ["test_other.py", "-", "1", "1", "-", "-", "-"],
        ["all", "1", "3", "5", "-", "2", "1"],
    ]


@pytest.mark.parametrize(
    ("tier", "ids"),
    [
        pytest.param("quick", ["test_it.py::test_quick"], marks=pytest.mark.full),
        ("cpu", ["test_it.py::test_quick", "test_it.py::test_cases[1]", "test_other.py::test_it"]),
        pytest.param("gpu", ["test_it.py::test_cases[1]", "test_it.py::test_cases[2]"], marks=pytest.mark.full),
        pytest.param("tpu_aot", ["test_it.py::test_compiled"], marks=pytest.mark.full),
    ],
)
def test_a_tier_is_run_alone(tier: str, ids: list[str], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "test_other.py").write_text("def test_it(): pass\n", encoding="utf-8")
    lines = run_in(tmp_path, "--collect-only", "-q", "--tier", tier, str(tmp_path))
    assert [line for line in lines if "::" in line] == ids


def test_what_runs_before_a_commit_is_there() -> None:
    files = [*ROOT.glob("packages/*/tests/**/test_*.py")]
    assert len([file for file in files if "mark.quick" in file.read_text(encoding="utf-8")]) > 10
