"""`mis-bench compare`: backends side by side."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mis_bench.commands.bench import ABOVE_0, Given, find_targets, measuring_options, named_numbers
from mis_bench.commands.carry_out import carry_out, command_line, finish, present
from mis_bench.commands.measuring import one_sentence
from mis_bench.presets import compare_cases
from mis_bench.targets.spec import without_secrets
from mis_bench.workload import CANONICAL

if TYPE_CHECKING:
    from mis_bench.records import Plan
    from mis_bench.summary import Summary


@click.command()
@click.argument("matrices", nargs=-1, metavar="[MATRIX]...")
@click.option("--workload", "workload_name", default=CANONICAL, help="KIND-Q-N-L, for targets.")
@click.option("--rounds", type=click.IntRange(1), default=6, help="Timed rounds; six or more give an interval.")
@click.option(
    "--chunk-size",
    "chunk_sizes",
    type=click.IntRange(1),
    multiple=True,
    show_default="all items",
    help="Items of a call; repeatable.",
)
@click.option(
    "--slow-items",
    multiple=True,
    metavar="TARGET=N",
    help="This target is asked for the first N items only; repeatable.",
)
@click.option("--reference", show_default="the first", help="Target that others are held against.")
@click.option("--guardrail-ratio", type=click.FloatRange(1), default=1.25, help="A winner's p95 over the lowest p95.")
@click.option(
    "--correctness-threshold-max-abs",
    "max_abs",
    type=ABOVE_0,
    default=0.02,
    help="Largest difference of label softmaxes.",
)
@click.option(
    "--correctness-threshold-mean-abs",
    "mean_abs",
    type=ABOVE_0,
    default=0.01,
    help="Mean difference of label softmaxes.",
)
@click.option(
    "--markdown",
    type=click.Path(dir_okay=False, path_type=Path),
    show_default="none",
    help="File for a report.",
)
@measuring_options
def compare(
    given: Given,
    matrices: tuple[str, ...],
    workload_name: str,
    rounds: int,
    chunk_sizes: tuple[int, ...],
    slow_items: tuple[str, ...],
    reference: str | None,
    markdown: Path | None,
    **limits: float,
) -> None:
    """Compare backends: which are correct, and which of those is fastest?

    MATRIX is a folder of `mis-bench matrix`, at least two; NAME=MATRIX renames its target. With --target instead, the
    targets are measured here, in alternating rounds.

    Exit status 1: scores differ too much, a target could not run, or no target may win.
    """  # fmt: skip
    if matrices:
        finish(_put_together(given, matrices, reference, limits, markdown))
        return
    if len(given.targets) < 2:
        raise click.UsageError("Name at least two targets with --target, or at least two matrices.")
    if len(given.models) > 1:
        raise click.UsageError("Targets are compared on one model; give one --model.")
    slow = {name: int(items) for name, items in named_numbers(slow_items, int, "transformers-serial=4").items()}
    bench = find_targets(given, must_forget=True)
    names = [target.name for target in bench.targets]
    reference = (
        without_secrets(reference) if reference else next((name for name in names if name not in slow), names[0])
    )
    for option, those in (("--reference", [reference]), ("--slow-items", slow)):
        for name in those:
            if name not in names:
                raise click.BadParameter(f"{name!r} is no target; there are {', '.join(names)}.", param_hint=option)
    if reference in slow:
        raise click.BadParameter(
            f"{reference} is among --slow-items: others would be compared on its few items only; name another.",
            param_hint="--reference",
        )
    bench.notes += [f"{name} was asked for the first {items} items only." for name, items in slow.items()]
    with one_sentence():
        cases = list(compare_cases(bench.targets, workload_name, bench.common_vocabulary, chunk_sizes, slow))
    outcome = carry_out(bench, "compare", cases, rounds=rounds, reference=reference, limits=limits)
    with one_sentence():
        _write_markdown(outcome.summary, outcome.results.plan, markdown)
    finish(outcome.summary)


def _put_together(
    given: Given, matrices: tuple[str, ...], reference: str | None, limits: dict[str, float], markdown: Path | None
) -> "Summary":
    """Compare results that were measured one after the other."""
    from mis_bench.artifact import ArtifactError
    from mis_bench.records import SUMMARY, Limits, append, begin_or_resume
    from mis_bench.summary import summarize
    from mis_bench.together import put_together

    try:
        results = put_together(matrices, reference, Limits.model_validate(limits), command_line(()))
    except ArtifactError as error:
        raise click.BadParameter(str(error), param_hint="MATRIX") from None
    summary = summarize(results)
    with one_sentence():
        if given.output is not None:
            begin_or_resume(given.output, results.plan)
            append(given.output, results.records)
            summary.write(given.output / SUMMARY)
        present(summary, results, "compare")
        _write_markdown(summary, results.plan, markdown)
    return summary


def _write_markdown(summary: "Summary", plan: "Plan", path: Path | None) -> None:
    """Write the findings and the table."""
    from mis_bench.tables import rows_table

    if path is None:
        return
    sentences = "".join(f"- {sentence}\n" for sentence in (*summary.findings, *plan.notes))
    table = rows_table("Rows", summary.rows).as_markdown()
    path.write_text(f"# Comparison on {plan.cases[0].workload.name}\n\n{sentences}\n{table}\n", encoding="utf-8")
