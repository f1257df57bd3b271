"""Which commit our packages are of: what they say themselves, the checkout they run from, or whoever started us."""

import importlib.util
import os
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

PACKAGES = ("mis-bench", "mis-core", "mis-kernels", "mis-server", "mis-testing")

_SHA = re.compile("[0-9a-f]{40}")


class SourceCommit(BaseModel):
    """The sources of a package; `commit.json` of its wheel."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    commit: str = Field(pattern=r"^[0-9a-f]{40}$")
    is_dirty: bool | None = Field(description="Whether the working tree had changes. Null: unknown.")

    def __str__(self) -> str:
        """Return the beginning of the commit, and whether there were changes."""
        return self.commit[:12] + (" with changes" if self.is_dirty else "")


class CommitsHere(NamedTuple):
    """What is known of the packages of this process."""

    commit: SourceCommit | None  # of mis-bench
    branch: str | None  # of the checkout that it runs from
    packages: dict[str, SourceCommit]  # those that know their own


def commits_here() -> CommitsHere:
    """Return the commits of our packages that are installed here.

    That of mis-bench is what its wheel says, else the checkout that it runs from, else `MIS_COMMIT`, else `GITHUB_SHA`
    where a workflow of our own repository runs.
    """
    packages: dict[str, SourceCommit] = {}
    branch = None
    for package in PACKAGES:
        spec = importlib.util.find_spec(package.replace("-", "_"))
        if spec is None or spec.origin is None:
            continue
        found = commit_of_wheel(Path(spec.origin).parent)
        if found is None:
            found, on = commit_of_checkout(Path(spec.origin))
            branch = on if package == "mis-bench" else branch
        if found is not None:
            packages[package] = found
    return CommitsHere(packages.get("mis-bench") or commit_of_variables(), branch, packages)


def commit_of_wheel(package: Path) -> SourceCommit | None:
    """Return the commit that an installed package was built of, by its folder; None if it does not say."""
    try:
        return SourceCommit.model_validate_json((package / "commit.json").read_bytes())
    except (OSError, ValidationError):
        return None


def commit_of_checkout(module: Path) -> tuple[SourceCommit | None, str | None]:
    """Return commit and branch of the checkout that tracks a file; an installed copy may lie in another repository."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(module.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", module.name)
        found = SourceCommit(commit=git("rev-parse", "HEAD"), is_dirty=bool(git("status", "--porcelain")))
        return found, git("branch", "--show-current") or None
    except (OSError, subprocess.SubprocessError, ValidationError):  # a repository may count in SHA-256
        return None, None


def commit_of_variables() -> SourceCommit | None:
    """Return what `MIS_COMMIT` says, else `GITHUB_SHA` of a workflow of the repository that our packages name."""
    told = os.environ.get("MIS_COMMIT") or (os.environ.get("GITHUB_SHA") if _is_ours() else None)
    return SourceCommit(commit=told, is_dirty=None) if told and _SHA.fullmatch(told) else None


def _is_ours() -> bool:
    """Whether a workflow runs in our repository: the one that the package's metadata have a URL of."""
    repository = os.environ.get("GITHUB_REPOSITORY", "").lower()
    try:
        urls = metadata.metadata("mis-bench").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return False
    return bool(repository) and any(url.lower().rstrip("/").endswith(f"github.com/{repository}") for url in urls)
