"""Rows of runs as lines over the number of items, named by what tells them apart."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mis_bench.artifacts.run import RunResult, RunRow
from mis_bench.report.sources import Source

_FACTS = 9
"""Facts that name a line; a tenth, the run, is named where these do not tell lines apart."""

ROW_NAMES = ("target", "model", "dtype", "workload", "query")
"""Headings of what `row_names` returns."""

_SIZES = re.compile(r"-(\d+)-(\d+)-(\d+)(?:@\d+)?$")


@dataclass(frozen=True, slots=True)
class Line:
    """Rows of one run that differ in the number of items alone, by rising number."""

    name: str
    rows: Sequence[RunRow]


def lines(runs: Sequence[Source[RunResult]]) -> list[Line]:
    """Return the lines of runs; rows that failed or were skipped are left out."""
    found: dict[tuple[str, ...], list[RunRow]] = {}
    for source in runs:
        for row in source.content.rows:
            if is_measured(row):
                found.setdefault(_facts(source, row), []).append(row)
    kept = [place for place in range(_FACTS) if len({facts[place] for facts in found}) > 1]
    names = [", ".join(facts[place] for place in kept if facts[place]) for facts in found]
    first = runs[0].content.target.name if runs else ""
    return [
        Line(name if names.count(name) == 1 else f"{name or first}, {facts[-1]}".removesuffix(", "), _rising(rows))
        if len(found) > 1
        else Line(first, _rising(rows))
        for name, (facts, rows) in zip(names, found.items(), strict=True)
    ]


def is_measured(row: RunRow) -> bool:
    """Whether a row's figures may be drawn: a few answered calls of one that failed are no measurement."""
    return row.status in ("ok", "warn")


def row_names(source: Source[RunResult], row: RunRow) -> list[str]:
    """Return target, model, type, workload and cache of a row, for tables."""
    target, model, *_ = _facts(source, row)
    return [target, model, row.dtype or "-", row.workload.name, row.cache]


def varying(header: list[str], rows: list[list[str]], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return a table without those of its first columns, called `names`, that say the same in every row."""
    constant = {place for place in range(len(names)) if len({row[place] for row in rows}) == 1}

    def kept(cells: list[str]) -> list[str]:
        return [cell for place, cell in enumerate(cells) if place not in constant]

    return kept(header), [kept(row) for row in rows]


def short_model(model: str) -> str:
    """Return a model's name without its folder."""
    return model.rstrip("/").rpartition("/")[2] or model


def _facts(source: Source[RunResult], row: RunRow) -> tuple[str, ...]:
    """What tells lines apart, in the order in which it is named."""
    run, sizes = source.content, _SIZES.search(row.workload.name)
    algorithm = run.target.options.get("scoring_algorithm")
    return (
        run.target.name,
        short_model(row.model),
        "" if algorithm is None else str(algorithm),
        row.dtype or "unknown type",
        f"query {sizes[1]}, items of {sizes[3]}" if sizes else row.workload.name,
        f"{row.num_labels} labels",
        f"query {'cached' if row.cache == 'warm' else 'computed'}",
        f"{run.concurrency} callers" if run.rate is None else f"{run.rate:g} requests/s",
        run.environment.hardware,
        run.run_id,
    )


def _rising(rows: list[RunRow]) -> list[RunRow]:
    return sorted(rows, key=lambda row: row.batch_size)
