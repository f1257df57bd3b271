"""`mis-bench validate`."""

import json
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mis_bench.artifacts.validation import ModelValidation

MODEL_MATRIX = tuple(
    f"random:{shape}/16"
    for shape in (
        "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b",
        "llama-3.2-1b", "llama-3.2-3b",
    )
)  # fmt: skip
"""Published shapes with random weights, small enough for a CPU."""


@click.command()
@click.option(
    "--model", "models", multiple=True, help="Directory, name, or random:SHAPE/DIVISOR; may be given several times."
)
@click.option("--model-matrix", is_flag=True, help="Random weights in eight published shapes, sizes divided by 16.")
@click.option(
    "--target",
    default="engine",
    help="engine, or a server such as mis=http://127.0.0.1:30000; options follow: engine,tp_size=4.",
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float32"]),
    help="Type to compute in, which decides thresholds; default: the server's own, else bfloat16.",
)
@click.option("--speedup-items", default="1,8,32", help="Numbers of items to measure speed at; a gate from 32 on.")
@click.option("--without-pytorch", metavar="REASON", help="Waive the gates against PyTorch; the artifact keeps why.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default="validation", help="Folder for the artifact."
)
def validate(
    models: tuple[str, ...],
    model_matrix: bool,
    target: str,
    dtype: str | None,
    speedup_items: str,
    without_pytorch: str | None,
    output: Path,
) -> None:
    """Check that scores can be trusted: isolation, equality with serial scoring and with PyTorch, and speed.

    Exit status 1 if a gate of a model failed or could not be run.
    """
    from mis_bench.artifacts.validation import ValidationResult
    from mis_bench.environment import environment
    from mis_bench.validation.table import conclude, show

    counts = _counts(speedup_items)
    spec, options = _spec(target)
    chosen = models + (MODEL_MATRIX if model_matrix else ())
    if spec == "engine" and not chosen:
        raise click.UsageError("Name a checkpoint with --model, or take --model-matrix.")
    if spec != "engine" and len(chosen) > 1:
        raise click.UsageError("A server has one model: give --model once, or not at all.")
    if without_pytorch is not None and not without_pytorch.strip():
        raise click.BadParameter("say why the gates are waived.", param_hint="--without-pytorch")
    directories = [_resolved(model) for model in chosen]  # a wrong name is found before an hour has passed
    path, where, validated = output / "validation.json", environment(), []
    for model, directory in zip(chosen or (None,), directories or (None,), strict=True):
        validated.append(_validated(model, directory, spec, dtype, options, counts, without_pytorch))
        result = ValidationResult(environment=where, models=validated, passed=all(each.passed for each in validated))
        try:
            result.write(path)
        except OSError as error:
            raise click.FileError(str(path), error.strerror) from None
        show(validated[-1])
    conclude(validated)
    click.echo(f"Written: {path}", err=True)
    if not all(each.passed for each in validated):
        raise SystemExit(1)


def _validated(
    model: str | None,
    directory: Path | None,
    spec: str,
    dtype: str | None,
    options: Mapping[str, str],
    counts: list[int],
    without_pytorch: str | None,
) -> "ModelValidation":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from mis_bench.targets.base import TargetUnavailable
    from mis_bench.targets.registry import make_target
    from mis_bench.validation.cases import build_cases
    from mis_bench.validation.run import steps
    from mis_bench.validation.run import validate as run
    from mis_bench.validation.subject import open_subject
    from mis_bench.validation.thresholds import EQUIVALENCE

    vocab_size, end_of_text = (None, None) if directory is None else _vocabulary(directory)
    if spec == "engine":
        options = {"dtype": dtype or "bfloat16", **options}
    try:
        subject = open_subject(spec, directory, options)
    except TargetUnavailable as error:
        raise click.ClickException(str(error)) from None
    with closing(subject):
        computed = subject.multi.about.dtype or dtype or "bfloat16"
        if computed not in EQUIVALENCE:
            message = f"{subject.multi.about.name} computes in {computed}; there are thresholds for "
            raise click.ClickException(message + " and ".join(EQUIVALENCE) + ".")
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task(model or spec, total=steps(counts))

            def on_gate(name: str) -> None:
                progress.update(bar, description=f"{model or spec}: {name}", advance=1)

            return run(
                model or subject.multi.about.model,
                subject,
                reference=without_pytorch
                or partial(make_target, "transformers-serial", model=directory, options={"dtype": computed}),
                dtype=computed,
                cases=build_cases(vocab_size, end_of_text),
                counts=counts,
                vocab_size=vocab_size,
                on_gate=on_gate,
            )


def _counts(text: str) -> list[int]:
    from mis_bench.validation.speed import is_gated
    from mis_bench.validation.thresholds import SPEEDUP_ITEMS

    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1 or not is_gated(counts):
        message = (
            f"write numbers of items such as 1,8,32, at least one of them {SPEEDUP_ITEMS} or more: it has the gate."
        )
        raise click.BadParameter(message, param_hint="--speedup-items")
    return sorted(set(counts))


def _spec(text: str) -> tuple[str, dict[str, str]]:
    spec, *options = text.split(",")
    for option in options:
        if not option.partition("=")[0] or "=" not in option:
            raise click.BadParameter(f"{option[:80]!r} is no option; write NAME=VALUE.", param_hint="--target")
    return spec, dict(option.split("=", 1) for option in options)


def _resolved(model: str) -> Path:
    from mis_bench.checkpoints import CheckpointError, resolve_checkpoint

    try:
        return resolve_checkpoint(model)
    except CheckpointError as error:
        raise click.BadParameter(str(error), param_hint="--model") from None


def _vocabulary(directory: Path) -> tuple[int | None, int | None]:
    """Return the vocabulary's size and its end-of-text token, as far as the checkpoint tells."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{directory}/config.json: {error}", param_hint="--model") from None
    ends = config.get("eos_token_id")
    return config.get("vocab_size"), ends[0] if isinstance(ends, list) else ends
