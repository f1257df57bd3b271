"""The report in a browser: every plot is drawn, nothing is loaded, nothing complains."""

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from mis_bench.cli import main
from mis_bench.report.plots import COLOURS
from page_parts import Page, tables_of_html
from playground_pages import Watched
from report_sources import case, compare, write_everything, write_results

OVERPRINTED = """() => [...document.querySelectorAll(".plot")].flatMap((plot) => {
  const names = [...plot.querySelectorAll(".legendtext, .ytick text, .xtick text, .xtitle, .ytitle")];
  const boxes = names.map((name) => [name.textContent, name.getBoundingClientRect()]);
  return boxes.flatMap(([text, a], place) => boxes.slice(place + 1)
    .filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2)
    .map(([other]) => `${plot.id}: ${text} / ${other}`));
})"""
"""Which names of a plot lie on each other."""

COLOURS_OF = """async (picture) => {
  const image = new Image();
  image.src = `data:image/png;base64,${picture}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const counts = {};
  const { data } = context.getImageData(0, 0, image.width, image.height);
  for (let pixel = 0; pixel < data.length; pixel += 4) {
    const colour = `${data[pixel]},${data[pixel + 1]},${data[pixel + 2]}`;
    counts[colour] = (counts[colour] ?? 0) + 1;
  }
  return counts;
}"""
"""How many pixels of a picture have each colour."""

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


def colours_of(picture: bytes, open_page: Open) -> dict[str, int]:
    """Count the pixels of a PNG by colour, on a page that may load a picture."""
    return open_page("about:blank").page.evaluate(COLOURS_OF, base64.b64encode(picture).decode())


def test_the_page_of_a_comparison_is_drawn_in_full(tmp_path: Path, open_page: Open) -> None:
    compare(tmp_path / "compare")
    output = tmp_path / "report.html"
    done = CliRunner().invoke(main, ["report", str(tmp_path / "compare"), "--output", str(output)])
    assert done.exit_code == 0, done.output
    watched, page = render(output.read_text(), tmp_path, open_page)
    assert watched.complaints == []
    tables = tables_of_html(watched.page.content())
    portable = tables["Portable view of compare: all targets in the same calls"]
    assert {row["items/s verdict"] for row in portable} == {"better", "-"}
    (plot,) = page.plots
    assert page.marks[plot] >= 2
    section = watched.page.locator("section", has=watched.page.get_by_role("heading", name="Compare"))
    for part, most in ((section, 0.98), (watched.page.locator(f"#{plot}"), 0.99)):
        colours = colours_of(part.screenshot(), open_page)
        assert len(colours) > 20, "text and lines have edges of many shades"
        assert max(colours.values()) < most * sum(colours.values())
    red, green, blue = (int(COLOURS[0][at : at + 2], 16) for at in (1, 3, 5))
    assert colours[f"{red},{green},{blue}"] > 20, "points are there in their colour"


def test_a_blank_picture_would_be_noticed(tmp_path: Path, open_page: Open) -> None:
    watched, _ = render("<!doctype html><title>x</title>", tmp_path, open_page)
    assert len(colours_of(watched.page.screenshot(), open_page)) == 1


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
