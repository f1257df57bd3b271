"""What an artifact says of the machine and of the source that it was made with."""

import os
import re
import subprocess
from email.message import Message
from pathlib import Path
from types import SimpleNamespace

import pytest

from mis_bench.environment import cpu_name, environment, hardware_of
from mis_bench.targets.target import About

CPU = "processor\t: 0\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\n\n"
"""What Linux says of a CPU of a guest that is not told which one it is."""


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
def test_the_user_decides_before_accelerators_before_the_cpu(
    given: str | None, devices: str | None, hardware: str
) -> None:
    assert hardware_of(given, about(devices), "a CPU") == hardware


def test_a_cpu_is_told_from_another_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = tmp_path / "cpuinfo"
    facts.write_text(CPU.format(family=26, model=2) + CPU.format(family=0, model=0))
    monkeypatch.setattr("mis_bench.environment.CPUINFO", facts)
    monkeypatch.setattr("mis_kernels.backends.native.library.level", lambda: "AMX")
    assert cpu_name() == f"AMD EPYC (family 26, model 2), {os.cpu_count()} cores, AMX"
    facts.write_text("processor : 0\nBogoMIPS : 50.00\n")
    monkeypatch.setattr("mis_kernels.backends.native.library.level", lambda: None)
    assert re.fullmatch(rf"[^(]+, {os.cpu_count()} cores", cpu_name())


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit, and our package below a folder of its own in it, not committed."""
    git(tmp_path, "init", "--quiet", "--initial-branch", "topic")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "first")
    installed = tmp_path / "venv" / "mis_bench" / "__init__.py"
    installed.parent.mkdir(parents=True)
    installed.touch()
    found = {"mis_bench": SimpleNamespace(origin=str(installed))}
    monkeypatch.setattr("mis_bench.commits.importlib.util.find_spec", found.get)
    for name in ("MIS_COMMIT", "GITHUB_SHA", "GITHUB_REPOSITORY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_package_installed_in_another_repository_has_no_commit(repository: Path) -> None:
    found = environment()
    assert (found.commit, found.is_dirty, found.branch) == (None, None, None)


def test_a_package_that_its_repository_tracks_has_its_commit(repository: Path) -> None:
    git(repository, "add", "venv")
    assert len(environment().commit or "") == 40
    assert (environment().is_dirty, environment().branch) == (True, "topic")
    git(repository, "commit", "--quiet", "--message", "second")
    assert environment().is_dirty is False


def wheel_says(repository: Path, text: str) -> None:
    (repository / "venv" / "mis_bench" / "commit.json").write_text(text)


ONE, TWO = "1" * 40, "2" * 40


def test_the_wheel_decides_before_the_checkout_and_variables(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIS_COMMIT", TWO)
    assert (environment().commit, environment().is_dirty) == (TWO, None)
    git(repository, "add", "venv")
    git(repository, "commit", "--quiet", "--message", "second")
    assert environment().commit not in (None, TWO)
    wheel_says(repository, f'{{"commit": "{ONE}", "is_dirty": true}}')
    found = environment()
    assert (found.commit, found.is_dirty, found.branch) == (ONE, True, None)
    assert str(found.commits["mis-bench"]) == "111111111111 with changes"
    wheel_says(repository, "{}")
    assert environment().commit not in (None, ONE, TWO)


@pytest.mark.parametrize(("told", "commit"), [(ONE, ONE), ("main", None), ("", None), (ONE[1:], None)])
def test_only_a_whole_commit_is_one(repository: Path, monkeypatch: pytest.MonkeyPatch, told: str, commit: str) -> None:
    monkeypatch.setenv("MIS_COMMIT", told)
    assert environment().commit == commit


@pytest.mark.parametrize(("runs_in", "commit"), [("us/mis", ONE), ("them/mis", None), ("", None)])
def test_the_commit_of_a_workflow_counts_in_our_repository_only(
    repository: Path, monkeypatch: pytest.MonkeyPatch, runs_in: str, commit: str | None
) -> None:
    said = Message()
    said["Project-URL"] = "Repository, https://github.com/us/mis"
    monkeypatch.setattr("mis_bench.commits.metadata.metadata", {"mis-bench": said}.__getitem__)
    monkeypatch.setenv("GITHUB_SHA", ONE)
    monkeypatch.setenv("GITHUB_REPOSITORY", runs_in)
    assert environment().commit == commit


def test_ci_names_its_trigger_and_a_tpu_machine_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_EVENT_NAME", raising=False)
    assert environment().trigger == "manual"
    monkeypatch.setenv("GITHUB_EVENT_NAME", "schedule")
    monkeypatch.setenv("TPU_ZONE", "us-east5-a")
    assert (environment().trigger, environment().variables["TPU_ZONE"]) == ("schedule", "us-east5-a")
