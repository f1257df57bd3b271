"""What an evaluation found, as JSON and as tables for a terminal."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mis_bench.evaluate.measured import MeasuredRows, Told
from mis_bench.evaluate.paired import Example, Pair
from mis_bench.evaluate.resampling import Interval
from mis_bench.table import Table, number

SHOWN = 10
"""Rows of a list that a terminal gets."""

_CHARACTERS = 120
_MOST_COLUMNS = 2
_COMPARED = ("accuracy", "log_loss", "ece", "auc", "ndcg@10", "mrr")  # of several targets, where a page has all


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A target, and what was found of it.

    Attributes:
        target: Its name.
        rows: Rows of the data.
        failures: Why there is nothing of a row, by the row's name.
        told: What it said.
        figures: Of all rows.
        slices: Of some rows.
    """

    target: str
    rows: int
    failures: Sequence[tuple[str, str]]
    told: Told
    figures: Mapping[str, Interval]
    slices: Mapping[str, MeasuredRows]

    def values(self, part: str | None) -> Mapping[str, float]:
        """Return the figures of a slice, or of all rows."""
        if part is None:
            return {name: each.value for name, each in self.figures.items()}
        return self.slices[part].values if part in self.slices else {}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All that was found.

    Attributes:
        targets: In their order.
        pairs: Each target but the first, beside the first.
        missed: Which gates failed, and why.
    """

    targets: Sequence[Evaluated]
    pairs: Sequence[Pair]
    missed: Sequence[str] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether no gate and no row failed."""
        return not self.missed and not any(each.failures for each in self.targets)

    def as_json(self) -> dict[str, Any]:
        """Return it as an object of JSON."""
        return {
            "targets": [
                {
                    "target": each.target,
                    "rows": each.rows,
                    "failed": len(each.failures),
                    "figures": _as_json(each.figures),
                    "slices": {
                        name: {"rows": part.rows, "figures": _as_json(part.figures)}
                        for name, part in each.slices.items()
                    },
                    "failures": [{"row": row, "reason": reason} for row, reason in each.failures],
                }
                for each in self.targets
            ],
            "paired": [
                {field.name: getattr(pair, field.name) for field in dataclasses.fields(pair)}
                | {
                    "figures": _as_json(pair.figures),
                    "flips": [each._asdict() for each in pair.flips],
                    "worst": [each._asdict() for each in pair.worst],
                }
                for pair in self.pairs
            ],
            "missed": list(self.missed),
        }

    def tables(self, shown: int = SHOWN) -> Iterator[Table]:
        """Yield the tables: figures, slices, and what two targets differ in; of long lists the first few."""
        yield figures_table(self.targets)
        if any(each.slices for each in self.targets):
            yield slices_table(self.targets)
        if len(self.pairs) > 1:
            yield many_differences_table(self.pairs)
        for pair in self.pairs if len(self.pairs) == 1 else ():
            yield differences_table(pair)
            if pair.flips:
                yield examples_table(f"{len(pair.flips)} decisions flip", pair, pair.flips[:shown])
            if pair.worst:
                yield examples_table("Largest changes of the loss", pair, pair.worst[:shown])
        for each in self.targets:
            if each.failures:
                caption = f"{len(each.failures)} of {each.rows} rows failed, {each.target}"
                yield Table(caption, ["row", "why"], [list(failure) for failure in each.failures[:shown]])


def figures_table(targets: Sequence[Evaluated]) -> Table:
    """Return the figures of all targets: of two with their intervals, a row for each figure; of more a row for each."""
    names = dict.fromkeys(name for each in targets for name in each.figures)
    if len(targets) > _MOST_COLUMNS:
        cells = [[each.target, *(each.values(None).get(name) for name in names)] for each in targets]
        return Table.of_cells("Figures", ["target", *names], cells)
    rows = [[name, *(_spread(each.figures.get(name)) for each in targets)] for name in names]
    return Table("Figures, with intervals of 95 %", ["figure", *(each.target for each in targets)], rows)


def slices_table(targets: Sequence[Evaluated]) -> Table:
    """Return the figures of slices, a row for each slice and target."""
    parts = [(each.target, name, part) for each in targets for name, part in each.slices.items()]
    names = dict.fromkeys(name for *_, part in parts for name in part.values)
    rows = [
        [name, target, number(part.rows), *(number(part.values.get(figure)) for figure in names)]
        for target, name, part in parts
    ]
    return Table("Slices", ["slice", "target", "rows", *names], rows)


def differences_table(pair: Pair) -> Table:
    """Return the differences of two targets."""
    rows = [[name, _spread(each)] for name, each in pair.figures.items()]
    rows.append(["rank correlation of scores", number(pair.rank_correlation, 6)])
    first, second = pair.targets
    return Table(f"{second} less {first}, {pair.rows} rows", ["figure", "difference"], rows)


def many_differences_table(pairs: Sequence[Pair]) -> Table:
    """Return the differences of several targets from the first, a row for each."""
    names = [name for name in _COMPARED if any(name in pair.figures for pair in pairs)]
    rows = [[pair.targets[1], *(_spread(pair.figures.get(name)) for name in names)] for pair in pairs]
    return Table(f"Less {pairs[0].targets[0]}, with intervals of 95 %", ["target", *names], rows)


def examples_table(title: str, pair: Pair, examples: Sequence[Example]) -> Table:
    """Return what two targets made of some rows."""
    first, second = pair.targets
    header = ["row", "question", "text", "right", first, second, "change of loss"]
    rows = [
        [
            each.row,
            each.question or "-",
            shortened(each.text),
            each.truth,
            *(f"{said} ({number(told)})" for said, told in zip(each.decisions, each.probabilities, strict=True)),
            number(each.change),
        ]
        for each in examples
    ]
    return Table(f"{title}, {first} and {second}", header, rows)


def shortened(text: str, most: int = _CHARACTERS) -> str:
    """Return the beginning of a text, in one line."""
    text = " ".join(text[: 4 * most].split())
    return text if len(text) <= most else text[: most - 1] + "…"


def _as_json(figures: Mapping[str, Interval]) -> dict[str, Any]:
    return {name: each._asdict() for name, each in figures.items()}


def _spread(found: Interval | None) -> str:
    """Return a figure with its interval."""
    if found is None:
        return "-"
    value = number(found.value)
    return value if found.low is None else f"{value} ({number(found.low)} to {number(found.high)})"
