"""The page of a comparison: both views, deltas, better and worse, as in the summary, in HTML and Markdown."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bench_fakes import Done, Fakes, FakeTarget, options_of
from mis_bench.cli import main
from mis_bench.manifest import MANIFEST, VIEW
from mis_bench.results.deltas import Delta
from mis_bench.results.statistics import estimate
from mis_bench.workload import Workload
from page_parts import TableRow, tables_of_html, tables_of_markdown

Bench = Callable[..., Done]
TARGETS = options_of(["base=engine", "fast=engine,scoring_algorithm=packed", "slow=engine", "same=engine"])
FACTORS = {"base": 1.0, "fast": 0.5, "slow": 1.25, "same": 1.0}
SLOW_CALLS = {"fast": 2}
"""Targets whose calls of so many items or more are slow, so that smaller ones are their best."""


def unlike(target: FakeTarget) -> None:
    """Make targets as fast as `FACTORS` says, but for noise."""
    factor = FACTORS[target.spec.alias]
    rng = np.random.default_rng(list(FACTORS).index(target.spec.alias))

    def seconds(workload: Workload) -> float:
        is_slow = workload.num_items > SLOW_CALLS.get(target.spec.alias, 99)
        return 0.01 * factor * rng.uniform(0.95, 1.05) * (4 if is_slow else 1)

    target.seconds = seconds


@pytest.fixture
def compared(bench: Bench, fakes: Fakes) -> Done:
    fakes.prepare = unlike
    done = bench("compare", *TARGETS, "--workload", "probe-20-6-4", "--chunk-sizes", "2,6", "--rounds", "12")
    assert done.status == 0, done.said
    return done


def pages_of(folder: Path, tmp_path: Path) -> Iterator[dict[str, list[TableRow]]]:
    """Yield the tables of the page in HTML, in Markdown, and of the view beside the results."""
    html, markdown = tmp_path / "page.html", tmp_path / "page.md"
    arguments = ["report", str(folder), "--output", str(html), "--markdown", str(markdown)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    yield tables_of_html(html.read_text(encoding="utf-8"))
    yield tables_of_markdown(markdown.read_text(encoding="utf-8"))
    yield tables_of_markdown((folder / VIEW).read_text(encoding="utf-8"))


def table(tables: dict[str, list[TableRow]], begin: str) -> dict[str, TableRow]:
    """Return the table whose caption begins so, by the names of its rows."""
    (rows,) = (rows for caption, rows in tables.items() if caption.startswith(begin))
    return {row["row"]: row for row in rows}


def percents(cell: str) -> list[float]:
    return [float(part) for part in cell.removesuffix(" %").replace(",", "").split(" to ")]


def assert_is(delta: dict[str, Any], row: TableRow) -> None:
    """A row of the page is a delta of the summary."""
    for name, figure in (("items/s", delta["items_per_second"]), ("latency", delta["latency"])):
        assert percents(row[f"{name} delta"]) == pytest.approx([figure["value"]], rel=6e-3)
        assert percents(row[f"{name} interval"]) == pytest.approx([figure["low"], figure["high"]], rel=6e-3)
        assert figure["confidence"] == 0.95
    assert row["beside"] == delta["reference"]


def test_the_page_has_every_row_and_delta_of_the_summary(compared: Done, tmp_path: Path) -> None:
    summary = json.loads((compared.folder / "summary.json").read_text(encoding="utf-8"))
    for tables in pages_of(compared.folder, tmp_path):
        views = {"portable": table(tables, "Portable view"), "best-native": table(tables, "Best native setting")}
        assert views["portable"].keys() == {row["name"] for row in summary["rows"]}
        assert [row["target"] for row in views["best-native"].values()] == list(FACTORS)
        for row in summary["rows"]:
            figure = views["portable"][row["name"]]["items/s"].replace(",", "")
            assert float(figure) == pytest.approx(row["items_per_second"]["value"], rel=6e-3)
        assert [sum(row["beside"] != "-" for row in rows.values()) for rows in views.values()] == [6, 3]
        assert len(summary["deltas"]) == 9
        for delta in summary["deltas"]:
            assert_is(delta, views[delta["view"]][delta["row"]])


def test_the_page_says_where_targets_are_better_and_where_worse(compared: Done, tmp_path: Path) -> None:
    def verdicts(row: TableRow) -> tuple[str, str]:
        return row["items/s verdict"], row["latency verdict"]

    for tables in pages_of(compared.folder, tmp_path):
        portable, native = table(tables, "Portable view"), table(tables, "Best native setting")
        assert verdicts(portable["fast, calls of 2"]) == ("better", "better")
        assert verdicts(portable["fast"]) == ("worse", "worse")
        assert verdicts(portable["slow"]) == ("worse", "worse")
        assert verdicts(portable["same"]) == ("neither", "neither")
        assert verdicts(portable["base"]) == ("-", "-")
        # Three calls of half the time are slower than one call.
        assert list(native) == ["base", "fast, calls of 2", "slow", "same"]
        assert verdicts(native["fast, calls of 2"]) == ("worse", "worse")
        assert native["fast, calls of 2"]["settings"] == "scoring_algorithm=packed"
        assert native["fast, calls of 2"]["items a call"] == "2"
    said = compared.said
    assert "fast, calls of 2 beside base, calls of 2: better in items/s, +" in said
    assert "same beside base: neither better nor worse in items/s, " in said
    assert "Best of each, fast, calls of 2 beside base: worse in items/s, -" in said
    assert "Best of each, slow" not in said, "which is said already"


def test_latencies_of_a_target_with_fewer_items_are_not_compared(bench: Bench, fakes: Fakes) -> None:
    fakes.prepare = unlike
    done = bench("compare", *TARGETS, "--workload", "probe-20-6-4", "--slow-items", "slow=2")
    assert {delta.row: delta.latency is None for delta in done.summary.deltas} == {
        "fast": False, "slow": True, "same": False,
    }  # fmt: skip
    assert "not eligible: scores compared on 2 items only." in done.said


@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [
        ([50.0], "neither"),
        ([40.0, 50.0, 60.0], "better"),
        ([-1.0, 50.0, 60.0], "neither"),
        ([-50.0, -40.0], "worse"),
        ([1e-14] * 6, "neither"),
    ],
)
def test_intervals_across_zero_and_single_rounds_decide_nothing(rounds: list[float], verdict: str) -> None:
    figure = estimate(rounds)
    assert figure is not None
    delta = Delta(view="portable", row="a", reference="b", items_per_second=figure, latency=figure)
    opposite = {"better": "worse", "worse": "better", "neither": "neither"}
    assert (delta.speed_verdict, delta.latency_verdict) == (verdict, opposite[verdict])


def test_a_view_lies_beside_the_results_and_is_not_needed(compared: Done) -> None:
    assert json.loads((compared.folder / MANIFEST).read_text(encoding="utf-8"))["derived"] == [VIEW]
    (compared.folder / VIEW).unlink()
    assert CliRunner().invoke(main, ["validate-artifacts", str(compared.folder)]).exit_code == 0


def test_an_edited_delta_is_found(compared: Done) -> None:
    path = compared.folder / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    summary["deltas"][0]["items_per_second"]["value"] *= 2
    path.write_text(json.dumps(summary), encoding="utf-8")
    found = CliRunner().invoke(main, ["validate-artifacts", str(compared.folder)])
    assert found.exit_code == 1
    assert "summary.json: deltas.0.items_per_second.value is" in found.output
