"""The tiers that need an accelerator hold what they promise, and none passes without a test."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
MARKED = ("packages/mis-kernels/tests", "packages/mis-core/tests/test_accelerators.py")


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.full
@pytest.mark.parametrize(("mark", "least"), [("tpu", 40), ("gpu", 25)])
def test_a_tier_holds_many_different_tests(mark: str, least: int) -> None:
    done = run_pytest("--collect-only", "-q", "-m", mark, *MARKED)
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


def test_what_runs_before_a_commit_is_there() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    wanted = {"HOST_HALF", "PRETENDING", "QUICK"}
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in wanted]
    scope: dict[str, Any] = {}
    exec(compile(ast.Module(assigned, []), "noxfile.py", "exec"), scope)
    paths = [ROOT / test.partition("::")[0] for test in scope["QUICK"]]
    assert len(paths) > 10
    assert [path for path in paths if not path.exists()] == []
