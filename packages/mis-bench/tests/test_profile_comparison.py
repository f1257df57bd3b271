"""Two profiles beside each other, as a user compares them."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mis_bench.cli import main
from mis_bench.profile.comparison import changes
from mis_bench.profile.records import Profile, Slice
from report_artifacts import profile, validation


def stages(**ms: float) -> list[Slice]:
    return [Slice(name=name, ms=each, count=2) for name, each in ms.items()]


def compared(tmp_path: Path, before: Profile, after: Profile, *options: str) -> Result:
    before.write(tmp_path / "before" / "profile.json")
    after.write(tmp_path / "after" / "profile.json")
    folders = str(tmp_path / "before"), str(tmp_path / "after")
    return CliRunner().invoke(main, ["compare-profiles", *folders, *options])


def changed(**fields: Any) -> Profile:
    return profile().model_copy(update=fields)


def test_shares_are_compared_and_not_times() -> None:
    before = changed(stages=stages(attention=30.0, down=60.0, embed=10.0))
    after = changed(stages=stages(attention=120.0, down=60.0, norm=20.0))
    found = {each.stage: (each.before, each.after, each.points) for each in changes(before, after)}
    assert found == {"attention": (30, 60, 30), "down": (60, 30, -30), "norm": (0, 10, 10), "embed": (10, 0, -10)}


def test_a_stage_that_moved_is_named_and_fails(tmp_path: Path) -> None:
    before = changed(stages=stages(attention=30.0, down=60.0, norm=10.0))
    after = changed(stages=stages(attention=36.0, down=54.0, norm=10.0))
    result = compared(tmp_path, before, after)
    assert result.exit_code == 1
    assert "Moved by more than 5 points: attention, down." in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["attention", "30", "36", "+6.0", "moved"] in rows
    assert ["norm", "10", "10", "+0.0", "-"] in rows
    assert compared(tmp_path, before, after, "--points", "7").exit_code == 0


def test_profiles_alike_say_what_each_is_of(tmp_path: Path) -> None:
    result = compared(tmp_path, profile(), profile())
    assert result.exit_code == 0, result.output
    assert "Moved by more than 5 points: no stage." in result.stdout
    assert profile().environment.hardware in result.stdout


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"scenario": "kernels"}, "scenario was end-to-end and is kernels"),
        ({"points": []}, "workloads was probe-128-8-20"),
        ({"environment": profile().environment.model_copy(update={"hardware": "a TPU"})}, "and is a TPU"),
        ({"stages": []}, "the second has no time by stage"),
    ],
)
def test_profiles_of_something_else_are_not_compared(tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    result = compared(tmp_path, profile(), changed(**fields))
    assert result.exit_code == 2
    assert why in " ".join(result.stderr.split())


def test_another_document_is_no_profile(tmp_path: Path) -> None:
    validation().write(tmp_path / "validation.json")
    profile().write(tmp_path / "profile.json")
    arguments = ["compare-profiles", str(tmp_path), str(tmp_path / "validation.json")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "is not a profile but a mis-validation-v3" in " ".join(result.stderr.split())
