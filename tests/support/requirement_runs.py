"""Run the tests that rows of the page of requirements name, and print row by row whether they pass.

`nox -s requirements` runs it: `python tests/support/requirement_runs.py [ROWS]...`. A row is named by its number, or by
words of it.
"""

from collections import Counter
from collections.abc import Sequence

import click
import pytest

from requirement_rows import PAGE, Row, read_rows, selected

# Tests of a file stay together, as in other sessions: they share what they start.
OPTIONS = ("--tier=full", "--strict-skips", "-n", "3", "--dist", "loadfile")


class Table:
    """Notes how tests end, and prints it by row, as a plugin of pytest."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._ends: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ends; a failure before or after it counts as its own."""
        if report.failed or (report.outcome != "passed" and self._ends.get(report.nodeid) != "failed"):
            self._ends[report.nodeid] = report.outcome
        elif report.when == "call":
            self._ends.setdefault(report.nodeid, "passed")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note that a file cannot be read, or is skipped as a whole."""
        if report.outcome != "passed":
            self._ends[report.nodeid] = report.outcome

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        terminalreporter.section("requirements")
        width = max(len(_short(row.name)) for row in self._rows)
        for row in self._rows:
            said = self.said_of(row)
            ends = Counter(end for name in row.tests for end in self.ends_of(name))
            counts = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
            line = f"{_short(row.name):{width}}  {said:7}  {counts or 'no test'}"
            terminalreporter.write_line(line, red=said != "passed")

    def said_of(self, row: Row) -> str:
        """Return what the table says of a row: it has passed only if something of each of its names has."""
        ends = [set(self.ends_of(name)) for name in row.tests]
        if any("failed" in each for each in ends):
            return "failed"
        return "passed" if all("passed" in each for each in ends) else "not run"

    def ends_of(self, name: str) -> list[str]:
        """Return how the cases ended that a name of a file or of a test selects."""
        path, _, test = name.partition("::")
        return [end for case, end in self._ends.items() if _is_of(case, path, test)]


def _is_of(case: str, path: str, test: str) -> bool:
    file, _, rest = case.partition("::")
    return file == path and (not test or not rest or test == rest.partition("[")[0].rpartition("::")[2])


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long forms of tests to `nox -s tests_full`, where there is a short one with the same assertions."""

    def is_long(item: pytest.Item) -> bool:
        return item.get_closest_marker("full") is not None

    short = {item.nodeid.partition("[")[0] for item in items if not is_long(item)}
    long = [item for item in items if is_long(item) and item.nodeid.partition("[")[0] in short]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


@click.command()
@click.argument("rows", nargs=-1)
@click.pass_context
def main(context: click.Context, rows: tuple[str, ...]) -> None:
    """Run the tests of ROWS, or of all; exit as pytest does."""
    known = read_rows(PAGE.read_text("utf-8"))
    for text in rows:
        if not any(_is_wanted(row, text) for row in known):
            raise click.UsageError(f"{PAGE.name} has no row {text!r}.")
    wanted = [row for row in known if not rows or any(_is_wanted(row, text) for text in rows)]
    tests = dict.fromkeys(test for row in wanted for name in row.tests for test in selected(name))
    # This file is a plugin, too: processes that run tests have its hook.
    context.exit(pytest.main([*OPTIONS, "-p", "requirement_runs", *tests], plugins=[Table(wanted)]))


def _is_wanted(row: Row, text: str) -> bool:
    return text == row.name or (not row.name.startswith("Q") and text.lower() in row.name.lower())


if __name__ == "__main__":
    main()
