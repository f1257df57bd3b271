"""Versions, changelogs and the pins between packages agree."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECTS: dict[str, dict[str, Any]] = {
    path.parent.name: tomllib.loads(path.read_text())["project"]
    for path in sorted((ROOT / "packages").glob("*/pyproject.toml"))
}


def version_of(package: str) -> Version:
    module = package.replace("-", "_")
    source = (ROOT / "packages" / package / "src" / module / "__init__.py").read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__version__":
            return Version(ast.literal_eval(node.value))
    raise AssertionError(f"{module} has no literal __version__")


def requirements_of(package: str) -> list[Requirement]:
    project = PROJECTS[package]
    extras = project.get("optional-dependencies", {}).values()
    return [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]


def test_all_five_packages_are_here() -> None:
    assert sorted(PROJECTS) == ["mis-bench", "mis-core", "mis-kernels", "mis-server", "mis-testing"]


@pytest.mark.parametrize("package", PROJECTS)
def test_the_newest_changelog_entry_is_the_version(package: str) -> None:
    changelog = (ROOT / "packages" / package / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (\S+)", changelog, re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert Version(released[0]) == version_of(package)


@pytest.mark.parametrize("package", PROJECTS)
def test_pins_of_siblings_admit_only_the_minor_of_this_tree(package: str) -> None:
    for requirement in requirements_of(package):
        if requirement.name not in PROJECTS:
            continue
        version = version_of(requirement.name)
        assert version in requirement.specifier, requirement
        for other in (version.minor - 1, version.minor + 1):  # a minor version may move what the others import
            assert Version(f"{version.major}.{other}") not in requirement.specifier, requirement


@pytest.mark.parametrize("package", PROJECTS)
def test_every_requirement_has_a_lower_bound(package: str) -> None:
    for requirement in requirements_of(package):
        accelerator = requirement.name == "jax" and requirement.extras
        assert accelerator or ">=" in str(requirement.specifier), requirement


@pytest.mark.parametrize("package", PROJECTS)
def test_every_dependency_is_explained_in_the_readme(package: str) -> None:
    readme = (ROOT / "packages" / package / "README.md").read_text()
    names = {requirement.name for requirement in requirements_of(package) if requirement.name != package}
    assert {name for name in names if f"`{name}`" not in readme} == set()
