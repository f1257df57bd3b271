"""Whom the measuring commands ask: options, and targets found before anything loads."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mis_bench.commands.measuring import checkpoint, pairs, vocabulary
from mis_bench.targets.base import TargetUnavailable
from mis_bench.targets.spec import TargetSpec, is_secret, without_secrets

if TYPE_CHECKING:
    from mis_bench.records import PlannedTarget
    from mis_bench.targets.base import Opener

ABOVE_0 = click.FloatRange(0, min_open=True)

TARGET_HELP = (
    "[ALIAS=]TARGET[,OPTION=VALUE]...: engine, a server such as mis=http://HOST:PORT, and so on; repeatable. "
    "Targets take turns."
)


@dataclass(frozen=True, slots=True)
class Given:
    """What the options of `measuring_options` said."""

    targets: tuple[str, ...]
    options: dict[str, str]
    models: tuple[str, ...]
    vocab_size: int | None
    hardware: str | None
    hourly_cost: dict[str, float]
    timeout: float
    repeat: int
    allow_missing: bool
    output: Path | None


def measuring_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say whom to ask, how often, and where results go; the command gets them as `given`."""
    options = (
        click.option("--target", "targets", multiple=True, default=["engine"], help=TARGET_HELP),
        click.option(
            "--option", "options", multiple=True, metavar="NAME=VALUE", callback=pairs,
            help="Option of every target, scoring_algorithm=packed for instance; repeatable.",
        ),
        click.option(
            "--model", "models", multiple=True,
            help="Checkpoint: a directory, a name, or random:SHAPE/DIVISOR; several are measured one after the other.",
        ),
        click.option(
            "--vocab-size", type=click.IntRange(2), show_default="that of --model",
            help="Fold token ids into a vocabulary of this size; for servers with small models.",
        ),
        click.option("--hardware", show_default="this machine's", help="What computes, where a server runs elsewhere."),
        click.option(
            "--hourly-cost", multiple=True, metavar="[TARGET=]USD", callback=_costs,
            help="US dollars an hour of a target's machine, or of all; repeatable.",
        ),
        click.option("--timeout", type=ABOVE_0, default=180.0, help="Seconds a request may take."),
        click.option(
            "--repeat", type=click.IntRange(1), default=1, help="Do all of it so often, with targets opened anew."
        ),
        click.option("--allow-missing", is_flag=True, help="Go on without targets that cannot run."),
        click.option(
            "--output", type=click.Path(file_okay=False, path_type=Path),
            show_default="in results/, named after the command", help="Folder for the results.",
        ),
    )  # fmt: skip
    names = ("targets", "options", "models", "vocab_size", "hardware", "hourly_cost", "timeout", "repeat")

    @wraps(command)
    def with_given(**values: Any) -> None:
        given = Given(**{name: values.pop(name) for name in (*names, "allow_missing", "output")})
        command(given=given, **values)

    for option in reversed(options):
        with_given = option(with_given)
    return with_given


@dataclass(slots=True)
class Bench:
    """Targets that were found to run, before anything was loaded.

    Attributes:
        given: The command's options.
        targets: As the plan has them.
        openers: By name of a target.
        directories: Checkpoints, by name of a target.
        notes: Which were left out.
    """

    given: Given
    targets: list["PlannedTarget"] = field(default_factory=list)
    openers: dict[str, "Opener"] = field(default_factory=dict)
    directories: dict[str, Path | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def vocabulary(self, target: "PlannedTarget") -> int | None:
        """Return the size of the vocabulary that ids are folded into; None if all ids occur in the target's."""
        return vocabulary(self.directories[target.name], self.given.vocab_size)

    @property
    def common_vocabulary(self) -> int | None:
        """The smallest of the targets' vocabularies, for requests that are the same for all."""
        return min((size for target in self.targets if (size := self.vocabulary(target))), default=None)


def find_targets(
    given: Given, *, dtypes: Sequence[str | None] = (None,), must_forget: bool = False, layouts: bool = False
) -> Bench:
    """Look whether all targets can run.

    Args:
        given: The options.
        dtypes: Types that our engine is opened with, one after the other, unless the user chose one.
        must_forget: Refuse targets that know no way to forget a query.
        layouts: Refuse targets that take no layout with a request.

    Raises:
        click.ClickException: one cannot, and they are not allowed to be missing; or none can.
    """
    from mis_bench.execution import check
    from mis_bench.records import PlannedTarget
    from mis_bench.targets.registry import opener

    bench, why = Bench(given), {}
    try:
        specs = [TargetSpec.parse(text) for text in given.targets]
    except TargetUnavailable as error:
        raise click.BadParameter(str(error), param_hint="--target") from None
    models = [(model, checkpoint(model)) for model in given.models or (None,)]
    for group, (model, directory) in enumerate(models):
        for spec in specs:
            options = given.options | spec.options
            own = dtypes if spec.spec == "engine" and "dtype" not in options else (None,)
            for part, dtype in enumerate(own):
                chosen = options | ({"dtype": dtype} if dtype else {})
                ending = [model] * (len(models) > 1) + [dtype] * (len(own) > 1)
                name = "-".join([spec.alias, *(Path(each).name for each in ending if each)])
                if name in bench.openers:
                    raise click.UsageError(f"The target {name} is named twice; tell them apart: ALIAS={name}.")
                bench.openers[name] = opener(TargetSpec(name, spec.spec, chosen), model=directory)
                bench.directories[name] = directory
                bench.targets.append(
                    PlannedTarget(
                        name=name,
                        spec=without_secrets(spec.spec),
                        options={key: value for key, value in chosen.items() if not is_secret(key)},
                        model=model,
                        group=group * len(dtypes) + part,
                        hardware=given.hardware,
                        hourly_cost_usd=given.hourly_cost.get(name, given.hourly_cost.get("")),
                    )
                )
                can = bench.openers[name].capabilities
                if must_forget and not can.forgets:
                    why[name] = "It knows no way to forget a query, so that its requests would not be cold."
                if layouts and not can.layouts:
                    why[name] = "It takes no layout with a request."
    why |= asyncio.run(check(bench.openers))
    if why:
        bench.notes = [f"{name} could not run: {reason}" for name, reason in why.items()]
        if not given.allow_missing or len(why) == len(bench.targets):
            raise click.ClickException(" ".join(bench.notes))
        bench.targets = [target for target in bench.targets if target.name not in why]
        for note in bench.notes:
            click.echo(note, err=True)
    return bench


def numbers(kind: Callable[[str], Any], example: str) -> Callable[..., tuple[Any, ...]]:
    """Return a callback for a list of numbers above zero behind commas."""

    def parse(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[Any, ...]:
        try:
            values = tuple(dict.fromkeys(kind(part) for part in (text or "").split(",") if part.strip()))
        except ValueError:
            values = (-1,)
        if any(value < 0 for value in values):
            raise click.BadParameter(f"{(text or '')[:80]!r} is not a list of numbers such as {example}.")
        return values

    return parse


def named_numbers(texts: Sequence[str], kind: Callable[[str], float], example: str) -> dict[str, float]:
    """Return numbers above zero by the target that each names; "" stands for all.

    Raises:
        click.BadParameter: one is none.
    """
    found = {}
    for text in texts:
        name, _, digits = text.rpartition("=")
        try:
            value = kind(digits)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise click.BadParameter(f"{text[:80]!r} is not a number such as {example}.")
        found[without_secrets(name)] = value
    return found


def _costs(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, float]:
    return named_numbers(texts, float, "engine=0.64")
