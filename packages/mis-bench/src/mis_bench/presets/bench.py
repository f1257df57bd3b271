"""Commands that measure: their options, targets found before anything loads, and carrying a plan out."""

import asyncio
import datetime
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mis_bench.environment import environment, model_sha256
from mis_bench.interruption import keeping
from mis_bench.manifest import VIEW
from mis_bench.options import (
    ABOVE_0,
    SHARED,
    adding,
    caption,
    checkpoint,
    identity,
    new_folder,
    progress,
    vocabulary,
)
from mis_bench.results.folder import PLAN
from mis_bench.results.plan import Case, Plan, PlannedTarget, WorkloadPart
from mis_bench.targets import registry
from mis_bench.targets.spec import TargetSpec, is_secret, without_secrets
from mis_bench.targets.target import Opener, TargetUnavailable
from mis_bench.workload import CANONICAL, build_workload

if TYPE_CHECKING:
    from mis_bench.results.summary import Measured

POSITIVE = click.IntRange(1)


def numbers(kind: click.ParamType) -> Callable[..., tuple[Any, ...]]:
    """Return a callback that parses comma-separated numbers; duplicates count once."""

    def parse(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[Any, ...]:
        parts = [part.strip() for part in (text or "").split(",")]
        return tuple(dict.fromkeys(kind.convert(part, parameter, context) for part in parts if part))

    return parse


def by_target(kind: click.ParamType) -> Callable[..., dict[str, Any]]:
    """Return a callback for `[TARGET=]VALUE`: values by target, that of "" for all others."""

    def parse(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
        parts = [text.rpartition("=") for text in texts]
        return {without_secrets(name): kind.convert(value, parameter, context) for name, _, value in parts}

    return parse


workload_option = click.option(
    "--workload",
    "workload_name",
    default=CANONICAL,
    help="Workload: a NAME as for `mis-bench workload`, such as KIND-Q-N-L.",
)

measuring_options = adding(
    click.option(
        "--target", "targets", multiple=True, default=["engine"],
        help="Target, as [ALIAS=]TARGET[,OPTION=VALUE]..., where TARGET is `engine`, `mis=http://HOST:PORT` or "
        "another. Repeatable. Several targets are measured in turn.",
    ),
    click.option(
        "--model", "models", multiple=True, show_default="none",
        help="Checkpoint of the targets: a directory, a name, or `random:SHAPE/DIVISOR`. Repeatable.",
    ),
    click.option(
        "--hardware", multiple=True, callback=by_target(click.STRING), metavar="[TARGET=]TEXT",
        show_default="this machine's", help="Hardware of a server that runs on another machine. Repeatable.",
    ),
    click.option(
        "--hourly-cost", multiple=True, callback=by_target(ABOVE_0), metavar="[TARGET=]USD",
        show_default="none", help="Hourly price in USD, for one target (TARGET=USD) or for all (USD). Repeatable.",
    ),
    click.option("--repeat", type=POSITIVE, default=1, help="Number of repetitions. Targets are opened anew for each."),
    click.option("--allow-missing", is_flag=True, help="Go on without targets that cannot run."),
    *SHARED,
)  # fmt: skip
"""Adds the options that say whom to ask, how often, and where results go: the keywords of `BenchOptions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What the options of `measuring_options` say: whom to measure, how often, and where results go."""

    targets: tuple[str, ...]
    options: dict[str, str]
    models: tuple[str, ...]
    vocab_size: int | None
    hardware: dict[str, str]
    hourly_cost: dict[str, float]
    timeout: float
    repeat: int
    allow_missing: bool
    output: Path | None

    def find(self, *, dtypes: Sequence[str | None] = (None,), must_forget: bool = False) -> "Bench":
        """Look which targets can run, before anything is loaded.

        Args:
            dtypes: Types that our engine is opened with, one after the other, unless the user chose one.
            must_forget: Refuse targets that cannot clear their prefix cache.

        Raises:
            click.ClickException: one cannot, and they are not allowed to be missing; or none can.
        """
        from mis_bench.measuring.execution import check

        try:
            specs = [TargetSpec.parse(text) for text in self.targets]
        except TargetUnavailable as error:
            raise click.BadParameter(str(error), param_hint="--target") from None
        planned: list[PlannedTarget] = []
        openers: dict[str, Opener] = {}
        sizes: list[int | None] = []
        for group, (model, dtype) in enumerate(product(self.models or (None,), dtypes)):
            directory = checkpoint(model)
            sizes.append(vocabulary(directory, self.vocab_size))
            for spec in specs:
                options = self.options | spec.options
                ending = [Path(model).name] if model and len(self.models) > 1 else []
                if dtype and spec.spec == "engine" and "dtype" not in options:
                    options["dtype"] = dtype
                    ending.append(dtype)
                elif dtype != dtypes[0]:
                    continue
                name = "-".join([spec.alias, *ending])
                if name in openers:
                    raise click.UsageError(
                        f"The target {name} is named twice; give one of them an alias: ALIAS={name}."
                    )
                openers[name] = registry.opener(TargetSpec(name, spec.spec, options), model=directory)
                planned.append(self._planned(TargetSpec(name, spec.spec, options), group, model, directory))
        why = asyncio.run(check(openers))
        for name, opener in openers.items():
            if must_forget and not opener.forgets:
                why[name] = "It cannot clear its prefix cache, so its requests would not be cold."
        notes = [f"{name} could not run: {reason}" for name, reason in why.items()]
        if why and (not self.allow_missing or len(why) == len(planned)):
            raise click.ClickException(" ".join(notes))
        for note in notes:
            click.echo(note, err=True)
        vocab_size = min((size for size in sizes if size), default=None)
        return Bench(self, [target for target in planned if target.name not in why], openers, vocab_size, notes)

    def _planned(self, target: TargetSpec, group: int, model: str | None, directory: Path | None) -> PlannedTarget:
        return PlannedTarget(
            name=target.alias,
            spec=without_secrets(target.spec),
            options={key: value for key, value in target.options.items() if not is_secret(key)},
            model=model,
            model_sha256=None if directory is None else model_sha256(directory),
            group=group,
            hardware=self.hardware.get(target.alias, self.hardware.get("")),
            hourly_cost_usd=self.hourly_cost.get(target.alias, self.hourly_cost.get("")),
        )


@dataclass(frozen=True, slots=True)
class Bench:
    """Targets that can run, and how they are measured.

    Attributes:
        given: By the user.
        planned: The targets, as the plan has them.
        openers: By name of a target.
        vocab_size: Of all requests: what the user said, or the smallest of the targets' checkpoints; None if all ids
            occur in every vocabulary.
        notes: Which targets were left out.
    """

    given: BenchOptions
    planned: Sequence[PlannedTarget]
    openers: Mapping[str, Opener]
    vocab_size: int | None
    notes: Sequence[str]

    def part(self, name: str, *, softmax: bool = False, items: int | None = None) -> WorkloadPart:
        """Describe the workload of a name, or its first items; raises `WorkloadNameError`."""
        workload = build_workload(name).within(self.vocab_size)
        return WorkloadPart.of(replace(workload, apply_softmax=softmax, items=workload.items[:items]))

    def named(self, name: str, target: PlannedTarget) -> str:
        """Return the name of a case, with its target's where there are several."""
        return name if len(self.planned) == 1 else f"{name}-{target.name}"

    def measure(
        self,
        preset: str,
        cases: Sequence[Case],
        *,
        rounds: int,
        title: str = "",
        notes: Sequence[str] = (),
        derived: Sequence[str] = (),
        **fields: Any,
    ) -> "Measured":
        """Measure cases, each so often in turn as there are rounds, and write the results with their view.

        `title` ends the folder's name, the preset's unless given; `notes` and `fields` are further ones of the plan;
        `derived` names what the caller writes beside them.
        """
        from mis_bench.measuring.execution import execute
        from mis_bench.report.sources import ReportSources
        from mis_bench.report.writing import write_view

        given, started = self.given, datetime.datetime.now(datetime.UTC)
        run_id = identity(started, title or preset)
        plan = Plan.model_validate(
            {
                "run_id": run_id, "preset": preset, "command": _command_line(given.targets), "started": started,
                "environment": environment(given.hardware.get("")), "targets": self.planned, "cases": cases,
                "rounds": rounds, "repeat": given.repeat, "timeout_s": given.timeout, "notes": [*self.notes, *notes],
                **fields,
            }
        )  # fmt: skip
        folder = new_folder(given.output, run_id, PLAN)
        with keeping(folder):
            with progress(preset) as show:
                found = execute(
                    plan,
                    self.openers,
                    folder,
                    allow_missing=given.allow_missing,
                    derived=(VIEW, *derived),
                    on_progress=show,
                )
            write_view(ReportSources(measured=[found._replace(folder=folder.resolve())]), folder)
        return found


def show(measured: "Measured") -> "Measured":
    """Print the rows, what was measured and what that comes to; return it."""
    from mis_bench.results.rows import rows_table

    folder, results, summary = measured
    title = results.plan.run_id.partition("-")[2]
    rows_table(f"{title}, {results.plan.run_id}", summary.rows).show()
    for name, about in {each.target: each.about for each in results.opened if each.about}.items():
        hardware = next(row.hardware for row in summary.rows if row.target == name)
        click.echo(f"{name}: {caption(about, hardware)}")
    for sentence in (*summary.findings, *results.plan.notes):
        click.echo(sentence)
    click.echo(f"Written: {folder}", err=True)
    return measured


def finish(measured: "Measured") -> None:
    """Say which limits were missed; status 1 if the summary did not pass."""
    for miss in measured.summary.missed:
        click.echo(f"Gate missed: {miss}.", err=True)
    if not measured.summary.passed:
        raise SystemExit(1)


def _command_line(targets: Sequence[str]) -> str:
    """Return the command line, its targets and options without their secrets."""
    arguments = sys.argv[1:]
    for text in sorted(targets, key=len, reverse=True):
        arguments = [each.replace(text, without_secrets(text)) for each in arguments]
    hidden = ["***" if "=" in each and is_secret(each.partition("=")[0]) else each for each in arguments]
    return shlex.join(["mis-bench", *hidden])
