"""The files that a request runs through, as `docs/architecture.md` walks them."""

import re
from pathlib import Path

import pytest

from road import files_of_a_score

MOST_FILES = 57
XLA = {"mis_kernels/backends/xla/backend.py", "mis_kernels/backends/xla/tiles.py"}
"""Files of the backend that attends where no native one does, which is one file."""
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


@pytest.fixture(scope="module")
def files(checkpoint: Path) -> list[str]:
    """Files in which a function starts during a score, in that order."""
    return files_of_a_score(checkpoint)


def test_a_score_runs_through_few_files(files: list[str]) -> None:
    assert len(files) - ({*files} >= XLA) <= MOST_FILES, files


def test_the_page_walks_the_road_in_order(files: list[str]) -> None:
    section = PAGE.read_text("utf-8").split("## A request\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| \d+ \| `([^`]+)`", section, re.MULTILINE)
    assert len(rows) > 20
    assert rows == [name for name in files if name in rows]
