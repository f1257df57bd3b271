"""The report in a browser: every plot is drawn, nothing is loaded, nothing complains."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from mis_bench.cli import main
from page_parts import Page
from report_artifacts import write_everything

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: put chromium or google-chrome on PATH")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage", "--enable-logging=stderr",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=30000",
)  # fmt: skip

WATCH = """<script>
  const refused = [];
  addEventListener("securitypolicyviolation", (event) => refused.push(event.blockedURI));
  addEventListener("load", () => setTimeout(() => {
    const loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
    document.body.dataset.loaded = JSON.stringify([...loaded, ...refused]);
    document.body.dataset.overflow = document.documentElement.scrollWidth - innerWidth;
  }, 2000));
</script>"""
"""Placed at the top of the page: notes what was loaded or refused, and how far the page is too wide."""


def render(text: str, folder: Path, width: int = 1280) -> tuple[Page, list[str]]:
    """Open a page; return it as it is after its scripts ran, and the lines of the console."""
    (folder / "page.html").write_text(text.replace("<title>", f"{WATCH}<title>", 1))
    done = subprocess.run(
        [
            *(str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},1000"),
            *("--dump-dom", (folder / "page.html").as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return Page(done.stdout), [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("results")
    write_everything(folder)
    output = folder / "report.html"
    done = CliRunner().invoke(main, ["report", str(folder), "--output", str(output), "--roof", "cpu=3.2,40"])
    assert done.exit_code == 0, done.output
    return output.read_text()


@pytest.mark.parametrize("width", [1280, 500])
def test_every_plot_is_drawn_and_nothing_is_loaded(report: str, tmp_path: Path, width: int) -> None:
    page, console = render(report, tmp_path, width)
    assert console == []
    assert json.loads(page.body["data-loaded"]) == []
    assert len(page.plots) == 9
    assert set(page.marks) == set(page.plots)
    assert all(count >= 2 for count in page.marks.values()), page.marks
    assert int(page.body["data-overflow"]) <= 0
    assert set(page.areas) == set(page.plots)
    assert all(area[0] > 0.4 * width and area[1] > 80 for area in page.areas.values()), page.areas


def test_what_the_test_above_excludes_would_be_noticed(tmp_path: Path) -> None:
    text = (
        "<!doctype html><title>x</title><body><img src='http://127.0.0.1:9/x.png'>"
        "<div style='width: 3000px' class=plot id=empty>wide</div><script>missing.call()</script>"
    )
    page, console = render(text, tmp_path)
    assert any("missing is not defined" in line for line in console)
    assert json.loads(page.body["data-loaded"]) == ["http://127.0.0.1:9/x.png"]
    assert int(page.body["data-overflow"]) > 0
    assert page.plots == ["empty"]
    assert page.marks == {}
