"""What an artifact says of the machine and of the source that it was made with."""

import shutil
import subprocess
from pathlib import Path

import pytest

from mis_bench import environment as module
from mis_bench.environment import environment, hardware_of
from mis_bench.targets.target import About


def about(devices: str | None) -> About:
    return About("engine", "mis-engine", "a model", options={} if devices is None else {"devices": devices})


@pytest.mark.parametrize(
    ("given", "devices", "hardware"),
    [
        ("8 x TPU v7x", "1 x TPU v6 lite", "8 x TPU v7x"),
        (None, "1 x TPU v6 lite", "1 x TPU v6 lite"),
        (None, "2 x cpu", "a CPU"),
        (None, None, "a CPU"),
    ],
)
def test_what_the_user_says_goes_before_accelerators_before_the_cpu(
    given: str | None, devices: str | None, hardware: str
) -> None:
    assert hardware_of(given, about(devices), "a CPU") == hardware


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit, and the module below a folder of its own in it, not committed."""
    git(tmp_path, "init", "--quiet", "--initial-branch", "topic")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "first")
    installed = tmp_path / "venv" / "environment.py"
    installed.parent.mkdir()
    shutil.copy(module.__file__, installed)
    monkeypatch.setattr(module, "__file__", str(installed))
    return tmp_path


def test_a_package_installed_inside_another_repository_has_no_commit(repository: Path) -> None:
    found = environment()
    assert (found.commit, found.is_dirty, found.branch) == (None, None, None)


def test_a_package_that_its_repository_tracks_has_its_commit(repository: Path) -> None:
    git(repository, "add", "venv")
    assert len(environment().commit or "") == 40
    assert (environment().is_dirty, environment().branch) == (True, "topic")
    git(repository, "commit", "--quiet", "--message", "second")
    assert environment().is_dirty is False


def test_continuous_integration_names_its_trigger_and_a_tpu_machine_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_EVENT_NAME", raising=False)
    assert environment().trigger == "manual"
    monkeypatch.setenv("GITHUB_EVENT_NAME", "schedule")
    monkeypatch.setenv("TPU_ZONE", "us-east5-a")
    assert (environment().trigger, environment().variables["TPU_ZONE"]) == ("schedule", "us-east5-a")
