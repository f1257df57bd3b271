"""Pictures for the documentation: `nox -s tests_browser -- --pictures docs/assets --served MODEL` stores them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from playwright.sync_api import expect

from mis_bench.cli import main
from mis_testing.server import RunningServer
from playground_pages import Watched, address, send
from report_sources import write_everything

Open = Callable[..., Watched]

MOST_BYTES = 300_000
QUERY = (
    "Review: I laughed from the first scene to the last, and so did everybody around me.\nSentiment: positive\n\n"
    "Review: The sound was so bad that I could not follow a word, and I left after an hour.\nSentiment: negative\n\n"
    "Review: Great actors, a clever story, and pictures that I will not forget.\nSentiment: positive\n\n"
    "Review: "
)
ITEMS = (
    "A warm and funny film.\nThe plot made no sense.\nI have never been so bored.\nSimply wonderful.\n"
    "Do not waste your money.\nI would watch it again tomorrow."
)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return request.config.getoption("--pictures") or tmp_path


def test_the_playground_has_its_picture_taken(server: RunningServer, open_page: Open, folder: Path) -> None:
    page = open_page(address(server, query=QUERY, items=ITEMS), width=1200).page
    expect(page.locator("#label-tokens li")).to_have_count(2)
    send(page)
    page.click("#compare")
    expect(page.locator(".run")).to_have_count(2, timeout=60_000)
    page.locator("[data-algorithm=prefill_extend] .placement.item").nth(2).hover()
    picture = page.screenshot(path=folder / "playground.png", full_page=True)
    assert 20_000 < len(picture) < MOST_BYTES


def test_a_report_has_its_picture_taken(open_page: Open, tmp_path: Path, folder: Path) -> None:
    write_everything(tmp_path / "results")
    done = CliRunner().invoke(main, ["report", str(tmp_path / "results"), "--output", str(tmp_path / "report.html")])
    assert done.exit_code == 0, done.output
    page = open_page((tmp_path / "report.html").as_uri(), width=1200).page
    matrix = page.locator("section", has=page.get_by_role("heading", name="Matrix")).bounding_box()
    assert matrix is not None
    clip = {"x": matrix["x"] - 40, "y": matrix["y"], "width": matrix["width"] + 80, "height": 660}
    picture = page.screenshot(path=folder / "report.png", full_page=True, clip=clip)
    assert 20_000 < len(picture) < MOST_BYTES
