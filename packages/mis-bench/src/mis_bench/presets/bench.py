"""Commands that measure: their options, targets found before anything loads, and carrying a plan out."""

import asyncio
import datetime
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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
from mis_bench.results.records import PLAN, Case, Plan, PlannedTarget, WorkloadPart
from mis_bench.targets import registry
from mis_bench.targets.spec import TargetSpec, is_secret, without_secrets
from mis_bench.targets.target import Opener, TargetUnavailable
from mis_bench.workload import CANONICAL, build_workload

if TYPE_CHECKING:
    from mis_bench.results.summary import Summary

POSITIVE = click.IntRange(1)


def numbers(kind: click.ParamType) -> Callable[..., tuple[Any, ...]]:
    """Return a callback for numbers behind commas; each counts once."""

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
    "--workload", "workload_name", default=CANONICAL, help="KIND-Q-N-L, or another name of a workload."
)

measuring_options = adding(
    click.option(
        "--target", "targets", multiple=True, default=["engine"],
        help="[ALIAS=]TARGET[,OPTION=VALUE]...: engine, a server such as mis=http://HOST:PORT, and so on; repeatable. "
        "Targets take turns.",
    ),
    click.option("--model", "models", multiple=True, help="A directory, a name, or random:SHAPE/DIVISOR; repeatable."),
    click.option(
        "--hardware", multiple=True, callback=by_target(click.STRING), metavar="[TARGET=]TEXT",
        help="What a server elsewhere computes on; repeatable.",
    ),
    click.option(
        "--hourly-cost", multiple=True, callback=by_target(ABOVE_0), metavar="[TARGET=]USD",
        help="Of a target's machine, or of all; repeatable.",
    ),
    click.option("--repeat", type=POSITIVE, default=1, help="Do all of it so often, with targets opened anew."),
    click.option("--allow-missing", is_flag=True, help="Go on without targets that cannot run."),
    *SHARED,
)  # fmt: skip
"""Adds the options that say whom to ask, how often, and where results go: the keywords of `Bench`."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """Whom to measure, and how.

    The first fields are what the options of `measuring_options` say; `find` adds the others.

    Attributes:
        planned: Targets that can run, as the plan has them.
        openers: By name of a target.
        vocab_size: Of all requests: what the user said or, once targets are found, the smallest of their checkpoints';
            None if all ids occur in every vocabulary.
        notes: Which targets were left out.
    """

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
    planned: list[PlannedTarget] = field(default_factory=list)
    openers: dict[str, Opener] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def find(self, *, dtypes: Sequence[str | None] = (None,), must_forget: bool = False) -> list[PlannedTarget]:
        """Look which targets can run, before anything is loaded.

        Args:
            dtypes: Types that our engine is opened with, one after the other, unless the user chose one.
            must_forget: Refuse targets that know no way to forget a query.

        Raises:
            click.ClickException: one cannot, and they are not allowed to be missing; or none can.
        """
        from mis_bench.measuring.execution import check

        try:
            specs = [TargetSpec.parse(text) for text in self.targets]
        except TargetUnavailable as error:
            raise click.BadParameter(str(error), param_hint="--target") from None
        sizes: list[int | None] = []
        for group, (model, dtype) in enumerate(product(self.models or (None,), dtypes)):
            directory = checkpoint(model)
            sizes.append(vocabulary(directory, self.vocab_size))
            for spec in specs:
                chosen = self.options | spec.options
                ending = [Path(model).name] if model and len(self.models) > 1 else []
                if dtype and spec.spec == "engine" and "dtype" not in chosen:
                    chosen["dtype"] = dtype
                    ending.append(dtype)
                elif dtype != dtypes[0]:
                    continue
                self._add(TargetSpec("-".join([spec.alias, *ending]), spec.spec, chosen), group, model, directory)
        self.vocab_size = min((size for size in sizes if size), default=None)
        why = asyncio.run(check(self.openers))
        for name, opener in self.openers.items():
            if must_forget and not opener.capabilities.forgets:
                why[name] = "It knows no way to forget a query, so that its requests would not be cold."
        self.notes = [f"{name} could not run: {reason}" for name, reason in why.items()]
        if why and (not self.allow_missing or len(why) == len(self.planned)):
            raise click.ClickException(" ".join(self.notes))
        for note in self.notes:
            click.echo(note, err=True)
        self.planned = [target for target in self.planned if target.name not in why]
        return self.planned

    def _add(self, target: TargetSpec, group: int, model: str | None, directory: Path | None) -> None:
        name = target.alias
        if name in self.openers:
            raise click.UsageError(f"The target {name} is named twice; tell them apart: ALIAS={name}.")
        self.openers[name] = registry.opener(target, model=directory)
        self.planned.append(
            PlannedTarget(
                name=name,
                spec=without_secrets(target.spec),
                options={key: value for key, value in target.options.items() if not is_secret(key)},
                model=model,
                group=group,
                hardware=self.hardware.get(name, self.hardware.get("")),
                hourly_cost_usd=self.hourly_cost.get(name, self.hourly_cost.get("")),
            )
        )

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
        **fields: Any,
    ) -> "tuple[Summary, Path]":
        """Measure cases, each so often in turn as there are rounds; write the results and show them.

        `fields` are further ones of the plan. Returns what came of it, and its folder.
        """
        from mis_bench.environment import environment
        from mis_bench.measuring.execution import execute
        from mis_bench.results.rows import rows_table
        from mis_bench.results.summary import summarize

        started = datetime.datetime.now(datetime.UTC)
        run_id = identity(started, title or preset)
        folder = new_folder(self.output, run_id, PLAN)
        plan = Plan.model_validate(
            {
                "run_id": run_id, "preset": preset, "command": _command_line(self.targets), "started": started,
                "environment": environment(self.hardware.get("")), "targets": self.planned, "cases": cases,
                "rounds": rounds, "repeat": self.repeat, "timeout_s": self.timeout, "notes": self.notes, **fields,
            }
        )  # fmt: skip
        with progress() as bar:
            task = bar.add_task(preset, total=None)
            results = execute(
                plan,
                self.openers,
                folder,
                allow_missing=self.allow_missing,
                on_progress=lambda what, over, total: bar.update(task, description=what, completed=over, total=total),
            )
        summary = summarize(results)
        rows_table(f"{title or preset}, {run_id}", summary.rows).show()
        for name, about in {each.target: each.about for each in results.opened if each.about}.items():
            hardware = next(row.hardware for row in summary.rows if row.target == name)
            click.echo(f"{name}: {caption(about, hardware)}")
        for sentence in (*summary.findings, *self.notes):
            click.echo(sentence)
        click.echo(f"Written: {folder}", err=True)
        return summary, folder


def finish(summary: "Summary") -> None:
    """Say which limits were missed; status 1 if the summary did not pass."""
    for miss in summary.missed:
        click.echo(f"Gate missed: {miss}.", err=True)
    if not summary.passed:
        raise SystemExit(1)


def _command_line(targets: Sequence[str]) -> str:
    """Return the command line, its targets and options without their secrets."""
    arguments = sys.argv[1:]
    for text in sorted(targets, key=len, reverse=True):
        arguments = [each.replace(text, without_secrets(text)) for each in arguments]
    hidden = ["***" if "=" in each and is_secret(each.partition("=")[0]) else each for each in arguments]
    return shlex.join(["mis-bench", *hidden])
