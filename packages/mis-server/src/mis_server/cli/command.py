"""What the commands share: how they are written down in `--help` and typed, the model, and the config file."""

import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from mis_server.cli.options import CONFIG, Flag, one_line_errors


class Command(click.Command):
    """A command with a model and grouped options, whose repeatable options take several values at once."""

    def __init__(self, name: str, callback: Callable[..., None], options: Iterable[click.Parameter]) -> None:
        super().__init__(
            name, callback=one_line_errors()(callback), help=callback.__doc__, params=[*_model(), *options]
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under the headings of their groups."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(parameter, "group", "Options"), []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read `--labels a b` as `--labels a --labels b`."""
        return super().parse_args(ctx, list(self._repeated(args)))

    def _repeated(self, args: list[str]) -> Iterator[str]:
        flags = {flag for option in _several(self) for flag in option.opts}
        repeated, given = None, False
        for arg in args:
            if arg.startswith("--"):
                repeated, given = (arg, False) if arg in flags else (None, False)
            elif repeated and given:
                yield repeated
            given = not arg.startswith("--")
            yield arg


def _several(command: click.Command) -> list[Flag]:
    return [option for option in command.params if isinstance(option, Flag) and option.multiple]


def _model() -> tuple[click.Parameter, ...]:
    """Return where the model is named, and the config file."""
    return (
        click.Argument(["model"], required=False),
        click.Option(
            ["model_path", "--model-path", "--model"],
            envvar="MIS_MODEL",
            show_envvar=True,
            help="MODEL as an option. Default: the argument.",
        ),
        click.Option(
            ["config", "--config"],
            callback=_read_config,
            expose_value=False,
            is_eager=True,
            envvar="MIS_CONFIG",
            show_envvar=True,
            help="TOML file with options, such as `port = 8000`. Flags and environment variables override it. "
            "Default: none.",
        ),
    )


def _read_config(ctx: click.Context, option: click.Parameter, path: str | None) -> None:
    """Take defaults from a TOML file; flags and environment variables override them."""
    if path is None:
        return
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise click.ClickException(f"--config: {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.ClickException(f"--config: {path} is not TOML: {error}.") from None
    known = {parameter.name for parameter in ctx.command.params} - {"config", "help"}
    names = {name.replace("-", "_"): value for name, value in values.items()}
    for name in names:
        if name not in known:
            raise click.ClickException(f"--config: {path} has an unknown option {name!r}.")
    several = {option.name for option in _several(ctx.command)}
    ctx.meta[CONFIG] = path
    ctx.default_map = {name: _as_text(f"{name} in {path}", value, name in several) for name, value in names.items()}


def _as_text(where: str, value: Any, has_several: bool) -> Any:
    """Return a TOML value as the text that a flag would have, so that both are checked the same way."""
    if has_several and isinstance(value, list):
        return [_as_text(where, each, False) for each in value]
    if isinstance(value, list | dict):
        raise click.ClickException(
            f"{where}: expected one value, not a {'list' if isinstance(value, list) else 'table'}."
        )
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return [text] if has_several else text
