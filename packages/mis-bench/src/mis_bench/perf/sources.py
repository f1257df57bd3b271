"""The engine's sources of both sides, each complete in a folder of its own, native library included.

Both are trees of git, extracted in the same way under names of the same length: the base of a commit, the head of the
working tree as it is when the comparison begins, so that editing may go on. Paths of different length alone can move
timings by several percent, since they shift the stack (Mytkowicz et al.: Producing wrong data without doing anything
obviously wrong, 2009).
"""

import contextlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from mis_bench.targets.target import TargetUnavailable

SIDES = ("base", "head")

PACKAGES = ("packages/mis-kernels", "packages/mis-core")
"""What is compared: the engine and all that it runs on in this repository."""

_BUILD, _NATIVE = f"{PACKAGES[0]}/hatch_build.py", f"{PACKAGES[0]}/native"
_LIBRARY = f"{PACKAGES[0]}/src/mis_kernels/lib"


class PerfError(TargetUnavailable):
    """The sides cannot be compared; one sentence says why and what would help."""


@dataclass(frozen=True, slots=True)
class PerfSources:
    """Both sides.

    Attributes:
        folder: Holds a folder for each side, `base` and `head`.
        commits: By side, forty hexadecimal digits; behind the head's `with changes`, if the working tree has some.
        are_equal: Whether both sides have the same files: then any difference is noise.
    """

    folder: Path
    commits: dict[str, str]
    are_equal: bool


def pythonpath(side: Path) -> str:
    """Return the `PYTHONPATH` of a side's folder."""
    return ":".join(str(side / package / "src") for package in PACKAGES)


def check_out(repository: Path, base: str | None, folder: Path) -> PerfSources:
    """Extract both sides and compile their native libraries.

    Args:
        repository: The working tree, a git checkout.
        base: Commit to compare with, or None for `default_base`.
        folder: For the sides; made if need be.

    Raises:
        PerfError: git does not know the commit, or a native library does not compile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tree = _tree(repository, folder / "index")
    is_dirty = not _are_same(repository, "HEAD", tree, *PACKAGES)
    commit = resolve(repository, base or default_base(repository, is_dirty))
    for side, content in zip(SIDES, (commit, tree), strict=True):
        archive = _git(repository, "archive", "--format=zip", content, *PACKAGES)
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            files.extractall(folder / side)
    _compile(folder / "base")
    if not _are_same(repository, commit, tree, _BUILD, _NATIVE):
        _compile(folder / "head")
    elif (folder / "base" / _LIBRARY).is_dir():  # half a minute saved, and the same bytes on both sides
        shutil.copytree(folder / "base" / _LIBRARY, folder / "head" / _LIBRARY)
    head = resolve(repository, "HEAD") + (" with changes" if is_dirty else "")
    return PerfSources(folder, {"base": commit, "head": head}, are_equal=_are_same(repository, commit, tree, *PACKAGES))


def default_base(repository: Path, is_dirty: bool) -> str:
    """Return the commit before the change: where the branch left main, or, on main, the commit before.

    With uncommitted changes on main that is HEAD, else its parent.
    """
    head = resolve(repository, "HEAD")
    for main in ("origin/main", "main"):
        with contextlib.suppress(PerfError):  # there is no such branch
            found = _git(repository, "merge-base", "HEAD", main).decode().strip()
            if found != head:
                return found
    return "HEAD" if is_dirty else "HEAD~1"


def resolve(repository: Path, name: str) -> str:
    """Return the full name of a commit; raises `PerfError` if there is none of that name here."""
    try:
        return _git(repository, "rev-parse", "--verify", f"{name}^{{commit}}").decode().strip()
    except PerfError:
        raise PerfError(
            f"There is no commit {name[:80]!r} in {repository}; name one with --base, or fetch more history."
        ) from None


def _tree(repository: Path, index: Path) -> str:
    """Return the working tree as a tree of git, with new and without deleted files; the index stays as it is."""
    git = {"GIT_INDEX_FILE": str(index)}
    _git(repository, "read-tree", "HEAD", **git)
    _git(repository, "add", "--all", "--", *PACKAGES, **git)
    return _git(repository, "write-tree", **git).decode().strip()


def _are_same(repository: Path, base: str, head: str, *paths: str) -> bool:
    return not _git(repository, "diff-tree", "-r", "--name-only", base, head, "--", *paths)


def _compile(side: Path) -> None:
    """Compile a side's native library, where its version has one and this machine can."""
    if not (side / _BUILD).is_file():
        return
    done = subprocess.run([sys.executable, str(side / _BUILD)], capture_output=True, text=True, check=False)
    if "Traceback" in done.stderr:  # where it merely is for other machines, it says so in a sentence
        raise PerfError(f"The native library of the {side.name} does not compile:\n{done.stderr[-2000:]}")


def _git(repository: Path, *arguments: str, **variables: str) -> bytes:
    command = ["git", "-C", str(repository), *arguments]
    done = subprocess.run(command, capture_output=True, check=False, env=os.environ | variables)
    if done.returncode:
        raise PerfError(f"git {arguments[0]} in {repository}: {done.stderr.decode().strip()}")
    return done.stdout
