"""The page of requirements says where each stands, and names tests that are there."""

import re

import pytest
from click.testing import CliRunner

from documented_commands import commands
from requirement_rows import KEPT, PAGE, STANDS, Row, read_rows, selected
from requirement_runs import Table, main

ROWS = read_rows(PAGE.read_text("utf-8"))
of_each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def test_every_requirement_is_in_the_table_once() -> None:
    numbers = [row.name for row in ROWS if re.fullmatch(r"Q\d+", row.name)]
    assert sorted(numbers, key=lambda number: int(number[1:])) == [f"Q{number}" for number in range(1, 49)]
    assert len({row.name for row in ROWS}) == len(ROWS) > 60


@of_each_row
def test_a_requirement_has_a_state_and_a_page_or_a_command(row: Row) -> None:
    assert row.stands.startswith(STANDS)
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", row.where)
    assert links or list(commands(row.where))  # commands are checked in test_doc_commands.py
    for path, anchor in links:
        page = (PAGE.parent / path).read_text("utf-8")
        headings = [heading.lower() for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)]
        assert not anchor or anchor in {re.sub(r"[^a-z0-9]+", "-", heading).strip("-") for heading in headings}


@of_each_row
def test_what_is_said_to_be_there_has_tests(row: Row) -> None:
    assert row.tests or not row.stands.startswith(KEPT)
    for name in row.tests:
        assert selected(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tests/test_nothing.py", "there is no tests/test_nothing.py"),
        ("tests/test_requirements.py::test_nothing", "has no test_nothing"),
        ("tests/conftest_of_nothing.py::test_nothing", "there is no"),
        ("tests/support/requirement_rows.py", "has no tests"),
        ("packages/mis-bench/tests/test_estimate.py::test_what_the_compiler_refuses_is_an_error", "compiler of TPUs"),
    ],
)
def test_a_name_that_selects_nothing_is_found(name: str, why: str) -> None:
    with pytest.raises(LookupError, match=why):
        selected(name)


def test_names_are_spelled_out() -> None:
    cell = "`mis-core/tasks/test_a.py::test_b` `::test_c` `tests/test_d.py`"
    (row,) = read_rows(
        f"| | requirement | stands | where | tests |\n|---|---|---|---|---|\n| Q1 | a | done | b | {cell} |"
    )
    core = "packages/mis-core/tests/tasks/test_a.py"
    assert row == Row("Q1", "a", "done", "b", (f"{core}::test_b", f"{core}::test_c", "tests/test_d.py"))
    assert selected("packages/mis-core/tests/test_scoring.py::test_large_vocabulary")[0].count("::") == 2  # its class


@of_each_row
def test_figures_of_a_row_are_in_the_reports_that_it_names(row: Row) -> None:
    reports = re.findall(r"\]\((\.\./reports/[^)#]+)", row.where)
    known = numbers(" ".join((PAGE.parent / path).read_text("utf-8") for path in reports))
    assert not reports or numbers(row.stands) <= known


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d[\d.,]*(?<![.,])", text))


def test_a_row_has_passed_if_all_cases_of_its_tests_have() -> None:
    table = Table([])
    for case, when, outcome in (
        ("a.py::test_b[1]", "setup", "passed"),
        ("a.py::test_b[1]", "call", "passed"),
        ("a.py::test_b[2]", "setup", "skipped"),
        ("a.py::TestC::test_d", "setup", "failed"),
        ("a.py::TestC::test_d", "teardown", "passed"),
        ("a.py::test_bb", "call", "passed"),
        ("a.py::test_bb", "teardown", "failed"),
    ):
        table.pytest_runtest_logreport(pytest.TestReport(case, ("a.py", 1, "b"), {}, outcome, None, when))
    assert table.ends_of("a.py::test_b") == ["passed", "skipped"]
    assert table.ends_of("a.py::test_d") == table.ends_of("a.py::test_bb") == ["failed"]
    assert len(table.ends_of("a.py")) == 4
    skipped = pytest.CollectReport("needs.py", "skipped", None, [])
    table.pytest_collectreport(skipped)
    said = [
        table.said_of(Row("Q1", "", "done", "", names))
        for names in (
            ("a.py::test_b",),
            ("a.py::test_b", "a.py::test_bb"),
            ("a.py::test_b", "needs.py"),
            ("a.py::test_e",),
        )
    ]
    assert said == ["passed", "failed", "not run", "not run"]


def test_a_row_that_is_not_there_is_named() -> None:
    done = CliRunner().invoke(main, ["Q99"])
    assert done.exit_code == 2
    assert "no row 'Q99'" in done.stderr
