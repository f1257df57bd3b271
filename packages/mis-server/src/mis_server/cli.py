"""`mis-server`: the flags and environment variables of `EngineConfig` and `ServerConfig`, generated from them."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import types
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

import click

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError, MisError
from mis_server import __version__
from mis_server.settings import ServerConfig


@click.group(context_settings={"max_content_width": 120})
@click.version_option(__version__, package_name="mis-server", message="%(prog)s %(version)s")
def main() -> None:
    """Score many items against one query with a language model."""


class _Option(click.Option):
    """A flag whose variable may be empty: an empty MIS_API_KEY is refused, where click would open the server."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the variable as it is; empty counts as unset only where it cannot be a text."""
        given = os.environ.get(str(self.envvar))
        return given if self.type is click.STRING else given or None


def options_of(config: type[Any]) -> Iterator[click.Option]:
    """Yield a flag for each field declared with `mis_core.config.option`."""
    hints = get_type_hints(config)
    for field in dataclasses.fields(config):
        if "aliases" not in field.metadata:
            continue
        kind, is_flag = _plain_type(hints[field.name]), hints[field.name] is bool
        choices = field.metadata["choices"]
        flags = ["--" + field.name.replace("_", "-"), *field.metadata["aliases"]]
        yield _Option(
            [field.name, *flags],
            type=click.Choice(choices) if choices else kind,
            is_flag=is_flag,
            default=field.default,
            show_default=("on" if field.default else "off") if is_flag else True,
            envvar=f"MIS_{field.name.upper()}",
            show_envvar=True,
            help=field.metadata["help"],
        )


def _plain_type(hint: Any) -> Any:
    """Return `int` for `int | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(kind for kind in get_args(hint) if kind is not type(None))
    return hint


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
    _log_to_stderr()
    try:
        settings = ServerConfig(engine=EngineConfig.of(model, engine), **server)
        # Imported late, so that --help and bad flags answer at once.
        from mis_server.serving import serve

        with contextlib.suppress(asyncio.CancelledError):  # stopped before it began
            asyncio.run(serve(settings))
    except ConfigError as error:
        raise click.ClickException(f"--{error.option.replace('_', '-')}: {error.message}") from None
    except MisError as error:
        raise click.ClickException(error.message) from None


def _log_to_stderr() -> None:
    # Read when `transformers` is imported; without PyTorch, which nothing here needs, it would advise to install it.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("uvicorn", "httpx", "huggingface_hub", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


main.add_command(
    click.Command(
        "serve",
        callback=_serve,
        help=_serve.__doc__,
        params=[
            click.Argument(["model"], required=False),
            click.Option(
                ["model_path", "--model-path", "--model"], envvar="MIS_MODEL", show_envvar=True, help="MODEL."
            ),
            *options_of(EngineConfig),
            *options_of(ServerConfig),
        ],
    )
)
