"""The engine's sources of both sides, each complete in a folder of its own, native library included.

Both are copies, put in place in the same way under names of the same length: the base from a commit, the head from
the working tree as it is when the comparison begins, so that editing may go on. Paths of different length alone can
move timings by several percent, since they shift the stack (Mytkowicz et al.: Producing wrong data without doing
anything obviously wrong, 2009).
"""

import filecmp
import io
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path


class PerfError(RuntimeError):
    """The comparison cannot be made; one sentence says why and what would help."""


PACKAGES = ("packages/mis-kernels", "packages/mis-core")
"""What is compared: the engine and all that it runs on in this repository."""

_KERNELS = Path(PACKAGES[0])
_LIBRARY = _KERNELS / "src/mis_kernels/lib/native.so"
_BUILD = _KERNELS / "hatch_build.py"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the two sides lie.

    Attributes:
        base: Folder of the base.
        head: Folder of the head.
        base_commit: Forty hexadecimal digits.
        head_commit: The commit that the working tree is on.
        is_dirty: Whether the head's packages differ from its commit.
        are_equal: Whether both sides have the same files: then any difference is noise.
        native: Why there is no native library, or None if there is one, the same answer for both.
    """

    base: Path
    head: Path
    base_commit: str
    head_commit: str
    is_dirty: bool
    are_equal: bool
    native: str | None


def pythonpath(side: Path) -> str:
    """Return the `PYTHONPATH` of a side."""
    return ":".join(str(side / package / "src") for package in PACKAGES)


def put_in_place(repository: Path, base: str | None, folder: Path) -> Sources:
    """Copy both sides and compile their native libraries.

    Args:
        repository: The working tree, a git checkout.
        base: Commit to compare with, or None for `default_base`.
        folder: Empty folder for the copies.

    Raises:
        PerfError: git does not know the commit, or a library does not compile on one side only.
    """
    is_dirty = bool(_git(repository, "status", "--porcelain", "--", *PACKAGES))
    name = base or default_base(repository, is_dirty)
    commit = resolve(repository, name)
    sides = folder / "base", folder / "head"
    _extract(repository, commit, sides[0])
    _copy(repository, sides[1])
    are_equal = _same(*sides, list(PACKAGES))
    reasons = [_compile(sides[0])]
    if _same(*sides, [str(_KERNELS / "native"), str(_BUILD)]):  # half a minute saved, and the same bytes on both sides
        if reasons[0] is None:
            (sides[1] / _LIBRARY).parent.mkdir(exist_ok=True)
            shutil.copy2(sides[0] / _LIBRARY, sides[1] / _LIBRARY)
        reasons *= 2
    else:
        reasons.append(_compile(sides[1]))
    if (reasons[0] is None) != (reasons[1] is None):
        which = "base" if reasons[0] else "head"
        raise PerfError(f"The native library is missing on one side only, which would decide: {which}: {reasons}.")
    head_commit = resolve(repository, "HEAD")
    return Sources(*sides, commit, head_commit, is_dirty, are_equal, reasons[0])


def default_base(repository: Path, is_dirty: bool) -> str:
    """Return the commit before the change: where the branch left main, or, on main, the commit before.

    With uncommitted changes on main that is HEAD, else its parent.
    """
    head = resolve(repository, "HEAD")
    for main in ("origin/main", "main"):
        found = _try_git(repository, "merge-base", "HEAD", main)
        if found is not None and found != head:
            return found
    return "HEAD" if is_dirty else "HEAD~1"


def resolve(repository: Path, name: str) -> str:
    """Return the full name of a commit.

    Raises:
        PerfError: there is none of that name here.
    """
    found = _try_git(repository, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if found is None:
        raise PerfError(
            f"There is no commit {name[:80]!r} in {repository}; name one with --base, or fetch more history."
        )
    return found


def _extract(repository: Path, commit: str, side: Path) -> None:
    present = [
        package for package in PACKAGES if _try_git(repository, "cat-file", "-e", f"{commit}:{package}") is not None
    ]
    if list(PACKAGES) != present:
        raise PerfError(f"Commit {commit[:12]} has no {' and '.join(set(PACKAGES) - set(present))}.")
    command = ["git", "-C", str(repository), "archive", "--format=zip", commit, *PACKAGES]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        files.extractall(side)


def _copy(repository: Path, side: Path) -> None:
    listed = _git(repository, "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *PACKAGES)
    for name in filter(None, listed.split("\0")):
        if (repository / name).is_file():  # else deleted, and not yet committed
            (side / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, side / name)


def _same(base: Path, head: Path, parts: list[str]) -> bool:
    def files(side: Path) -> dict[str, Path]:
        found = [path for part in parts for path in [side / part, *(side / part).rglob("*")] if path.is_file()]
        return {str(path.relative_to(side)): path for path in found}

    ours, theirs = files(base), files(head)
    return ours.keys() == theirs.keys() and all(filecmp.cmp(ours[name], theirs[name], shallow=False) for name in ours)


def _compile(side: Path) -> str | None:
    """Compile a side's native library; return why there is none, or None."""
    if not (side / _BUILD).is_file():
        return "this version has none"
    done = subprocess.run([sys.executable, str(side / _BUILD)], capture_output=True, text=True, check=False)
    if done.returncode == 0 and (side / _LIBRARY).is_file():
        return None
    if "hatchling" in done.stderr:
        raise PerfError("Compiling the native library needs hatchling: pip install hatchling.")
    return (done.stderr.strip().splitlines() or ["it does not compile"])[-1]


def _git(repository: Path, *arguments: str) -> str:
    found = _try_git(repository, *arguments)
    if found is None:
        raise PerfError(
            f"git {arguments[0]} fails in {repository}; --repository must be a git checkout of this project."
        )
    return found


def _try_git(repository: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
