"""`mis-bench validate`."""

import asyncio
import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from mis_bench.commands.measuring import (
    caption,
    checkpoint,
    identity,
    new_folder,
    one_sentence,
    progress,
    show,
    target_options,
    vocabulary,
)

if TYPE_CHECKING:
    from mis_bench.targets.base import About, Target
    from mis_bench.validation.gates import ModelValidation
    from mis_bench.validation.thresholds import Dtype

MODEL_MATRIX = tuple(
    f"random:{shape}/8"
    for shape in (
        "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b",
        "llama-3.2-1b", "llama-3.2-3b",
    )
)  # fmt: skip
"""Published shapes with random weights, small enough for a CPU."""

_FILE = "validation.json"


def _counts(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    from mis_bench.validation.thresholds import SPEEDUP_ITEMS

    parts = [part.strip() for part in text.split(",")]
    counts = sorted({int(part) for part in parts if part.isascii() and part.isdigit()})
    if not all(part.isascii() and part.isdigit() for part in parts) or counts[0] < 1 or counts[-1] < SPEEDUP_ITEMS:
        raise click.BadParameter(
            f"write numbers such as 1,8,32, one of them at least {SPEEDUP_ITEMS}: it has the gate."
        )
    return counts


def _reason(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None and not text.strip():
        raise click.BadParameter("say why these gates are waived.")
    return text


@click.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    help="Checkpoint: a directory, a name, or random:SHAPE/DIVISOR; repeatable, one after the other.",
)
@click.option("--model-matrix", is_flag=True, help="Random weights in eight published shapes, sizes divided by 8.")
@target_options
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float32"]),
    show_default="a server's own, else bfloat16",
    help="Type to compute in; it decides the thresholds. A server that says its own must say the same.",
)
@click.option("--speedup-items", "counts", default="1,8,32", callback=_counts, help="Numbers of items to time.")
@click.option(
    "--without-pytorch",
    metavar="REASON",
    callback=_reason,
    help="Waive the gates against PyTorch; the artifact keeps the reason.",
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
    counts: list[int],
    without_pytorch: str | None,
) -> None:
    """Check that scores can be trusted: isolation, equality with serial scoring and with PyTorch, and speed.

    Exit status 1: a gate of a model failed, or could not be run.
    """
    from mis_bench.environment import environment, hardware_of
    from mis_bench.targets.base import TargetUnavailable
    from mis_bench.validation.gates import Validation
    from mis_bench.validation.table import as_table, verdict

    chosen = tuple(dict.fromkeys(models + (MODEL_MATRIX if model_matrix else ())))
    if spec == "engine" and not chosen:
        raise click.UsageError("Name a checkpoint with --model, or take --model-matrix.")
    if spec != "engine" and len(chosen) > 1:
        raise click.UsageError("A server has one model: give --model once, or not at all.")
    directories = [checkpoint(model) for model in chosen]  # a wrong name is found before an hour has passed
    path = new_folder(output, identity(datetime.datetime.now(datetime.UTC), "validate"), _FILE) / _FILE
    if spec == "engine":
        options = {"dtype": dtype or "bfloat16", **options}
    here = environment(hardware)
    found = Validation(environment=here, planned=list(chosen or (spec,)), models=[])
    for model, directory in zip(found.planned, directories or (None,), strict=True):
        asked = _Asked(model, directory, spec, options, timeout, dtype, counts, without_pytorch)
        try:
            validated = asyncio.run(asked.validated(vocabulary(directory, vocab_size)))
        except TargetUnavailable as error:
            found = found.model_copy(update={"unavailable": found.unavailable | {model: str(error)}})
        else:
            here = here.model_copy(update={"hardware": hardware_of(hardware, validated.about, here.hardware)})
            found = found.model_copy(update={"environment": here, "models": [*found.models, validated]})
            table = as_table(validated)
            table.caption = caption(validated.about, here.hardware)
            show(table)
        with one_sentence():
            found.write(path)
    for each in found.models:
        click.echo(verdict(each))
    for model, why in found.unavailable.items():
        click.echo(f"{model}: not validated. {why}")
    click.echo(f"Written: {path}", err=True)
    if not found.passed:
        raise SystemExit(1)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A model to validate."""

    model: str
    directory: Path | None
    spec: str
    options: Mapping[str, str]
    timeout_s: float
    dtype: "Dtype | None"
    counts: list[int]
    without_pytorch: str | None

    async def validated(self, vocab_size: int | None) -> "ModelValidation":
        """Open its targets and measure; raises `TargetUnavailable`."""
        from mis_bench.validation.ask import Scorer
        from mis_bench.validation.cases import build_cases
        from mis_bench.validation.run import Subject, closing, steps, validate

        is_engine = self.spec == "engine"
        async with closing(await self._open(self.spec, self.options)) as target:
            computed = _computed(target.about, self.dtype)
            serial = {"scoring_algorithm": "serial"} if is_engine else {}
            subject = Subject(
                multi=Scorer(target, self.timeout_s),
                serial=Scorer(target, self.timeout_s, serial, splits=not is_engine),
                delimited=self._delimited if is_engine else None,
                reference=self.without_pytorch or self._pytorch,
            )
            with progress() as bars:
                bar = bars.add_task(self.model, total=steps(self.counts))
                return await validate(
                    self.model,
                    subject,
                    dtype=computed,
                    cases=build_cases(vocab_size, _end_of_text(self.directory)),
                    counts=self.counts,
                    vocab_size=vocab_size,
                    on_gate=lambda name: bars.update(bar, description=f"{self.model}: {name}", advance=1),
                )

    async def _delimited(self, token: int) -> "Target":
        own = {"multi_item_scoring_delimiter": str(token), "skip_warmup": "true"}  # few of its shapes are needed
        return await self._open(self.spec, {**self.options, **own})

    async def _pytorch(self) -> "Target":
        return await self._open("transformers-serial", {"dtype": "float32"})

    async def _open(self, spec: str, options: Mapping[str, str]) -> "Target":
        from mis_bench.targets.base import TargetUnavailable
        from mis_bench.targets.registry import opener
        from mis_bench.targets.spec import TargetSpec

        found = opener(TargetSpec(spec, spec, dict(options)), model=self.directory)
        if not found.capabilities.forgets:
            raise TargetUnavailable(f"{spec} cannot be validated: it knows no way to forget a query.")
        return await found.open()


def _computed(about: "About", given: "Dtype | None") -> "Dtype":
    """Return the type that a target computes in: what it says itself, else what the user says.

    Raises:
        TargetUnavailable: there are no thresholds for it, or the two differ.
    """
    from mis_bench.targets.base import TargetUnavailable
    from mis_bench.validation.thresholds import EQUIVALENCE

    if about.dtype in (None, "auto"):
        return given or "bfloat16"
    if about.dtype not in EQUIVALENCE:
        known = " and ".join(EQUIVALENCE)
        raise TargetUnavailable(f"{about.name} computes in {about.dtype}; there are thresholds for {known}.")
    if given not in (None, about.dtype):
        raise TargetUnavailable(f"{about.name} computes in {about.dtype}, not in {given}; leave --dtype out.")
    return cast("Dtype", about.dtype)


def _end_of_text(directory: Path | None) -> int | None:
    """Return the checkpoint's end-of-text token, as far as it tells."""
    if directory is None:
        return None
    token = json.loads((directory / "config.json").read_text(encoding="utf-8")).get("eos_token_id")
    return token[0] if isinstance(token, list) else token
