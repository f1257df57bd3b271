"""How targets are spelled: `[ALIAS=]TARGET[,OPTION=VALUE]...`; options are checked by name and value."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from mis_bench.targets.target import TargetUnavailable

_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A target that was asked for.

    Attributes:
        alias: What it is called in records and tables.
        spec: `engine`, `mis=http://HOST:PORT` and so on.
        options: Its options, secrets among them.
    """

    alias: str
    spec: str
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `engine,scoring_algorithm=packed`, `base=engine`, `mis=http://HOST:PORT` or `new=mis=http://HOST:PORT`.

        Without an alias a target is called as it is spelled, secrets left out.

        Raises:
            TargetUnavailable: an option has no value.
        """
        head, *options = text.split(",")
        if not all("=" in option for option in options):  # it may be part of a key
            raise TargetUnavailable("An option after a comma has no value; write KEY=VALUE.")
        alias, equals, spec = head.partition("=")
        if not equals or "://" in spec.partition("=")[0] or _ALIAS.fullmatch(alias) is None:
            alias, spec = without_secrets(text), head
        return cls(alias, spec, dict(option.split("=", 1) for option in options))


class Options(BaseModel):
    """What a target takes; values are read from text."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Schema = TypeVar("Schema", bound=BaseModel)


def read_options(spec: str, given: Mapping[str, str], schema: type[Schema]) -> Schema:
    """Return a target's options, those that were not given at their defaults; raises `TargetUnavailable`."""
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name, what = str(first["loc"][0])[:80], first["msg"]
        known = ", ".join(schema.model_fields)
        raise TargetUnavailable(f"Option {name!r} of {spec}: {what}. Known options: {known}.") from None


def is_secret(name: str) -> bool:
    """Whether an option's value must be in no result, command line or log, by its name."""
    low = name.lower()
    return any(word in low for word in ("key", "password", "secret", "credential")) or low.endswith("token")


def without_secrets(spelling: str) -> str:
    """Return a target and its options, comma-separated, without secrets.

    What is not an option is left out as well, since it may be the rest of a key. So is the user of an address.
    """
    spec, *options = spelling.split(",")
    kept = [each for each in options if "=" in each and not is_secret(each.partition("=")[0])]
    return ",".join([re.sub(r"//[^/]*@", "//", spec), *kept])
