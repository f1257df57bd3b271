"""The nightly profile: a script that profiles, and compares with the folder of an earlier run."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from documented_commands import ROOT
from mis_bench.artifact import read_artifact
from mis_bench.profile.records import Profile, Slice
from report_artifacts import profile

SCRIPT = ROOT / "deploy" / "nightly" / "profile.sh"

BENCH = """#!/usr/bin/env bash
if [[ "$1" == profile ]]; then
    while [[ "$1" != --output ]]; do shift; done
    mkdir -p "$2"
    cp "$MADE" "$2/profile.json"
else
    exec "{python}" -m mis_bench "$@"
fi
"""
"""`mis-bench` whose profiles are the file of the variable `MADE`; it compares them itself."""

Night = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def night(tmp_path: Path) -> Night:
    """`night("tuesday", "monday", attention=40, down=60)`: the script, with the shares that it finds."""
    program = tmp_path / "bin" / "mis-bench"
    program.parent.mkdir()
    program.write_text(BENCH.format(python=sys.executable))
    program.chmod(0o755)

    def run(*arguments: str, **shares: float) -> subprocess.CompletedProcess[str]:
        made = tmp_path / "made.json"
        stages = [Slice(name=name, ms=share, count=1) for name, share in shares.items()]
        if stages:
            profile().model_copy(update={"stages": stages}).write(made)
        variables = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "MADE": str(made)}
        command = [str(SCRIPT), *arguments]
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)

    return run


def test_a_share_that_moved_is_a_warning(night: Night, tmp_path: Path) -> None:
    first = night("monday", attention=40, down=60)
    assert first.returncode == 0, first.stderr
    assert "no earlier profile in ''; the next run is compared with this one" in first.stdout
    assert (tmp_path / "monday" / "profile-memory" / "profile.json").is_file()
    moved = night("tuesday", "monday", attention=50, down=50)
    assert moved.returncode == 0, moved.stderr
    assert "Moved by more than 5 points: attention, down." in moved.stdout
    assert "::warning title=Profile::" in moved.stdout
    same = night("wednesday", "tuesday", attention=52, down=48)
    assert same.returncode == 0, same.stderr
    assert "no stage" in same.stdout
    assert "::warning" not in same.stdout


def test_a_failed_profile_fails_a_missing_comparison_does_not(night: Night, tmp_path: Path) -> None:
    assert night("monday").returncode == 1  # there is nothing to copy
    broken = tmp_path / "sunday" / "profile" / "profile.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{}")
    done = night("monday", "sunday", attention=40, down=60)
    assert done.returncode == 0, done.stderr
    assert "It cannot be compared with sunday/profile; the next run is compared with this one." in done.stdout


@pytest.mark.full
def test_an_engine_is_profiled(checkpoint: Path, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "MODEL": str(checkpoint), "WORKLOAD": "probe-30-6-5"}
    done = subprocess.run([str(SCRIPT), "here"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = [read_artifact(tmp_path / "here" / name / "profile.json") for name in ("profile", "profile-memory")]
    assert [each.scenario for each in found if isinstance(each, Profile)] == ["kernels", "memory"]
