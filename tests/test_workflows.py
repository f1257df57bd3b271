"""The workflows of GitHub name what exists, and their gates open for whom they should."""

import ast
import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from documented_commands import ROOT, commands, faults, sessions
from mis_kernels.backends.native.library import LEVELS

WORKFLOWS: dict[str, Any] = {
    path.name: yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
}
JOBS = [(workflow, name, job) for workflow, each in WORKFLOWS.items() for name, job in each["jobs"].items()]
NOX = "./.github/actions/nox"


def steps() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for _, _, job in JOBS:
        for step in job.get("steps", []):
            yield job, step


def values(text: str, job: dict[str, Any]) -> list[str]:
    """Return what a value is in each job of a matrix."""
    found = re.fullmatch(r"\$\{\{ matrix\.(\w+) \}\}", text)
    if found is None:
        return [text]
    matrix, name = job["strategy"]["matrix"], found.group(1)
    return [each[name] for each in matrix["include"]] if "include" in matrix else matrix[name]


def sessions_of(job: dict[str, Any], step: dict[str, Any]) -> list[str]:
    """Return the names of a step's sessions; of one with a parameter, `name(parameter)`."""
    return [name for value in values(step["with"]["sessions"], job) for name in value.split()]


NAMED = [name for job, step in steps() if step.get("uses") == NOX for name in sessions_of(job, step)]


def test_two_lesser_cpus_are_tested_at_night() -> None:
    """Both are less than what GitHub's runners have: AVX than all, AVX2 than those with AVX-512."""
    limits, isas = (
        ast.literal_eval(node.value)
        for file, name in (("conftest.py", "LIMITS"), ("noxfile.py", "ISAS"))
        for node in ast.parse((ROOT / file).read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    assert isas == tuple(limits)
    assert set(limits) < set(LEVELS)
    named = [name.split("(")[1].removesuffix(")") for name in NAMED if name.startswith("tests_lesser_cpu(")]
    assert named == ["AVX", "AVX2"]
    assert set(named) <= set(limits)


def test_every_session_of_a_workflow_exists() -> None:
    named = {name.partition("(")[0] for name in NAMED}
    assert named <= sessions()
    everything = {
        "lint",
        "types",
        "docs",
        "workflows",
        "tests_cpu",
        "tests_full",
        "tests_tpu",
        "tpu_aot",
        "gpu_aot",
        "perf",
        "clients",
    }
    assert everything <= named


def test_a_night_installs_what_its_sessions_ask_for() -> None:
    functions = {
        node.name: ast.unparse(node)
        for node in ast.parse((ROOT / "noxfile.py").read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    job = WORKFLOWS["nightly.yml"]["jobs"]["full"]
    night = {each["session"].partition("(")[0] for each in job["strategy"]["matrix"]["include"]}
    asked = {
        name: set(found.group(1).split())
        for name in night
        if (found := re.search(r"session\.error\(.*`apt-get install ([^`]+)`", functions[name]))
    }
    steps_that_install = [step for step in job["steps"] if "apt-get" in step.get("run", "")]
    assert asked == {
        step["if"].removeprefix("matrix.session == ").strip("'"): set(step["run"].partition(" -y -qq ")[2].split())
        for step in steps_that_install
    }
    assert set(asked) == {"tests_arm", "tests_cluster"}


def test_what_workflows_call_exists() -> None:
    used = [step["uses"] for _, step in steps() if "uses" in step] + [job["uses"] for *_, job in JOBS if "uses" in job]
    local = [each for each in used if each.startswith("./")]
    assert len(local) > 10
    assert [each for each in local if not (ROOT / each).exists()] == []


def test_commands_of_workflows_get_past_their_command_lines() -> None:
    scripts = [step["run"] for _, step in steps() if ".nox/" in step.get("run", "")]
    assert len(scripts) >= 2
    for script in scripts:
        found = list(commands(f"```bash\n{script}\n```\n"))
        assert [fault for command in found for fault in faults(command)] == []


@pytest.mark.parametrize(
    ("workflow", "job", "command"),
    [
        ("nightly.yml", "stress", "deploy/nightly/profile.sh results last"),
        ("tpu.yml", "model", "mis-bench profile --scenario kernels"),
    ],
)
def test_a_profile_is_made_and_then_kept(workflow: str, job: str, command: str) -> None:
    numbered = list(enumerate(WORKFLOWS[workflow]["jobs"][job]["steps"]))
    made = [number for number, step in numbered if command in step.get("run", "")]
    kept = [number for number, step in numbered if step.get("with", {}).get("path") == "results/"]
    assert made < kept
    assert len(made) == len(kept) == 1


def test_runners_are_those_of_the_scale_sets() -> None:
    sets = {path.stem for path in (ROOT / "deploy/kubernetes/runners").glob("*.yaml")} - {"common"}
    known = yaml.safe_load((ROOT / ".github" / "actionlint.yaml").read_text())["self-hosted-runner"]["labels"]
    assert sets == set(known)
    named = {name for *_, job in JOBS if "runs-on" in job for name in values(job["runs-on"], job)}
    assert {"arc-runner-v6e-1", "arc-runner-v6e-4"} <= named
    assert {name for name in named if not name.startswith("ubuntu-")} <= sets


def test_paths_of_the_filters_exist() -> None:
    (text,) = [step["with"]["filters"] for _, step in steps() if "filters" in step.get("with", {})]
    filters = yaml.safe_load(text)
    assert set(filters) == {"code", "product", "kernels"}
    for pattern in [each for patterns in filters.values() for each in patterns]:
        head, brace, inside = pattern.removeprefix("!").partition("{")
        for part in inside.rstrip("}").split(",") if brace else [""]:
            assert next(ROOT.glob(f"{head}{part}"), None), pattern


@pytest.mark.parametrize(
    ("true", "opened", "chips"),
    [
        (set(), True, True),  # a push to main
        ({"PULL_REQUEST"}, True, False),
        ({"PULL_REQUEST", "DRAFT"}, False, False),
        ({"PULL_REQUEST", "DRAFT", "LABELLED"}, True, True),
        ({"PULL_REQUEST", "LABELLED"}, True, True),
        ({"PULL_REQUEST", "FORK"}, True, False),
        ({"PULL_REQUEST", "FORK", "LABELLED"}, True, False),  # another push, which nobody has read
        ({"PULL_REQUEST", "FORK", "LABELLED", "LABELLED_NOW"}, True, True),
    ],
)
def test_a_draft_waits_for_its_label_and_chips_for_a_reader(
    true: set[str], opened: bool, chips: bool, tmp_path: Path
) -> None:
    (gate,) = [step for _, step in steps() if step.get("id") == "gate"]
    assert true <= set(gate["env"])
    output = tmp_path / "output"
    given = {name: str(name in true).lower() for name in gate["env"]}
    env = {"PATH": "/usr/bin:/bin", "GITHUB_OUTPUT": str(output)} | given
    subprocess.run(["bash", "-euo", "pipefail", "-c", gate["run"]], env=env, check=True, capture_output=True)
    assert output.read_text() == f"open={str(opened).lower()}\nchips={str(chips).lower()}\n"


@pytest.mark.parametrize("tag", ["mis-core-v0.2.0", "mis-core-v0.3.0"])
def test_only_the_tag_of_a_packages_version_releases_it(tag: str, tmp_path: Path) -> None:
    (build,) = [step for _, step in steps() if step.get("id") == "build"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "packages" / "mis-core").mkdir(parents=True)
    for program, says in (("pip", ""), ("twine", ""), ("hatch", "[ $1 = build ] || echo 0.2.0")):
        path = tmp_path / "bin" / program
        path.write_text(f"#!/bin/sh\n{says}\n")
        path.chmod(0o755)
    output = tmp_path / "output"
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "GITHUB_OUTPUT": str(output), "TAG": tag}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", build["run"]],
        env=env,
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    if tag == "mis-core-v0.2.0":
        assert (done.returncode, output.read_text()) == (0, "package=mis-core\n")
    else:
        assert done.returncode == 1
        assert "::error::The tag is mis-core-v0.3.0, but mis-core has the version 0.2.0." in done.stdout
        assert not output.exists()


def test_a_tag_of_any_package_is_uploaded_without_a_password() -> None:
    release = WORKFLOWS["release.yml"]
    (pattern,) = release[True]["push"]["tags"]  # YAML 1.1 reads `on` as true
    packages = [each.parent.name for each in (ROOT / "packages").glob("*/pyproject.toml")]
    assert packages
    assert all(fnmatch(f"{each}-v0.3.0", pattern) for each in packages)
    publish = release["jobs"]["publish"]
    assert (publish["needs"], publish["environment"]["name"]) == ("build", "pypi")
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert publish["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert "with" not in publish["steps"][-1]
