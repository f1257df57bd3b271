"""Carrying out what a measuring command planned: progress, the table, and where the results are."""

import datetime
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mis_bench.commands.bench import Bench
from mis_bench.commands.measuring import one_sentence, progress
from mis_bench.targets.spec import is_secret, without_secrets

if TYPE_CHECKING:
    from mis_bench.records import Case, Results
    from mis_bench.summary import Summary
    from mis_bench.workloads.traces import Trace


class Outcome(NamedTuple):
    """A summary, the results that it is of, and the folder that holds both."""

    summary: "Summary"
    results: "Results"
    folder: Path


def carry_out(
    bench: Bench,
    preset: str,
    cases: Sequence["Case"],
    *,
    rounds: int,
    title: str = "",
    folder_name: str = "",
    traces: Mapping[str, "Trace"] | None = None,
    **fields: Any,
) -> Outcome:
    """Measure cases, or go on where an interrupted command ended; show and write what comes of it.

    Args:
        bench: The targets.
        preset: Name of the command.
        cases: What to measure.
        rounds: How often each case has its turn.
        title: Of the table; the preset's name by default.
        folder_name: Default folder in `results/`; by default the preset's name with the time.
        traces: Those that cases name.
        **fields: Further fields of the plan.

    Returns:
        What came of it.
    """
    from mis_bench.artifact import ArtifactError
    from mis_bench.environment import environment
    from mis_bench.execution import execute
    from mis_bench.records import SUMMARY, Plan, begin_or_resume
    from mis_bench.summary import summarize

    given = bench.given
    started = datetime.datetime.now(datetime.UTC)
    run_id = f"{started:%Y%m%dT%H%M%SZ}-{title or preset}"
    folder = given.output or Path("results") / (folder_name or run_id)
    plan = Plan.model_validate(
        {
            "run_id": run_id, "preset": preset, "command": command_line(given.targets), "started": started,
            "environment": environment(given.hardware), "targets": bench.targets, "cases": cases, "rounds": rounds,
            "repeat": given.repeat, "timeout_s": given.timeout, "notes": bench.notes, **fields,
        }
    )  # fmt: skip
    try:
        with one_sentence(), progress() as bar:
            plan = begin_or_resume(folder, plan)
            task = bar.add_task(preset, total=None)
            results = execute(
                plan,
                bench.openers,
                folder,
                traces=traces,
                allow_missing=given.allow_missing,
                on_progress=lambda what, over, total: bar.update(task, description=what, completed=over, total=total),
            )
            summary = summarize(results)
            summary.write(folder / SUMMARY)
    except ArtifactError as error:
        raise click.BadParameter(f"{error} Name another folder.", param_hint="--output") from None
    except KeyboardInterrupt:
        hint = f"{folder} keeps the rounds that are done: repeat the command with --output {folder} to go on."
        raise click.ClickException(f"Interrupted. {hint}") from None
    present(summary, results, title or preset)
    click.echo(f"Written: {folder}", err=True)
    return Outcome(summary, results, folder)


def finish(summary: "Summary") -> None:
    """Say which limits were missed; status 1 if the summary did not pass."""
    for miss in summary.missed:
        click.echo(f"Gate missed: {miss}.", err=True)
    if not summary.passed:
        raise SystemExit(1)


def present(summary: "Summary", results: "Results", title: str) -> None:
    """Print a summary's table, what was measured on what, and the findings."""
    from mis_bench.tables import rows_table

    plan = results.plan
    rows_table(f"{title}, {plan.run_id}", summary.rows).show()
    for name, about in {each.target: each.about for each in results.opened if each.about}.items():
        options = " ".join(f"{name}={value}" for name, value in about.options.items())
        versions = " ".join(f"{name} {version}" for name, version in about.versions.items())
        hardware = next(row.hardware for row in summary.rows if row.target == name)
        click.echo(f"{name} ({about.backend}), {about.model}, {about.dtype or 'dtype unknown'}, {hardware}")
        click.echo("\n".join(text for text in (versions, options) if text))
    for sentence in (*summary.findings, *plan.notes):
        click.echo(sentence)


def command_line(targets: Sequence[str]) -> str:
    """Return the command line, its targets and options without their secrets."""
    arguments = sys.argv[1:]
    for text in sorted(targets, key=len, reverse=True):
        arguments = [each.replace(text, without_secrets(text)) for each in arguments]
    hidden = ["***" if "=" in each and is_secret(each.partition("=")[0]) else each for each in arguments]
    return shlex.join(["mis-bench", *hidden])
