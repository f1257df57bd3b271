"""Puts into sdist and wheel which commit they are made of: `commit.json` of the package.

Every package has this file, since each of their sdists must build alone; a test keeps them the same.
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "commit.json"
_PREFIX = "commit-"


def commit_of(root: Path) -> dict[str, Any]:
    """Return commit and `is_dirty` of the checkout that tracks a folder; raises `LookupError`: there is none."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "pyproject.toml")  # it may lie in a repository that is another's
        return {"commit": git("rev-parse", "HEAD"), "is_dirty": bool(git("status", "--porcelain"))}
    except subprocess.CalledProcessError as error:
        raise LookupError(next(iter(error.stderr.strip().splitlines()), "git fails")) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise LookupError(str(error)) from error


def add_commit(root: Path, target: str, version: str, build_data: dict[str, Any]) -> str | None:
    """Add the file to what is built; return why that is impossible, or None.

    Nothing is written below `root`. An sdist has the file already; what is installed editable asks git when it runs.
    """
    package = next((root / "src").glob("*/__init__.py")).parent
    if version == "editable" or (package / NAME).exists():
        return None
    try:
        found = commit_of(root)
    except LookupError as error:
        return str(error)
    path = Path(tempfile.mkdtemp(prefix=_PREFIX), NAME)
    path.write_text(json.dumps(found) + "\n", encoding="utf-8")
    build_data["force_include"][str(path)] = f"{'' if target == 'wheel' else 'src/'}{package.name}/{NAME}"
    return None


def clear(build_data: dict[str, Any]) -> None:
    """Remove what `add_commit` wrote, once all is built."""
    for path in map(Path, build_data["force_include"]):
        if path.name == NAME and path.parent.name.startswith(_PREFIX):
            shutil.rmtree(path.parent, ignore_errors=True)


class SourceCommit(BuildHookInterface):
    """Says of which commit the package is."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, or warn that there is none."""
        reason = add_commit(Path(self.root), self.target_name, version, build_data)
        if reason is not None:
            self.app.display_warning(f"The commit of this package is unknown: {reason}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave nothing behind."""
        clear(build_data)
