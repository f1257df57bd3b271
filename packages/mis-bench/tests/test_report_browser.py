"""The report in a browser: every plot is drawn, nothing is loaded, nothing complains."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from mis_bench.cli import main
from page_parts import Page
from report_sources import case, write_everything, write_results

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: put chromium or google-chrome on PATH")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage", "--enable-logging=stderr",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=30000",
)  # fmt: skip

WATCH = """<script>
  const refused = [];
  const overprinted = () => [...document.querySelectorAll(".plot")].flatMap((plot) => {
    const names = [...plot.querySelectorAll(".legendtext, .ytick text, .xtick text, .xtitle, .ytitle")];
    const boxes = names.map((name) => [name.textContent, name.getBoundingClientRect()]);
    return boxes.flatMap(([text, a], place) => boxes.slice(place + 1)
      .filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2)
      .map(([other]) => `${plot.id}: ${text} / ${other}`));
  });
  addEventListener("securitypolicyviolation", (event) => refused.push(event.blockedURI));
  addEventListener("load", () => setTimeout(() => {
    const loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
    document.body.dataset.loaded = JSON.stringify([...loaded, ...refused]);
    document.body.dataset.overflow = document.documentElement.scrollWidth - innerWidth;
    document.body.dataset.overprinted = JSON.stringify(overprinted());
  }, 2000));
</script>"""
"""Placed at the top of the page: notes what was loaded or refused, how far the page is too wide, and which names of a
plot lie on each other."""


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
    long = [f"mis=http://a-long-name-of-a-host.example.com:{port},scoring_algorithm=packed" for port in range(6)]
    cases = [(case(name, f"probe-9-{items}-3"), 20.0 + items) for name in long for items in (1, 8, 50)]
    write_results(folder / "many", "run", cases)
    write_results(folder / "names", "compare", cases[::3], reference=long[0])
    output = folder / "report.html"
    done = CliRunner().invoke(main, ["report", str(folder), "--output", str(output)])
    assert done.exit_code == 0, done.output
    return output.read_text()


@pytest.mark.parametrize("width", [1280, 500])
def test_every_plot_is_drawn_and_nothing_is_loaded(report: str, tmp_path: Path, width: int) -> None:
    page, console = render(report, tmp_path, width)
    assert console == []
    assert json.loads(page.body["data-loaded"]) == []
    assert len(page.plots) == 9
    assert json.loads(page.body["data-overprinted"]) == []
    assert set(page.marks) == set(page.plots)
    assert all(count >= 2 for count in page.marks.values()), page.marks
    assert int(page.body["data-overflow"]) <= 0
    assert set(page.areas) == set(page.plots)
    assert all(area[0] > 0.4 * width and area[1] > 80 for area in page.areas.values()), page.areas


def test_what_the_test_above_excludes_would_be_noticed(tmp_path: Path) -> None:
    text = (
        "<!doctype html><title>x</title><body><img src='http://127.0.0.1:9/x.png'>"
        "<div style='width: 3000px' class=plot id=empty><i class=legendtext>wide</i>"
        "<i class=legendtext style='position: absolute; left: 10px'>high</i></div><script>missing.call()</script>"
    )
    page, console = render(text, tmp_path)
    assert any("missing is not defined" in line for line in console)
    assert json.loads(page.body["data-loaded"]) == ["http://127.0.0.1:9/x.png"]
    assert int(page.body["data-overflow"]) > 0
    assert json.loads(page.body["data-overprinted"]) == ["empty: wide / high"]
    assert page.plots == ["empty"]
    assert page.marks == {}
