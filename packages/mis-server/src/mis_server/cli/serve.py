"""`mis-server serve`."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import click

from mis_core.config import EngineConfig
from mis_core.process.heap import without_collection
from mis_server.cli.command import Command
from mis_server.cli.options import Flag, flag_of, given_as, options_of, read, read_engine
from mis_server.compatibility import ACCEPTED, translate
from mis_server.settings import ServerConfig
from mis_server.telemetry.logs import log_to_stderr

logger = logging.getLogger(__name__)


def _serve(**given: Any) -> None:
    """Serve MODEL over HTTP.

    MODEL is a Hugging Face model directory or name, or a GGUF file. It may also be given as --model-path or --model.
    """
    options, whys = translate(given)
    settings = read(ServerConfig, options, engine=read_engine(options))
    log_to_stderr(settings.log_format, settings.log_level)
    for name, why in whys.items():
        logger.info("%s: %s", given_as(click.get_current_context(), name), why)
    # Imported late, so that --help and errors in flags need not wait for it.
    with without_collection():
        import uvloop

        from mis_server.serving import serve

    with contextlib.suppress(asyncio.CancelledError):  # stopped before it was ready
        uvloop.run(serve(settings))


def _accepted_options() -> Iterator[click.Option]:
    """Yield the flags that are accepted for commands of other servers."""
    for flag in ACCEPTED:
        yield Flag(
            [flag.name, flag_of(flag.name)],
            type=flag.kind,
            is_flag=flag.kind is click.BOOL,
            default=False if flag.kind is click.BOOL else None,
            multiple=flag.has_several,
            envvar=f"MIS_{flag.name.upper()}",
            show_envvar=True,
            help=flag.why,
            group="Accepted for compatibility",
        )


SERVE = Command("serve", _serve, [*options_of(EngineConfig), *options_of(ServerConfig), *_accepted_options()])
"""The command."""
