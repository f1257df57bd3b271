"""The command line, as a user calls it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mis_bench import __version__, build_workload
from mis_bench.cli import main


@pytest.fixture
def run() -> CliRunner:
    return CliRunner()


def test_a_workload_is_printed_as_json(run: CliRunner) -> None:
    result = run.invoke(main, ["workload", "probe-5-2-3"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["request"] == build_workload("probe-5-2-3").request


def test_the_canonical_workload_is_the_default(run: CliRunner) -> None:
    assert json.loads(run.invoke(main, ["workload"]).stdout)["name"] == "canonical-2000-500-20"


def test_a_workload_is_stored_and_summed_up(run: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "workload.json"
    result = run.invoke(main, ["workload", "probe-5-2-3", "--output", str(path)])
    assert json.loads(path.read_text())["sha256"] == build_workload("probe-5-2-3").sha256
    assert result.stdout.endswith(f"probe-5-2-3, 11 tokens, sha256 {build_workload('probe-5-2-3').sha256}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["workload", "nonsense"], "Write KIND-Q-N-L"), (["workload", "--output", "no/such/dir/x"], "No such file")],
)
def test_mistakes_are_one_clear_message_and_a_failure(run: CliRunner, arguments: list[str], message: str) -> None:
    result = run.invoke(main, arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit)
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["run", "stress", "matrix", "sweep"])
@pytest.mark.parametrize(
    ("target", "message"),
    [("engine", "name one with --model"), ("nothing", "There is no target"), ("engine,x", "has no value")],
)
def test_a_target_that_cannot_be_is_one_sentence(run: CliRunner, command: str, target: str, message: str) -> None:
    test_mistakes_are_one_clear_message_and_a_failure(run, [command, "--target", target], message)


def test_the_version_is_the_packages_own(run: CliRunner) -> None:
    assert __version__ in run.invoke(main, ["--version"]).stdout
