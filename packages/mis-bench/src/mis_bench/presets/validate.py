"""`mis-bench validate`."""

import asyncio
import datetime
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mis_bench.interruption import keeping
from mis_bench.manifest import VIEW, seal
from mis_bench.options import caption, checkpoint, identity, new_folder, progress, target_options, vocabulary

if TYPE_CHECKING:
    from mis_bench.validation.cases import Cases
    from mis_bench.validation.gates import Dtype, ModelValidation, Validation
    from mis_bench.validation.run import ValidatedTarget

MODEL_MATRIX = tuple(
    f"random:{shape}/8"
    for shape in (
        "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b",
        "llama-3.2-1b", "llama-3.2-3b", "smollm2-135m", "smollm3-3b", "mistral-7b",
    )
)  # fmt: skip
"""Published shapes with random weights, small enough for a CPU; no layer slides within what they are asked."""


@click.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    show_default="none",
    help="Checkpoint: a directory, a name, or `random:SHAPE/DIVISOR`. Repeatable. Several are validated in turn.",
)
@click.option(
    "--model-matrix", is_flag=True, help="Validate random weights in eleven published shapes, with sizes divided by 8."
)
@target_options
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float32"]),
    show_default="a server's own, else bfloat16",
    help="Type of the computation, which decides the thresholds. It must equal the type that a server reports.",
)
@click.option(
    "--speedup-items", "more", type=click.IntRange(1), multiple=True, show_default="none",
    help="Number of items to time, besides 1, 8 and 32. The gate for speed applies from 32 on. Repeatable.",
)  # fmt: skip
@click.option(
    "--without-pytorch",
    metavar="REASON",
    show_default="none",
    help="Waive the gates against PyTorch, for this reason. The artifact records it.",
)
def validate(
    models: tuple[str, ...],
    model_matrix: bool,
    spec: str,
    options: dict[str, str],
    vocab_size: int | None,
    hardware: str | None,
    timeout: float,
    output: Path | None,
    dtype: "Dtype | None",
    more: tuple[int, ...],
    without_pytorch: str | None,
) -> None:
    """Check that scores can be trusted.

    The gates are isolation, equality with serial scoring and with PyTorch, and speed.

    The exit status is 1 if a gate failed, or could not be run, for any of the models.
    """
    from mis_bench.environment import environment
    from mis_bench.report.sources import ReportSources
    from mis_bench.report.writing import write_view
    from mis_bench.validation import run
    from mis_bench.validation.cases import build_cases
    from mis_bench.validation.gates import VALIDATION, Validation

    chosen = tuple(dict.fromkeys(models + (MODEL_MATRIX if model_matrix else ())))
    if spec == "engine" and not chosen:
        raise click.UsageError("Name a checkpoint with --model, or use --model-matrix.")
    if spec != "engine" and len(chosen) > 1:
        raise click.UsageError("A server has one model: give --model once, or not at all.")
    # A wrong name is found before an hour has passed.
    directories = {model: checkpoint(model) for model in chosen} or {spec: None}
    path = new_folder(output, identity(datetime.datetime.now(datetime.UTC), "validate"), VALIDATION) / VALIDATION
    if spec == "engine":
        options = {"dtype": dtype or "bfloat16", **options}
    found = Validation(
        environment=environment(hardware), planned=list(directories), models=[],
        speedup_items=sorted({1, 8, 32, *more}), rounds=run.ROUNDS,
    )  # fmt: skip
    with keeping(path.parent):
        found.write(path)
        for model, directory in directories.items():
            subject = run.ValidatedTarget(model, spec, options, directory, dtype, without_pytorch or None, timeout)
            cases = build_cases(vocabulary(directory, vocab_size), _end_of_text(directory))
            found = _validated(found, subject, cases, path, hardware)
            found.write(path)
        seal(path.parent, "validate", [VALIDATION], derived=[VIEW])
        write_view(ReportSources(validations=[(VALIDATION, found)]), path.parent)
    for each in found.models:
        click.echo(each.verdict)
    for model, why in found.unavailable.items():
        click.echo(f"{model}: not validated. {why}")
    click.echo(f"Written: {path}", err=True)
    if not found.passed:
        raise SystemExit(1)


def _validated(
    before: "Validation", subject: "ValidatedTarget", cases: "Cases", path: Path, hardware: str | None
) -> "Validation":
    """Validate one more model, print what was found, and return all of it; keep in the file what there is meanwhile."""
    from mis_bench.environment import hardware_of
    from mis_bench.targets.target import TargetUnavailable
    from mis_bench.validation import run

    counts, here = before.speedup_items or [], before.environment
    total, steps = run.num_steps(counts), itertools.count()

    def together(found: "ModelValidation") -> "Validation":
        where = here.model_copy(update={"hardware": hardware_of(hardware, found.about, here.hardware)})
        return before.model_copy(update={"environment": where, "models": [*before.models, found]})

    try:
        with progress(subject.model, total) as show:

            def keep(name: str, found: "ModelValidation") -> None:
                show(f"{subject.model}: {name}", next(steps), total)
                if found.gates:
                    together(found).write(path)

            validated = asyncio.run(run.validate(subject, cases, counts, keep))
            show(subject.model, total, total)
    except TargetUnavailable as error:
        return before.model_copy(update={"unavailable": before.unavailable | {subject.model: str(error)}})
    after = together(validated)
    validated.table.show()
    for timing in validated.timings:
        click.echo(f"{timing.items} items at once: {timing.speedup:.3g} times as fast as one by one")
    click.echo(caption(validated.about, after.environment.hardware))
    return after


def _end_of_text(directory: Path | None) -> int | None:
    """Return the checkpoint's end-of-text token, as far as it tells."""
    if directory is None:
        return None
    token = json.loads((directory / "config.json").read_text(encoding="utf-8")).get("eos_token_id")
    return token[0] if isinstance(token, list) else token
