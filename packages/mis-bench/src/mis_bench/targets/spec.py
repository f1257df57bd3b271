"""How targets are spelled: `[ALIAS=]TARGET[,OPTION=VALUE]...`."""

import re
from dataclasses import dataclass, field
from typing import Self

from mis_bench.targets.base import TargetUnavailable
from mis_bench.targets.options import without_secrets

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
        if not all("=" in option for option in options):
            raise TargetUnavailable(
                "An option behind a comma has no value; write KEY=VALUE."
            )  # it may be part of a key
        alias, equals, spec = head.partition("=")
        if not equals or "://" in spec.partition("=")[0] or _ALIAS.fullmatch(alias) is None:
            alias, spec = without_secrets(text), head
        return cls(alias, spec, dict(option.split("=", 1) for option in options))
