"""Wheels say of which commit they are, built from a checkout and through the sdist; so does what runs from them."""

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from documented_commands import ROOT

PACKAGES = ("mis-bench", "mis-core", "mis-kernels", "mis-server", "mis-testing")
SHORT = "mis-testing"

ASK = "from mis_bench.environment import environment; print(environment().model_dump_json())"


class Clone:
    """A repository with some of our packages in a commit, and what is built of it."""

    def __init__(self, folder: Path, packages: tuple[str, ...]) -> None:
        self.folder, self.packages = folder / "clone", packages
        self.folder.mkdir()
        leave_out = shutil.ignore_patterns("__pycache__", "lib", ".cache", "benchmarks", "tests")
        for package in packages:
            shutil.copytree(ROOT / "packages" / package, self.folder / package, ignore=leave_out)
        (self.folder / ".gitignore").write_text("lib/\n")
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "all")
        self.commit = self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
        command = ["git", "-C", str(self.folder), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def build(self, package: str, target: str, to: Path, source: Path | None = None) -> Path:
        """Build an sdist or a wheel, of the clone or of sources elsewhere."""
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(to)]
        subprocess.run(command, cwd=source or self.folder / package, check=True, capture_output=True)
        (built,) = to.glob("*.whl" if target == "wheel" else "*.tar.gz")
        return built

    def install(self, to: Path, *, through_sdist: bool) -> Path:
        """Unpack the wheels of all packages into one folder."""
        for package in self.packages:
            source = None
            if through_sdist:
                with tarfile.open(self.build(package, "sdist", to / f"{package}-sdist")) as archive:
                    archive.extractall(to / "sources", filter="data")
                (source,) = (to / "sources").glob(f"{package.replace('-', '_')}-*")
            with zipfile.ZipFile(self.build(package, "wheel", to / f"{package}-wheel", source)) as wheel:
                wheel.extractall(to / "site-packages")
        return to / "site-packages"


def said(site: Path, package: str) -> dict[str, object]:
    return json.loads((site / package.replace("-", "_") / "commit.json").read_text())


@pytest.mark.parametrize("through_sdist", [False, True])
def test_a_wheel_names_its_commit_and_leaves_the_clone_clean(tmp_path: Path, through_sdist: bool) -> None:
    clone = Clone(tmp_path, (SHORT,))
    site = clone.install(tmp_path / "built", through_sdist=through_sdist)
    assert said(site, SHORT) == {"commit": clone.commit, "is_dirty": False}
    assert clone.git("status", "--porcelain") == ""


def test_a_dirty_clone_says_so(tmp_path: Path) -> None:
    clone = Clone(tmp_path, (SHORT,))
    (clone.folder / SHORT / "src" / "mis_testing" / "shapes.py").write_text("SHAPES = {}\n")
    site = clone.install(tmp_path / "built", through_sdist=False)
    assert said(site, SHORT) == {"commit": clone.commit, "is_dirty": True}


def test_sources_in_another_repository_say_nothing(tmp_path: Path) -> None:
    clone = Clone(tmp_path, ())
    shutil.copytree(ROOT / "packages" / SHORT, clone.folder / SHORT)
    with zipfile.ZipFile(clone.build(SHORT, "wheel", tmp_path / "built")) as wheel:
        assert not [name for name in wheel.namelist() if name.endswith("commit.json")]


@pytest.mark.full
@pytest.mark.parametrize("through_sdist", [False, True])
def test_all_five_installed_packages_give_evidence_their_commit(tmp_path: Path, through_sdist: bool) -> None:
    clone = Clone(tmp_path, PACKAGES)
    site = clone.install(tmp_path / "built", through_sdist=through_sdist)
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(site)!r}); {ASK}"]
    told = subprocess.run(
        command, cwd=tmp_path, check=True, capture_output=True, text=True, env={"JAX_PLATFORMS": "cpu"}
    )
    found = json.loads(told.stdout)
    assert (found["commit"], found["is_dirty"], found["branch"]) == (clone.commit, False, None)
    assert found["commits"] == {package: {"commit": clone.commit, "is_dirty": False} for package in PACKAGES}


def test_every_package_has_the_same_hook() -> None:
    assert len({(ROOT / "packages" / package / "hatch_commit.py").read_bytes() for package in PACKAGES}) == 1


@pytest.mark.parametrize("name", ["ci", "nightly", "tpu"])
def test_workflows_that_measure_say_the_commit(name: str) -> None:
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    assert "\nenv:\n  MIS_COMMIT: ${{ github.sha }}" in text


def test_the_benchmark_image_takes_its_commit() -> None:
    text = (ROOT / "deploy" / "kubernetes" / "benchmarks" / "Dockerfile").read_text(encoding="utf-8")
    stage = text.rpartition("\nFROM ")[2]
    assert "ARG COMMIT" in stage
    assert "ENV MIS_COMMIT=$COMMIT" in stage
