"""`mis-bench compare`: backends side by side."""

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mis_bench.artifacts.judging import LIMITS, Limits
from mis_bench.targets.options import without_secrets
from mis_bench.workload import CANONICAL

if TYPE_CHECKING:
    from mis_bench.comparison.assemble import Evidence

_FILE = click.Path(dir_okay=False, path_type=Path)
_ABOVE_ZERO = click.FloatRange(0, min_open=True)


def _numbers(kind: Callable[[str], float], example: str) -> Callable[..., dict[str, float]]:
    """Return a callback that turns `NAME=NUMBER` options into a dictionary; numbers are above zero."""

    def parse(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, float]:
        found = {}
        for text in texts:
            spelling, _, number = text.rpartition("=")
            name = without_secrets(spelling)
            try:
                found[name] = kind(number)
            except ValueError:
                found[name] = 0
            if not name or not 0 < found[name] < float("inf"):
                raise click.BadParameter(f"{without_secrets(text)[:80]!r} is not NAME=NUMBER, such as {example}.")
        return found

    return parse


@click.command()
@click.argument("matrices", nargs=-1, metavar="[MATRIX]...")
@click.option("--target", "specs", multiple=True, help="Measure this target, in turn with the others; repeatable.")
@click.option("--model", "model_spec", help="Checkpoint of targets: a directory, a name, or random:SHAPE/DIVISOR.")
@click.option(
    "--vocab-size",
    type=click.IntRange(2),
    show_default="that of --model",
    help="Fold token ids into a vocabulary of this size; for servers with small models.",
)
@click.option("--workload", "workload_name", default=CANONICAL, help="KIND-Q-N-L, for targets.")
@click.option("--rounds", type=click.IntRange(1), default=5, help="Timed rounds, after one that warms up.")
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
    callback=_numbers(int, "transformers-serial=4"),
    help="NAME=N: this target is asked for the first N items only; repeatable.",
)
@click.option(
    "--hourly-cost",
    "hourly_cost_usd",
    multiple=True,
    callback=_numbers(float, "engine=0.64"),
    help="NAME=USD of an hour of the target's machine; repeatable.",
)
@click.option("--timeout", "timeout_s", type=_ABOVE_ZERO, default=180.0, help="Seconds a call of a target may take.")
@click.option(
    "--reference",
    callback=lambda _context, _parameter, text: text and without_secrets(text),
    show_default="the first that ran",
    help="Target that others are held against.",
)
@click.option(
    "--guardrail-ratio",
    type=click.FloatRange(1),
    default=LIMITS.guardrail_ratio,
    help="A winner's p95 over the lowest p95.",
)
@click.option(
    "--correctness-threshold-max-abs",
    type=_ABOVE_ZERO,
    default=LIMITS.max_abs,
    help="Largest difference of label softmaxes.",
)
@click.option(
    "--correctness-threshold-mean-abs",
    type=_ABOVE_ZERO,
    default=LIMITS.mean_abs,
    help="Mean difference of label softmaxes.",
)
@click.option("--output", type=_FILE, help="JSON artifact to write.")
@click.option("--markdown", type=_FILE, help="File for the Markdown, which is printed in any case.")
def compare(
    matrices: tuple[str, ...],
    specs: tuple[str, ...],
    hourly_cost_usd: dict[str, float],
    reference: str | None,
    guardrail_ratio: float,
    correctness_threshold_max_abs: float,
    correctness_threshold_mean_abs: float,
    output: Path | None,
    markdown: Path | None,
    **measuring: Any,
) -> None:
    """Compare backends: which are correct, and which of those is fastest?

    MATRIX is a file or folder of `mis-bench matrix`, at least two; NAME=MATRIX renames its target. With --target
    instead, the targets are measured here, in alternating rounds; options follow a target's name, as in
    engine,scoring_algorithm=packed.

    Exit status 1: scores differ too much, a target could not run, or no target may win.
    """
    if bool(matrices) == bool(specs):
        raise click.UsageError("Name either matrices, or targets to measure with --target.")
    names = matrices or [without_secrets(spec) for spec in specs]
    if len(set(names)) < max(2, len(names)):
        raise click.UsageError("Name at least two, and none twice.")
    from mis_bench.comparison.assemble import compare as compared
    from mis_bench.comparison.markdown import as_markdown
    from mis_bench.environment import environment

    slow = measuring["slow_items"]
    if reference in slow:
        raise click.BadParameter(
            f"{reference} is among --slow-items: others would be compared on its few items only; name another.",
            param_hint="--reference",
        )
    here = environment()
    evidence = (
        _from_matrices(matrices, hourly_cost_usd)
        if matrices
        else _from_targets(specs, hourly_cost_usd=hourly_cost_usd, hardware=here.hardware, **measuring)
    )
    names = [target.name for target in evidence.targets]
    _must_be_targets(names, {"--reference": [reference or names[0]], "--hourly-cost": hourly_cost_usd})
    ran = [each.name for each in evidence.targets if not each.unavailable]
    found = compared(
        evidence,
        reference=reference or next((name for name in (*ran, *names) if name not in slow), names[0]),
        limits=Limits(
            max_abs=correctness_threshold_max_abs,
            mean_abs=correctness_threshold_mean_abs,
            guardrail_ratio=guardrail_ratio,
        ),
        command=_command(specs),
        environment=here,
    )
    text = as_markdown(found)
    click.echo(text, nl=False)
    try:
        if output is not None:
            found.write(output)
        if markdown is not None:
            markdown.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.FileError(str(error.filename), error.strerror) from None
    sys.exit(0 if found.passed else 1)


def _from_matrices(paths: Sequence[str], hourly_cost_usd: dict[str, float]) -> "Evidence":
    from mis_bench.artifacts.base import ArtifactError
    from mis_bench.comparison.matrices import NotComparable, evidence_of, read_matrix

    try:
        return evidence_of([read_matrix(path) for path in paths], hourly_cost_usd)
    except (ArtifactError, NotComparable) as error:
        raise click.BadParameter(str(error), param_hint="MATRIX") from None


def _from_targets(
    specs: Sequence[str],
    *,
    model_spec: str | None,
    vocab_size: int | None,
    workload_name: str,
    slow_items: dict[str, int],
    **measuring: Any,
) -> "Evidence":
    from mis_bench.artifacts.parts import WorkloadPart
    from mis_bench.commands.measuring import built, checkpoint, progress, vocabulary
    from mis_bench.comparison.measured import measured

    _must_be_targets([without_secrets(spec) for spec in specs], {"--slow-items": slow_items})
    model = checkpoint(model_spec)
    vocab_size = vocabulary(model, vocab_size)
    workload = replace(built(workload_name, vocab_size), apply_softmax=True)
    with progress() as shown:
        task = shown.add_task("starting", total=None)
        return measured(
            specs,
            workload,
            WorkloadPart.of(workload, vocab_size=vocab_size),
            model,
            slow_items=slow_items,
            on_start=lambda name: shown.update(task, description=f"starting {name}"),
            on_request=lambda done, total, name: shown.update(task, description=name, completed=done, total=total),
            **measuring,
        )


def _command(specs: Sequence[str]) -> str:
    """Return the command line, its targets without their secrets."""
    arguments = sys.argv[1:]
    for spec in sorted(specs, key=len, reverse=True):
        arguments = [each.replace(spec, without_secrets(spec)) for each in arguments]
    return shlex.join(["mis-bench", *arguments])


def _must_be_targets(names: Sequence[str], given: dict[str, Any]) -> None:
    for option, those in given.items():
        for name in those:
            if name not in names:
                raise click.BadParameter(f"{name!r} is no target; there are {', '.join(names)}.", param_hint=option)
