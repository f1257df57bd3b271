"""What commands that ask a target share: options, checkpoints, progress and folders."""

import datetime
import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from mis_bench.drawing import TOKEN_IDS
from mis_bench.manifest import MANIFEST
from mis_bench.targets.target import About

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

ABOVE_0 = click.FloatRange(0, min_open=True)

_LINE_S = 10.0


def pairs(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Return `NAME=VALUE` options by name; the callback of such."""
    wrong = next((text for text in texts if "=" not in text[1:]), None)
    if wrong is not None:
        raise click.BadParameter(f"{wrong[:80]!r} is not NAME=VALUE, such as dtype=float32.")
    return dict(text.split("=", 1) for text in texts)


def adding(*those: Decorator) -> Decorator:
    """Return a decorator that adds options, in the order of the help."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(those):
            command = option(command)
        return command

    return add


def options_of(schema: type[BaseModel], **spelled: str) -> Decorator:
    """Return a decorator that adds an option for every field: type, limits, default and help are the field's.

    `spelled` names the options that are not called as their fields are.
    """
    return adding(*(_option(spelled.get(name, name), name, field) for name, field in schema.model_fields.items()))


def _option(spelling: str, name: str, field: FieldInfo) -> Decorator:
    given: dict[str, Any] = {"required": True} if field.is_required() else {"default": field.default}
    is_flag = field.annotation is bool
    spelling = f"--{spelling.replace('_', '-')}"
    return click.option(spelling, name, type=_type_of(field), is_flag=is_flag, help=field.description, **given)


def _type_of(field: FieldInfo) -> click.ParamType:
    """Return what reads a field's values, within its limits; None counts as not given."""
    kinds = [each for each in get_args(field.annotation) or [field.annotation] if each is not NoneType]
    if get_origin(field.annotation) is Literal:
        return click.Choice(kinds)
    if kinds[0] not in (int, float):
        return click.BOOL if kinds[0] is bool else click.STRING
    bounds = itertools.product(field.metadata, ("ge", "gt", "le"))
    limits = {name: getattr(each, name) for each, name in bounds if hasattr(each, name)}
    number = click.IntRange if kinds[0] is int else click.FloatRange
    return number(limits.get("ge", limits.get("gt")), limits.get("le"), min_open="gt" in limits)


SHARED = (
    click.option(
        "--option", "options", multiple=True, metavar="NAME=VALUE", callback=pairs, show_default="none",
        help="Option of every target, such as `dtype=float32`. Repeatable.",
    ),
    click.option(
        "--vocab-size", type=click.IntRange(2), show_default="that of --model",
        help="Size of the vocabulary in tokens. A server with a small model needs it.",
    ),
    click.option("--timeout", type=ABOVE_0, default=180.0, help="Seconds that a request may take."),
    click.option(
        "--output", type=click.Path(file_okay=False, path_type=Path), show_default="a new one in results/",
        help="Folder for the results.",
    ),
)  # fmt: skip
"""Options of every command that asks a target."""

target_options = adding(
    click.option("--target", "spec", default="engine", help="Target: `engine`, or a server as `mis=http://HOST:PORT`."),
    click.option(
        "--hardware", show_default="this machine's", help="Hardware of a server that runs on another machine."
    ),
    *SHARED,
)
"""Adds the options that name one target."""


def checkpoint(spec: str | None) -> Path | None:
    """Return the directory of `--model`, or None if it was not given."""
    from mis_bench.checkpoints import CheckpointError, resolve_checkpoint

    try:
        return None if spec is None else resolve_checkpoint(spec)
    except CheckpointError as error:
        raise click.BadParameter(str(error), param_hint="--model") from None


def vocabulary(model: Path | None, given: int | None) -> int | None:
    """Return the size of the vocabulary that ids must be folded into, or None if all ids occur in it."""
    size = given
    if size is None and model is not None and (model / "config.json").is_file():
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return size if size is not None and size < TOKEN_IDS.stop else None


def new_folder(output: Path | None, run_id: str, *files: str) -> Path:
    """Return the folder for a run's results; one that holds such files already, or other evidence, is refused."""
    folder = output or Path("results") / run_id
    for name in (*files, MANIFEST):
        if (folder / name).exists():
            raise click.BadParameter(f"{folder} already holds {name}; name another folder.", param_hint="--output")
    return folder


def identity(began: datetime.datetime, what: str) -> str:
    """Return a name for a run that sorts by time."""
    return f"{began:%Y%m%dT%H%M%SZ}-{what}"


class TimeLeft(ProgressColumn):
    """The time left if the rest goes on as it went since the first part began: what loads before that says nothing.

    Rich's own column forgets what is older than 30 s.
    """

    def render(self, task: Task) -> Text:
        """Return the time, or dashes before there is a part to judge by."""
        left = None
        if task.completed and task.total is not None:
            taken = time.monotonic() - task.fields["began_s"]
            left = datetime.timedelta(seconds=int(taken * (task.total / task.completed - 1)))
        return Text("-:--:--" if left is None else str(left), style="progress.remaining")


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Callable[[str, float, int], None]]:
    """Show a progress bar on standard error, with the time left; yields what moves it, see `execution.Progress`.

    A log gets a line for what goes on, at most one in `_LINE_S`.
    """
    console = Console(stderr=True)
    printed, printed_s, began_s = title, -_LINE_S, time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())

    with Progress(*columns, TextColumn("left"), TimeLeft(), console=console) as bars:
        bar = bars.add_task(title, total=total, began_s=began_s)

        def show(what: str, over: float, total: int) -> None:
            nonlocal printed, printed_s, began_s
            now = time.monotonic()
            began_s = began_s if over else now
            bars.update(bar, description=what, completed=over, total=total, began_s=began_s)
            if not console.is_terminal and what != printed and now - printed_s >= _LINE_S:
                click.echo(f"{what} ({over:.0f}/{total})", err=True)
                printed, printed_s = what, now

        yield show


def caption(about: About, hardware: str) -> str:
    """Return what a reader of a table must know: target, versions and every option."""
    what = f"{about.name} ({about.backend}), {about.model}, {about.dtype or 'dtype unknown'}, {hardware}"
    versions = " ".join(f"{name} {version}" for name, version in about.versions.items())
    given = " ".join(f"{name}={value}" for name, value in about.options.items())
    return "\n".join(text for text in (what, versions, given) if text)
