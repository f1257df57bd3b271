"""Tables: the same cells in a terminal, in Markdown and on a page."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from mis_bench.results.rows import rows_table
from mis_bench.table import Table, escaped, number

SAMPLE = Table.of(
    "Samples",
    [("a|b", 1.5, None, "failed: why"), ("c", 1234567, None, "ok")],
    {
        "name": lambda row: row[0],
        "items/s": lambda row: row[1],
        "never": lambda row: row[2],
        "status": lambda row: row[3],
    },
)


def test_a_column_without_a_value_is_left_out() -> None:
    assert SAMPLE.header == ["name", "items/s", "status"]
    assert SAMPLE.rows == [["a|b", "1.5", "failed: why"], ["c", "1,234,567", "ok"]]


def test_numbers_are_right_aligned_and_pipes_do_not_break_a_row() -> None:
    assert SAMPLE.as_markdown().splitlines() == [
        "Samples:",
        "",
        "| name | items/s | status |",
        "| --- | ---: | --- |",
        r"| a\|b | 1.5 | failed: why |",
        "| c | 1,234,567 | ok |",
    ]


def test_names_that_are_the_same_in_every_row_are_left_out() -> None:
    row = dict.fromkeys(("dtype", "items_per_second", "ratio", "requests_per_second", "latency")) | {
        "name": "a", "target": "t", "workload": "w", "cache": "cold", "load": "1 caller", "num_items": 3, "calls": 2,
        "num_labels": 2, "failures": {}, "wins": False, "status": "ok", "objections": [], "goodput_rps": None,
        "chunk_p95_ms": None, "first_ms": None, "steps_per_call": None, "items_per_usd": None, "max_abs": None,
        "mean_abs": None, "compilations": None, "limit_share": None,
    }  # fmt: skip
    rows: list[Any] = [SimpleNamespace(**row), SimpleNamespace(**row | {"name": "b", "num_items": 4})]
    assert rows_table("t", rows).header == ["row", "items", "calls", "status"]
    assert rows_table("t", rows[:1]).header == ["row", "calls", "status"]


def test_without_a_terminal_captions_are_one_line_of_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    caption = "a caption " * 30
    Table(caption, ["[bold]head"], [["[red]cell"]]).show()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == caption
    assert "[bold]head" in lines[1]
    assert any("[red]cell" in line for line in lines)


MARKUP = "".join(map(chr, range(ord(" "), ord("a"))))  # signs, digits, capitals


def shown(markdown: str) -> list[str]:
    """Return the text of every heading, paragraph and cell, as GitHub's Markdown shows it."""
    parsed = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown)
    return ["".join(part.content for part in each.children or ()) for each in parsed if each.type == "inline"]


def kinds(markdown: str) -> set[str]:
    """Return what a text is made of."""
    parsed = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown)
    return {part.type for each in parsed for part in (each, *(each.children or ()))}


@example("<b>x</b> *a* __b__ [c](http://d) ![e](f) `g` | ~~h~~ &lt; \\ #")
@example("1. one")
@example("- a")
@example("## a")
@example("> a")
@given(st.text(MARKUP + "ab~_`|", min_size=1).map(str.strip).filter(bool))
def test_no_text_is_markup(text: str) -> None:
    line = " ".join(text.split())
    heading, item = f"# {escaped(text)}", f"- {escaped(text)}x"
    assert shown(heading) == [line]
    assert kinds(heading) == {"heading_open", "inline", "text", "heading_close"}
    assert shown(item) == [f"{line}x"]
    table = Table(text, [text, "b"], [["c", text]]).as_markdown()
    assert shown(table) == [f"{line}:", line, "b", "c", line]


def test_what_markup_would_do_is_noticed() -> None:
    """The parser that proves the line above sees what it is to see."""
    assert {"em_open", "code_inline"} <= kinds("# *a* `b`")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (65.14, "65.1"),
        (30123.0, "30,100"),
        (30123, "30,123"),
        (3e-4, "0.0003"),
        (-2.5, "-2.5"),
    ],
)
def test_numbers_have_no_exponents(value: float | None, text: str) -> None:
    assert number(value) == text
    assert Table("t", ["n"], [[text]]).is_numeric(0)


@given(st.floats(min_value=1e-9, max_value=1e12))
def test_a_number_is_its_three_digits(value: float) -> None:
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=5e-3)
