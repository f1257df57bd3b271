"""How a request was laid out, drawn from the reply or from a file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from mis_testing.server import RunningServer
from playground_pages import Watched, address, ask, enter_key, send

Open = Callable[..., Watched]


@pytest.fixture
def three_steps(server: RunningServer, open_page: Open) -> tuple[Watched, dict[str, Any]]:
    """The page with a request of three steps of 256 tokens: two for the query, one for the items; its layout."""
    items = "\n".join(text_of(server, word, 40) for word in ("three ", "four ", "five "))
    watched = open_page(address(server, query=text_of(server, "one two ", 400), items=items, suffix=""))
    with watched.page.expect_response("**/v1/score") as answered:
        watched.page.click("#compare")
        expect(watched.page.locator(".run")).to_have_count(2, timeout=60_000)
    return watched, answered.value.json()["layout"]


def text_of(server: RunningServer, words: str, tokens: int) -> str:
    """Words repeated, about so many tokens."""
    ten = ask(server, "tokenize", {"prompt": 10 * words})["count"]
    return (10 * tokens // ten) * words


def drawn(page: Page, run: str) -> list[tuple[int, float, float, bool]]:
    """Step, left edge and width in tokens of the scale, and whether it is the query, of every box of a run."""
    boxes = page.locator(f"[data-algorithm={run}] .placement").evaluate_all(
        """boxes => boxes.map((box) => [Number(box.parentElement.dataset.step), parseFloat(box.style.left),
             parseFloat(box.style.width), box.classList.contains("query")])"""
    )
    return [tuple(box) for box in boxes]


def test_each_box_is_where_the_server_says(three_steps: tuple[Watched, dict[str, Any]]) -> None:
    watched, _ = three_steps
    page = watched.page
    with page.expect_download() as saved:
        page.click("#save")
    runs = json.loads(Path(saved.value.path()).read_text())["runs"]
    assert [run["layout"]["algorithm"] for run in runs] == ["packed", "prefill_extend"]
    layouts = [run["layout"] for run in runs]
    width = max(
        max(layout["query_tokens"], *(each["row"] + each["tokens"] for each in layout["placements"]))
        for layout in layouts
    )
    for layout in layouts:
        expected = [
            (each["step"], 100 * each["row"] / width, 100 * each["tokens"] / width, each["item"] is None)
            for each in layout["placements"]
        ]
        assert drawn(page, layout["algorithm"]) == [pytest.approx(box, abs=0.01) for box in expected]
    extended = layouts[1]
    assert extended["steps"] == 3
    expect(page.locator("[data-algorithm=prefill_extend] .track[data-step]")).to_have_count(3)
    assert {each["step"] for each in extended["placements"] if each["item"] is not None} == {2}
    page.locator("[data-algorithm=prefill_extend] summary").click()
    last = extended["placements"][-1]
    shown = [last["step"] + 1, last["shard"] + 1, last["row"], last["item"] + 1, last["tokens"], last["context_tokens"]]
    expect(page.locator("[data-algorithm=prefill_extend] tbody tr").last.locator("td")).to_have_text(
        list(map(str, shown))
    )
    assert watched.complaints == []
    assert watched.overflow <= 0


def test_a_segment_shows_what_it_sees(three_steps: tuple[Watched, dict[str, Any]]) -> None:
    page = three_steps[0].page
    run = page.locator("[data-algorithm=prefill_extend]")
    run.locator(".placement.item").first.hover()
    expect(run.locator(".told")).to_contain_text("Item 1 in step")
    queries = run.locator(".placement.query").count()
    expect(run.locator(".placement.is-seen")).to_have_count(queries)
    mark = "() => parseFloat(getComputedStyle(document.querySelectorAll('.cache')[1], '::after').width)"
    held = run.locator(".cache span").bounding_box()
    assert held is not None
    assert page.evaluate(mark) == pytest.approx(held["width"], abs=1)
    run.locator(".placement.query").first.hover()
    expect(run.locator(".told")).to_contain_text("The query in step 1: 256 tokens, with nothing before.")
    expect(run.locator(".is-seen")).to_have_count(0)
    assert page.evaluate(mark) == 0


def test_steps_are_replayed(three_steps: tuple[Watched, dict[str, Any]]) -> None:
    page = three_steps[0].page
    run = page.locator("[data-algorithm=prefill_extend]")
    slider, filled = run.locator(".player input"), run.locator(".cache span")
    steps = run.locator(".track[data-step]").count()
    full = filled.bounding_box()
    slider.fill("0")
    expect(filled).to_have_count(0)
    expect(run.locator(".track.is-later")).to_have_count(steps)
    slider.fill("1")
    first = filled.bounding_box()
    assert full is not None
    assert first is not None
    assert 0 < first["width"] < full["width"]
    slider.fill(str(steps))
    run.get_by_role("button", name="Replay").click()
    expect(run.get_by_role("button", name="Replay")).to_be_visible(timeout=30_000)
    expect(slider).to_have_value(str(steps))
    expect(run.locator(".track.is-later")).to_have_count(0)


def test_a_saved_file_draws_the_same_anywhere(
    three_steps: tuple[Watched, dict[str, Any]], server: RunningServer, open_page: Open, tmp_path: Path
) -> None:
    page = three_steps[0].page
    with page.expect_download() as saved:
        page.click("#save")
    saved.value.save_as(tmp_path / "layouts.json")
    other = open_page(address(server)).page
    other.set_input_files("#open", tmp_path / "layouts.json")
    for run in ("packed", "prefill_extend"):
        assert drawn(other, run) == drawn(page, run)
    assert other.locator(".run .facts").all_inner_texts() == page.locator(".run .facts").all_inner_texts()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "This file is not JSON."),
        ("{}", "This file was not saved here."),
        ('{"format": "mis-layouts-1", "runs": [{"layout": {"algorithm": "packed"}}]}', "This is no layout"),
    ],
)
def test_another_file_is_refused(server: RunningServer, open_page: Open, text: str, told: str) -> None:
    watched = open_page(address(server))
    file = {"name": "x.json", "mimeType": "application/json", "buffer": text.encode()}
    watched.page.set_input_files("#open", file)
    expect(watched.page.locator("#layout-note")).to_contain_text(told)
    assert watched.complaints == []


def test_what_came_from_the_cache_is_marked(server: RunningServer, open_page: Open) -> None:
    page = open_page(address(server, query="six seven " * 200, items="eight", suffix="")).page
    send(page)
    send(page)
    expect(page.locator(".cache .was-cached")).to_have_count(1)
    expect(page.locator(".run .facts")).to_contain_text("from the cache")
    assert page.locator(".placement.query").count() == 0


def test_a_server_that_does_not_compare_says_what_it_needs(keyed: RunningServer, open_page: Open) -> None:
    page = open_page(address(keyed)).page
    enter_key(page)
    page.click("#compare")
    expect(page.locator("#layout-note")).to_have_text("Only a server started with --enable-request-layout compares.")
