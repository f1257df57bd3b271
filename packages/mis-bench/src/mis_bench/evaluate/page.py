"""The report of an evaluation: one page that needs nothing else."""

from collections.abc import Iterator, Sequence

import numpy as np

from mis_bench.evaluate import reliability
from mis_bench.evaluate.results import (
    Evaluated,
    Evaluation,
    differences_table,
    examples_table,
    figures_table,
    slices_table,
)
from mis_bench.report.page import Section, as_html
from mis_bench.report.plots import Axis, Plot, Series
from mis_bench.table import Table

_POINTS = 200  # of a line
_LISTED = 500  # of flips and failures


def as_page(evaluation: Evaluation, about: Sequence[tuple[str, str]]) -> str:
    """Return the page.

    Args:
        evaluation: What was found.
        about: What a reader must know: names and what they are.
    """
    return as_html("Evaluation", list(_sections(evaluation, about)))


def _sections(evaluation: Evaluation, about: Sequence[tuple[str, str]]) -> Iterator[Section]:
    missed = [f"Gate missed: {each}." for each in evaluation.missed]
    yield Section("Figures", tables=[figures_table(evaluation.targets)], text=missed)
    with_answers = [each for each in evaluation.targets if each.told.answers is not None]
    if with_answers:
        yield Section("Calibration", plots=[_diagram(with_answers)], tables=[_bins_table(with_answers)])
        yield Section("Risk and coverage", plots=[_risk(with_answers)])
    if any(each.slices for each in evaluation.targets):
        yield Section("Slices", tables=[slices_table(evaluation.targets)])
    for pair in evaluation.pairs:
        tables = [differences_table(pair)]
        if pair.flips:
            tables.append(examples_table(f"{len(pair.flips)} decisions flip", pair, pair.flips[:_LISTED]))
        if pair.worst:
            tables.append(examples_table("Largest changes of the loss", pair, pair.worst))
        text = [] if pair.flips else ["No decision flips."]
        yield Section(f"{pair.targets[1]} beside {pair.targets[0]}", tables=tables, text=text)
    failed = [
        Table(f"{each.target}: {len(each.failures)} of {each.rows}", ["row", "why"], each.failures[:_LISTED])
        for each in evaluation.targets
        if each.failures
    ]
    if failed:
        yield Section("Rows that failed", tables=failed)
    yield Section("About", tables=[Table("What was evaluated", ["what", "value"], about)])


def _diagram(targets: Sequence[Evaluated]) -> Plot:
    """Draw how often it was so against how probable it was said to be."""
    series = [Series("as said", [0.0, 1.0], [0.0, 1.0])]
    for each in targets:
        bins = _bins(each)
        series.append(Series(each.target, [one.probability for one in bins], [one.outcome for one in bins]))
    of = "the second class" if all(_is_binary(each) for each in targets) else "the decision"
    return Plot(
        series,
        Axis(f"Mean probability of {of}", "linear"),
        Axis("How often it was so", "linear"),
        "Bins hold equal shares of the answers. Above the line things are more probable than the target says, below it "
        "less.",
    )


def _bins_table(targets: Sequence[Evaluated]) -> Table:
    header = ["target", "share of answers", "mean probability", "how often so"]
    return Table.of_cells(
        "Bins of equal weight", header, [[each.target, *one] for each in targets for one in _bins(each)]
    )


def _risk(targets: Sequence[Evaluated]) -> Plot:
    """Draw the share of errors among the most confident answers."""
    series = []
    for each in targets:
        answers = each.told.answers
        assert answers is not None, "as chosen"
        order = np.argsort(-answers.confidence, kind="stable")
        kept = np.cumsum(answers.weight[order])
        wrong = np.cumsum((answers.weight * (1 - answers.correct))[order])
        # Equally confident answers are in or out together.
        ends = np.flatnonzero(np.diff(answers.confidence[order], append=np.nan) != 0)
        chosen = ends[np.unique(np.linspace(0, len(ends) - 1, _POINTS).astype(int))]
        coverage, risk = kept[chosen] / kept[-1], wrong[chosen] / kept[chosen]
        series.append(Series(each.target, coverage.tolist(), risk.tolist()))
    return Plot(
        series,
        Axis("Share of answers that are acted on, the most confident first", "linear"),
        Axis("Share of them that is wrong", "linear"),
        "Lower is better. Read off how much may be decided without a person at a share of errors that you accept.",
    )


def _bins(target: Evaluated) -> list[reliability.Bin]:
    answers = target.told.answers
    assert answers is not None, "as chosen"
    return reliability.diagram(reliability.predicted(answers), answers.weight)


def _is_binary(target: Evaluated) -> bool:
    return target.told.answers is not None and target.told.answers.is_binary
