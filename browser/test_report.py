"""The report in a browser: every plot is drawn, nothing is loaded, nothing complains."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from mis_bench.cli import main
from page_parts import Page
from playground_pages import Watched
from report_sources import case, write_everything, write_results

OVERPRINTED = """() => [...document.querySelectorAll(".plot")].flatMap((plot) => {
  const names = [...plot.querySelectorAll(".legendtext, .ytick text, .xtick text, .xtitle, .ytitle")];
  const boxes = names.map((name) => [name.textContent, name.getBoundingClientRect()]);
  return boxes.flatMap(([text, a], place) => boxes.slice(place + 1)
    .filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2)
    .map(([other]) => `${plot.id}: ${text} / ${other}`));
})"""
"""Which names of a plot lie on each other."""

Open = Callable[..., Watched]


def render(text: str, folder: Path, open_page: Open, width: int = 1280) -> tuple[Watched, Page]:
    """Open a page; return it watched, and as it is after its scripts ran."""
    file = folder / "page.html"
    file.write_text(text)
    watched = open_page(file.as_uri(), width=width)
    watched.page.wait_for_load_state()
    watched.asked.remove(file.as_uri())
    return watched, Page(watched.page.content())


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
def test_every_plot_is_drawn_and_nothing_is_loaded(report: str, tmp_path: Path, open_page: Open, width: int) -> None:
    watched, page = render(report, tmp_path, open_page, width)
    assert watched.complaints == []
    assert watched.asked == []
    assert len(page.plots) == 9
    assert watched.page.evaluate(OVERPRINTED) == []
    assert set(page.marks) == set(page.plots)
    assert all(count >= 2 for count in page.marks.values()), page.marks
    assert watched.overflow <= 0
    assert set(page.areas) == set(page.plots)
    assert all(area[0] > 0.4 * width and area[1] > 80 for area in page.areas.values()), page.areas


def test_what_the_test_above_excludes_would_be_noticed(tmp_path: Path, open_page: Open) -> None:
    text = (
        "<!doctype html><title>x</title><body><img src='http://127.0.0.1:9/x.png'>"
        "<div style='width: 3000px' class=plot id=empty><i class=legendtext>wide</i>"
        "<i class=legendtext style='position: absolute; left: 10px'>high</i></div><script>missing.call()</script>"
    )
    watched, page = render(text, tmp_path, open_page)
    assert any("missing is not defined" in complaint for complaint in watched.complaints)
    assert watched.asked == ["http://127.0.0.1:9/x.png"]
    assert watched.overflow > 0
    assert watched.page.evaluate(OVERPRINTED) == ["empty: wide / high"]
    assert page.plots == ["empty"]
    assert page.marks == {}
