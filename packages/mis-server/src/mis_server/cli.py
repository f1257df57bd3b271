"""The command `mis-server`; flags and environment variables are generated from `EngineConfig` and `ServerConfig`."""

import asyncio
import contextlib
import dataclasses
import importlib.util
import logging
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
from click.core import ParameterSource

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError, MisError
from mis_server import __version__
from mis_server.compatibility import ACCEPTED, translate
from mis_server.settings import ServerConfig
from mis_server.telemetry.logs import log_to_stderr

logger = logging.getLogger(__name__)


@click.group(context_settings={"max_content_width": 120})
@click.version_option(__version__, package_name="mis-server", message="%(prog)s %(version)s")
def main() -> None:
    """Score many items against one query with a language model."""


class _Option(click.Option):
    """A flag.

    Click ignores empty environment variables; here an empty MIS_API_KEY is refused, not taken for no key. Errors name
    the flag, the variable or the line of the config file that a wrong value came from.
    """

    def __init__(self, declarations: list[str], *, group: str = "Options", **attributes: Any) -> None:
        super().__init__(declarations, **attributes)
        self.group = group

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the variable as it is; an empty one counts as unset unless the option is a text."""
        given = None if self.envvar is None else os.environ.get(str(self.envvar))
        return given if self.type is click.STRING else given or None

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the flag without its variable."""
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
    """Return where an option was set: its flag, its variable, or its name in the config file."""
    match ctx.get_parameter_source(name):
        case ParameterSource.ENVIRONMENT:
            return f"MIS_{name.upper()}"
        case ParameterSource.DEFAULT_MAP:
            return f"{name} in {ctx.meta[_CONFIG]}"
    return _flag(name)


_CONFIG = f"{__name__}.config"  # key of the context under which the path of the config file is kept


def options_of(config: type[Any]) -> Iterator[click.Option]:
    """Yield a flag for each field declared with `mis_core.config.option`."""
    hints = get_type_hints(config)
    for field in dataclasses.fields(config):
        if "aliases" not in field.metadata:
            continue
        hint = hints[field.name]
        kind, is_flag = (get_args(hint) or (hint,))[0], hint is bool  # of `int | None`, `int`
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


def _accepted_options() -> Iterator[click.Option]:
    """Yield the flags that are accepted for commands of other servers."""
    for flag in ACCEPTED:
        yield _Option(
            [flag.name, _flag(flag.name)],
            type=flag.kind,
            is_flag=flag.kind is click.BOOL,
            default=False if flag.kind is click.BOOL else None,
            multiple=flag.has_several,
            envvar=f"MIS_{flag.name.upper()}",
            show_envvar=True,
            help=flag.why,
            group="Accepted for compatibility",
        )


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Report errors that the user can fix in one line, without a traceback."""
    try:
        yield
    except ConfigError as error:
        where = _given_as(click.get_current_context(), error.option)
        raise click.ClickException(f"{where}: {error.message}") from None
    except MisError as error:
        raise click.ClickException(error.message) from None


def _pop_engine(options: dict[str, Any]) -> EngineConfig:
    """Take the model and the engine's options out of those of a command."""
    model, model_path = options.pop("model"), options.pop("model_path")
    if not (model or model_path):
        raise click.UsageError("MODEL is missing: a Hugging Face model directory or name, or a GGUF file.")
    names = [field.name for field in dataclasses.fields(EngineConfig) if field.name in options]
    return EngineConfig.of(model or model_path, {name: options.pop(name) for name in names})


@_one_line_errors()
def _serve(**options: Any) -> None:
    """Serve MODEL, a Hugging Face model directory or name, or a GGUF file, over HTTP.

    MODEL may also be given as --model-path or --model.
    """
    options, whys = translate(options)
    settings = ServerConfig(engine=_pop_engine(options), **options)
    log_to_stderr(settings.log_format, settings.log_level)
    for name, why in whys.items():
        logger.info("%s: %s", _given_as(click.get_current_context(), name), why)
    # Imported late, so that --help and errors in flags need not wait for it.
    import uvloop

    from mis_server.serving import serve

    with contextlib.suppress(asyncio.CancelledError):  # stopped before it was ready
        uvloop.run(serve(settings))


class _Command(click.Command):
    """A command with grouped options, whose repeatable options take several values at once."""

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
    several = {parameter.name for parameter in ctx.command.params if getattr(parameter, "multiple", False)}
    ctx.meta[_CONFIG] = path
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
        help="TOML file with options, such as `port = 8000`; flags and environment variables override it.",
    ),
)


@_one_line_errors()
def _score(**options: Any) -> None:
    """Score the rows of files with MODEL, without a server; with --ray, on a cluster.

    Each line is a text, a list of token ids, or an object with `item` or `items` and, optionally, `query` and `id`. The
    output has one line for each. To resume an interrupted run, start it again.
    """
    engine, overwrite = _pop_engine(options), options.pop("overwrite")
    here = {name: options.pop(name) for name in ("items", "output", "output_format")}
    there = {name: options.pop(name) for name in _RAY}
    if not (options["labels"] or options["label_token_ids"] or options["rerank"]):
        raise click.UsageError("--labels is missing: texts such as ' yes' ' no', or --label-token-ids.")
    if options["query"] is not None:  # as a file's text is where a shell put it here
        options["query"] = options["query"].removeprefix("\ufeff")
    log_to_stderr("human", "warning")
    if there["ray"] is None:
        errors = _score_here(here, options, engine, overwrite)
    else:
        errors = _score_there(there | here, options, engine, overwrite)
    if errors:
        raise SystemExit(2)


def _score_here(files: dict[str, Any], options: dict[str, Any], engine: EngineConfig, overwrite: bool) -> int:
    if files["items"] is None:
        raise click.UsageError("Missing option '--items'.")
    from mis_server.offline import Job, score_file
    from mis_server.offline.inputs import is_read_once
    from mis_server.offline.output import is_standard_output

    items, output, written_as = files["items"], files["output"], files["output_format"]
    if output is None and is_read_once(items):
        raise click.UsageError(f"Missing option '--output', which {items} needs; - is standard output.")
    written_as = written_as or ("parquet" if (output or "").endswith(".parquet") else "jsonl")
    if output is not None and is_standard_output(output) and written_as == "parquet":
        raise click.UsageError("--output-format parquet writes a folder, which standard output is not; name one.")
    if output is None:
        output = str(_beside(Path(items), written_as))
    errors = score_file(Job(items=items, output=output, format=written_as, **options), engine, overwrite=overwrite)
    where = "standard output" if is_standard_output(output) else output
    click.echo(
        f"Scores written to {where}." + (f" {errors} rows have an error." if errors else ""),
        err=is_standard_output(output),
    )
    return errors


def _beside(items: Path, format: str) -> Path:
    """Return where the scores of a file are, unless it is said."""
    plain = items.with_suffix("") if items.suffix in (".gz", ".zst") else items
    return plain.parent / f"{plain.stem}.scores.{format}"


_RAY = ("ray", "input", "part_bytes", "actors", "actor_cpus", "actor_gpus", "actor_tpus")


def _score_there(there: dict[str, Any], options: dict[str, Any], engine: EngineConfig, overwrite: bool) -> int:
    if not there["input"]:
        raise click.UsageError("Missing option '--input', which --ray needs.")
    output = there["output"]
    if not output:
        raise click.UsageError("Missing option '--output', which --ray needs.")
    if importlib.util.find_spec("ray") is None:
        raise click.ClickException("--ray needs Ray: pip install 'mis-server[ray]'.")
    from mis_server.offline import OfflineQuery
    from mis_server.ray.job import Actors, JobFiles, score_files

    files = JobFiles(
        input=there["input"],
        output=output,
        format=there["output_format"] or ("parquet" if there["input"].endswith(".parquet") else "jsonl"),
        part_bytes=there["part_bytes"],
    )
    actors = Actors(
        number=there["actors"], cpus=there["actor_cpus"], gpus=there["actor_gpus"], tpus=there["actor_tpus"]
    )
    asked = OfflineQuery(**options)
    done = score_files(files, asked, engine, actors, overwrite=overwrite, cluster=_cluster(there["ray"]))
    click.echo(
        f"Scores written to {output}: {done.rows} rows in {done.parts} parts, {done.parts_before} parts were there."
        + (f" {done.errors} of these rows have an error." if done.errors else "")
    )
    return done.errors


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[None]:
    """Connect to a Ray cluster, or start one."""
    import ray

    try:
        with contextlib.chdir("/"):  # Ray lets every worker import from where this is called
            ray.init(address or None, log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        raise click.ClickException(f"--ray: there is no cluster to use: {str(error).splitlines()[0]}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _ray_options() -> Iterator[click.Option]:
    """Yield the flags of scoring on a cluster."""
    settings: list[tuple[str, str, dict[str, Any]]] = [
        (
            "ray",
            "Score on a Ray cluster: ADDRESS, or without it the one of this machine or RAY_ADDRESS, else one that is "
            "started here; default: no cluster.",
            {"is_flag": False, "flag_value": "", "metavar": "[ADDRESS]"},
        ),
        (
            "input",
            "File, folder or glob of JSONL (also .jsonl.gz, .jsonl.zst) and Parquet files, on disk or at s3://..., "
            "gs://...; default: none, needed with --ray.",
            {},
        ),
        (
            "part_bytes",
            "Bytes of input, of Parquet uncompressed, that are scored, written and resumed as one.",
            {"type": click.IntRange(min=1), "default": 4 * 1024 * 1024},
        ),
        ("actors", "Actors, each with an engine of its own.", {"type": click.IntRange(min=1), "default": 1}),
        ("actor_cpus", "Cores that an actor reserves.", {"type": click.FloatRange(min=0), "default": 1.0}),
        ("actor_gpus", "GPUs that an actor reserves.", {"type": click.FloatRange(min=0), "default": 0.0}),
        ("actor_tpus", "TPU chips that an actor reserves.", {"type": click.FloatRange(min=0), "default": 0.0}),
    ]
    for name, text, attributes in settings:
        shows = attributes.get("default") is not None
        yield _Option([name, _flag(name)], help=text, show_default=shows, group="Many machines", **attributes)


main.add_command(
    _Command(
        "serve",
        callback=_serve,
        help=_serve.__doc__,
        params=[*_MODEL, *options_of(EngineConfig), *options_of(ServerConfig), *_accepted_options()],
    )
)
main.add_command(
    _Command(
        "score",
        callback=_score,
        help=_score.__doc__,
        params=[
            *_MODEL,
            _Option(
                ["items", "--items"],
                help="File of items to score: JSONL, as it is or compressed (gzip, zstd), or Parquet; or - for "
                "standard input; default: none, needed without --ray.",
            ),
            _Option(
                ["output", "--output"],
                help="JSONL file of scores, or - for standard output; for Parquet, and with --ray, a folder; default: "
                "next to the items.",
            ),
            _Option(["query", "--query"], help="Query text of lines without their own."),
            _Option(["labels", "--labels"], multiple=True, help="Label texts of any length, such as ' yes' ' no'."),
            _Option(["label_token_ids", "--label-token-ids"], multiple=True, type=int, help="Labels as token ids."),
            _Option(["apply_softmax", "--apply-softmax"], is_flag=True, help="Return a softmax over the labels."),
            _Option(["item_first", "--item-first"], is_flag=True, help="Put each item before the query."),
            _Option(
                ["temperature", "--temperature"], default=1.0, show_default=True, help="Temperature of the softmax."
            ),
            _Option(
                ["rerank", "--rerank"],
                is_flag=True,
                show_default="off",
                help="Items are documents: one score for each, its relevance to the query; needs no labels.",
            ),
            _Option(["batch_size", "--batch-size"], default=512, show_default=True, help="Maximum items per request."),
            _Option(
                ["batch_tokens", "--batch-tokens"],
                default=65536,
                show_default=True,
                help="Tokens of items, about, above which a request gets no further item.",
            ),
            _Option(
                ["output_format", "--output-format"],
                type=click.Choice(["jsonl", "parquet"]),
                help="Scores as JSONL or as a folder of Parquet files; default: parquet if --output, or with --ray "
                "--input, ends in .parquet, else jsonl.",
            ),
            _Option(
                ["score_column", "--score-column"],
                default="scores",
                show_default=True,
                metavar="NAME",
                help="Name of the scores in the output: a field of its lines, a column of Parquet.",
            ),
            _Option(
                ["overwrite", "--overwrite"],
                is_flag=True,
                help="Start over instead of resuming what this command wrote.",
            ),
            *_ray_options(),
            *options_of(EngineConfig),
        ],
    )
)
