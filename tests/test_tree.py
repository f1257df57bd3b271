"""What is in the tree is small: an archive that was left lying would be cloned for ever."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_BYTES = 1 << 18


def test_no_file_is_large() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    assert [str(path) for path in paths if path.exists() and path.stat().st_size > MOST_BYTES] == []
