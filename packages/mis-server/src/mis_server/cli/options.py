"""Options as fields of dataclasses: flags, variables and lines of config files are made of them, and read into them."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError, MisError

CONFIG = f"{__name__}.config"
"""Key of the context under which the path of the config file is kept."""

Kind = TypeVar("Kind")


class Flag(click.Option):
    """A flag.

    Click ignores empty environment variables; here an empty MIS_API_KEY is refused, not taken for no key. Errors name
    the flag, the variable or the line of the config file that a wrong value came from.
    """

    def __init__(self, declarations: list[str], *, group: str, **attributes: Any) -> None:
        super().__init__(declarations, **attributes)
        self.group = group

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the variable as it is; an empty one counts as unset unless the option is a text."""
        given = None if self.envvar is None else os.environ.get(str(self.envvar))
        return given if self.type is click.STRING else given or None

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the flag without its variable."""
        return f"'{flag_of(self.name)}'"

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Convert a value."""
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            if ctx.get_parameter_source(self.name) not in (ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP):
                raise
            raise click.ClickException(f"{given_as(ctx, self.name)}: {error.message}") from None


def flag_of(name: str) -> str:
    """Return the flag of an option."""
    return "--" + name.replace("_", "-")


def given_as(ctx: click.Context, name: str) -> str:
    """Return where a value came from: an argument, a flag, its variable, or its name in the config file."""
    if any(isinstance(each, click.Argument) and each.name == name for each in ctx.command.params):
        return name.upper()
    match ctx.get_parameter_source(name):
        case ParameterSource.ENVIRONMENT:
            return f"MIS_{name.upper()}"
        case ParameterSource.DEFAULT_MAP:
            return f"{name} in {ctx.meta[CONFIG]}"
    return flag_of(name)


def declared(default: Any, help: str, *, group: str = "Options", **attributes: Any) -> Any:
    """Declare a field that is a flag and has no variable, as `mis_core.config.option` declares one that has.

    Args:
        default: Value if it is not set.
        help: Full phrases for `--help`, with the unit.
        group: Heading in `--help`.
        attributes: What else Click is to know of it.
    """
    metadata = {"help": help, "aliases": (), "group": group, "choices": (), "attributes": attributes | {"envvar": None}}
    return dataclasses.field(default=default, metadata=metadata)


def options_of(kind: type[Any]) -> Iterator[click.Option]:
    """Yield an option for each field declared with `mis_core.config.option` or `declared`."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if "aliases" not in field.metadata:
            continue
        hint, choices = hints[field.name], field.metadata["choices"]
        value, is_flag = (get_args(hint) or (hint,))[0], hint is bool  # of `int | None`, `int`
        attributes = {
            "type": click.Choice(choices) if choices else value,
            "is_flag": is_flag,
            "multiple": get_origin(hint) is tuple,
            "default": field.default,
            "show_default": ("on" if field.default else "off") if is_flag else True,
            "envvar": f"MIS_{field.name.upper()}",
            "show_envvar": True,
            "help": field.metadata["help"],
            "group": field.metadata["group"],
        }
        flags = [flag_of(field.name), *field.metadata["aliases"]]
        yield Flag([field.name, *flags], **attributes | field.metadata.get("attributes", {}))


def read(kind: type[Kind], options: Mapping[str, Any], **others: Any) -> Kind:
    """Make a dataclass of those options that it has fields for, and of others that no option has."""
    names = {field.name for field in dataclasses.fields(kind)} & options.keys()  # type: ignore[arg-type]
    return kind(**{name: options[name] for name in names} | others)


def read_engine(options: Mapping[str, Any]) -> EngineConfig:
    """Read the model and the engine's options.

    Raises:
        click.UsageError: there is no model.
        ConfigError: a value is outside its range; names the option.
    """
    model = options["model"] or options["model_path"]
    if not model:
        raise click.UsageError("MODEL is missing: a Hugging Face model directory or name, or a GGUF file.")
    return read(EngineConfig, options, model=model)


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Report errors that the user can fix in one line, without a traceback."""
    try:
        yield
    except ConfigError as error:
        where = given_as(click.get_current_context(), error.option)
        raise click.ClickException(f"{where}: {error.message}") from None
    except MisError as error:
        raise click.ClickException(error.message) from None
