"""Every error a user of MIS can meet.

    MisError
    ├── ModelError            a checkpoint or tokenizer cannot be served as it stands
    ├── ConfigError           an option has an unusable value; `option` names it
    ├── RequestError          a request breaks the contract; `code` and `param` say where
    └── EngineUnavailable     the engine is starting, draining or has died; try again later

Messages are one sentence or two for the person who can fix it: what was given, what is allowed,
what to do. They never repeat a caller's input at length. HTTP status codes are not known here;
`mis_server.errors` maps `code` to them.
"""

from typing import Self

_MESSAGE_CHARACTERS = 1000


class MisError(Exception):
    """Base of all errors raised on purpose."""

    @property
    def message(self) -> str:
        """The sentence for the user."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return self.message


class ModelError(MisError):
    """A checkpoint directory cannot be served: a file, tensor, family or setting is wrong; it is named.

    The message may repeat what a stranger's files say, and goes to terminals and logs: it is shown as `shown` does.
    """

    def __init__(self, message: str) -> None:
        super().__init__(shown(message, _MESSAGE_CHARACTERS))


class ConfigError(MisError):
    """An engine or server option has a value that cannot be used."""

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message, option)
        self.option = option


class RequestError(MisError):
    """A request breaks the contract. Nothing was computed for it.

    Attributes:
        code: Machine-readable reason, such as `empty_items`; the contract's error table lists all.
        param: The request field at fault, or None when the body as a whole is.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message, code, param)
        self.code = code
        self.param = param

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, str | None]]:
        return type(self), (self.code, self.message, self.param)  # it travels between processes


class EngineUnavailable(MisError):
    """The engine cannot answer now; the same request may succeed later."""


def shown(text: str, most: int) -> str:
    """Return a text of a file as terminals and logs may show it: in one line, nothing but what can be printed.

    Args:
        text: What a file says.
        most: Characters that are shown of it.
    """
    begin = text[: most + 1]
    printable = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in begin)
    return printable if len(printable) <= most else printable[: most - 1] + "…"
