"""`mis-server`: the flags and environment variables of `EngineConfig` and `ServerConfig`, generated from them."""

import asyncio
import contextlib
import dataclasses
import os
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError, MisError
from mis_server import __version__
from mis_server.settings import ServerConfig
from mis_server.telemetry.logs import log_to_stderr


@click.group(context_settings={"max_content_width": 120})
@click.version_option(__version__, package_name="mis-server", message="%(prog)s %(version)s")
def main() -> None:
    """Score many items against one query with a language model."""


class _Option(click.Option):
    """A flag.

    Its variable may be empty: an empty MIS_API_KEY is refused, where click would open the server. A wrong value is
    told of where it was given: the flag, the variable, or the line of the settings file.
    """

    def __init__(self, declarations: list[str], *, group: str = "Options", **attributes: Any) -> None:
        super().__init__(declarations, **attributes)
        self.group = group

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the variable as it is; empty counts as unset only where it cannot be a text."""
        given = None if self.envvar is None else os.environ.get(str(self.envvar))
        return given if self.type is click.STRING else given or None

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the flag, without its variable."""
        return f"'{_flag(self.name)}'"

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Convert a value."""
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            if ctx.get_parameter_source(self.name) not in (ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP):
                raise
            raise click.ClickException(f"{_given_as(ctx, self.name)}: {error.message}") from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _given_as(ctx: click.Context, name: str) -> str:
    """Return how an option was given: its flag, its variable, or its name in the settings file."""
    match ctx.get_parameter_source(name):
        case ParameterSource.ENVIRONMENT:
            return f"MIS_{name.upper()}"
        case ParameterSource.DEFAULT_MAP:
            return f"{name} in {ctx.meta[_CONFIG]}"
    return _flag(name)


_CONFIG = f"{__name__}.config"  # where the context keeps the path of the settings file


def options_of(config: type[Any]) -> Iterator[click.Option]:
    """Yield a flag for each field declared with `mis_core.config.option`."""
    hints = get_type_hints(config)
    for field in dataclasses.fields(config):
        if "aliases" not in field.metadata:
            continue
        kind, is_flag = _plain_type(hints[field.name]), hints[field.name] is bool
        choices = field.metadata["choices"]
        flags = [_flag(field.name), *field.metadata["aliases"]]
        yield _Option(
            [field.name, *flags],
            type=click.Choice(choices) if choices else kind,
            is_flag=is_flag,
            default=field.default,
            show_default=("on" if field.default else "off") if is_flag else True,
            envvar=f"MIS_{field.name.upper()}",
            show_envvar=True,
            help=field.metadata["help"],
            group=field.metadata["group"],
        )


def _plain_type(hint: Any) -> Any:
    """Return `int` for `int | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(kind for kind in get_args(hint) if kind is not type(None))
    return hint


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Tell what the user can mend in one line, without a traceback."""
    try:
        yield
    except ConfigError as error:
        where = _given_as(click.get_current_context(), error.option)
        raise click.ClickException(f"{where}: {error.message}") from None
    except MisError as error:
        raise click.ClickException(error.message) from None


def _serve(model: str | None, model_path: str | None, **options: Any) -> None:
    """Serve MODEL, a Hugging Face model directory or name, over HTTP.

    MODEL may also be given as --model-path or --model.
    """
    model = model or model_path
    if model is None:
        raise click.UsageError("MODEL is missing: a Hugging Face model directory or name.")
    engine_names = {field.name for field in dataclasses.fields(EngineConfig)}
    engine = {name: value for name, value in options.items() if name in engine_names}
    server = {name: value for name, value in options.items() if name not in engine_names}
    with _one_line_errors():
        settings = ServerConfig(engine=EngineConfig.of(model, engine), **server)
        log_to_stderr(settings.log_format, settings.log_level)
        # Imported late, so that --help and bad flags answer at once.
        import uvloop

        from mis_server.serving import serve

        with contextlib.suppress(asyncio.CancelledError):  # stopped before it began
            uvloop.run(serve(settings))


class _Command(click.Command):
    """A command whose options can also come from a file, and whose repeatable options take several values at once."""

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
        flags = {flag for option in self.params if getattr(option, "multiple", False) for flag in option.opts}
        repeated, given = None, False
        for arg in args:
            if arg.startswith("--"):
                repeated, given = (arg, False) if arg in flags else (None, False)
            elif repeated and given:
                yield repeated
            given = not arg.startswith("--")
            yield arg


def _read_config(ctx: click.Context, option: click.Parameter, path: str | None) -> None:
    """Take defaults from a TOML file; flags and variables go before."""
    if path is None:
        return
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise click.ClickException(f"--config: {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.ClickException(f"--config: {path} is not TOML: {error}.") from None
    known = {parameter.name for parameter in ctx.command.params} - {"config", "help"}
    names = {name.replace("-", "_"): value for name, value in values.items()}
    for name in names:
        if name not in known:
            raise click.ClickException(f"--config: {path} has an unknown option {name!r}.")
    several = {parameter.name for parameter in ctx.command.params if getattr(parameter, "multiple", False)}
    ctx.meta[_CONFIG] = path
    ctx.default_map = {name: _as_text(f"{name} in {path}", value, name in several) for name, value in names.items()}


def _as_text(where: str, value: Any, has_several: bool) -> Any:
    """Return a value of TOML as a flag would have it, so that both are checked alike."""
    if has_several and isinstance(value, list):
        return [_as_text(where, each, False) for each in value]
    if isinstance(value, list | dict):
        raise click.ClickException(
            f"{where}: one value is wanted, not a {'list' if isinstance(value, list) else 'table'}."
        )
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return [text] if has_several else text


_MODEL = (
    click.Argument(["model"], required=False),
    click.Option(["model_path", "--model-path", "--model"], envvar="MIS_MODEL", show_envvar=True, help="MODEL."),
    click.Option(
        ["config", "--config"],
        callback=_read_config,
        expose_value=False,
        is_eager=True,
        envvar="MIS_CONFIG",
        show_envvar=True,
        help="TOML file of options, such as `port = 8000`; flags and variables go before.",
    ),
)


def _score(model: str | None, model_path: str | None, **options: Any) -> None:
    """Score the lines of a JSONL file with MODEL, without a server.

    Each line is a text, a list of token ids, or an object with `item` and perhaps `query` and `id`. The output has a
    line for each. A run that was interrupted goes on where it stopped when it is started again.
    """
    model = model or model_path
    if model is None:
        raise click.UsageError("MODEL is missing: a Hugging Face model directory or name.")
    engine = {field.name for field in dataclasses.fields(EngineConfig)}
    config = {name: value for name, value in options.items() if name in engine}
    overwrite = options.pop("overwrite")
    job = {name: value for name, value in options.items() if name not in engine}
    items = Path(job.pop("items"))
    output = Path(job.pop("output") or items.with_name(f"{items.stem}.scores.jsonl"))
    if not job["labels"] and not job["label_token_ids"]:
        raise click.UsageError("--labels is missing: texts such as ' yes' ' no', or --label-token-ids.")
    with _one_line_errors():
        from mis_server.offline import Job, score_file

        log_to_stderr("human", "warning")
        errors = asyncio.run(
            score_file(Job(items=items, output=output, **job), EngineConfig.of(model, config), overwrite=overwrite)
        )
    click.echo(f"Scores are in {output}." + (f" {errors} lines have an error." if errors else ""))
    if errors:
        raise SystemExit(2)


main.add_command(
    _Command(
        "serve",
        callback=_serve,
        help=_serve.__doc__,
        params=[*_MODEL, *options_of(EngineConfig), *options_of(ServerConfig)],
    )
)
main.add_command(
    _Command(
        "score",
        callback=_score,
        help=_score.__doc__,
        params=[
            *_MODEL,
            _Option(["items", "--items"], required=True, help="JSONL file to score."),
            _Option(["output", "--output"], help="JSONL file of scores; default: beside the items."),
            _Option(["query", "--query"], help="Text that every item stands behind; a line may have its own."),
            _Option(["labels", "--labels"], multiple=True, help="Label texts, each one token: ' yes' ' no'."),
            _Option(["label_token_ids", "--label-token-ids"], multiple=True, type=int, help="Labels as token ids."),
            _Option(["apply_softmax", "--apply-softmax"], is_flag=True, help="Softmax over the labels."),
            _Option(["item_first", "--item-first"], is_flag=True, help="Score item + query."),
            _Option(["temperature", "--temperature"], default=1.0, show_default=True, help="Of the softmax."),
            _Option(["batch_size", "--batch-size"], default=512, show_default=True, help="Items of a request."),
            _Option(["overwrite", "--overwrite"], is_flag=True, help="Begin again."),
            *options_of(EngineConfig),
        ],
    )
)
