"""Fields of nested bodies: values that know their path."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mis_core.errors import RequestError
from mis_core.tasks.fields.values import kind, readable, shown


@dataclass(frozen=True, slots=True)
class Field:
    """A value and where it is in a body, such as `input[0].content`; reads it, or refuses it by that path.

    Errors have the code `invalid_` and the name of the outermost field, and the path as `param`.
    """

    value: object
    path: str

    def error(self, message: str) -> RequestError:
        """Make the error that refuses this value; the path comes before the message."""
        field = self.path.partition(".")[0].partition("[")[0]
        return RequestError(f"invalid_{field}", f"{self.path} {message}", self.path)

    def members(
        self, required: Iterable[str], optional: Iterable[str] = (), *, ignored: str | None = None
    ) -> dict[str, "Field"]:
        """Read an object; members that are null and not required are left out.

        Args:
            required: Names that it must have.
            optional: Names that it may have.
            ignored: What other names may begin with.

        Raises:
            RequestError: it is no object, a required member is missing, or `unknown_parameter`.
        """
        if not isinstance(self.value, Mapping):
            raise self.error(f"must be an object, not {kind(self.value)}.")
        required = tuple(required)
        known = (*required, *optional)
        for name in self.value:
            if name not in known and not (ignored and str(name).startswith(ignored)):
                message = f"{self.path} has an unknown field {shown(name)}. Known fields: {', '.join(known)}."
                raise RequestError("unknown_parameter", message, f"{self.path}.{str(name)[:64]}")
        found = {name: Field(value, f"{self.path}.{name}") for name, value in self.value.items() if name in known}
        for name in required:
            if name not in found:
                raise self.error(f"needs the field {name}.")
        return {name: each for name, each in found.items() if each.value is not None or name in required}

    def entries(self, least: int, most: int) -> dict[str, "Field"]:
        """Read an object of so many members, whose names are the caller's.

        Raises:
            RequestError: it is no object, has fewer or more, or a name is no text.
        """
        if not isinstance(self.value, Mapping):
            raise self.error(f"must be an object, not {kind(self.value)}.")
        if not least <= len(self.value) <= most:
            raise self.error(f"has {len(self.value)} members; it must have {least} to {most}.")
        found = {}
        for name, value in self.value.items():
            if not isinstance(name, str):
                raise self.error("has a name that is not a text.")
            readable(name, self.path, self.error("").code)
            found[name] = Field(value, f"{self.path}[{json.dumps(name[:64], ensure_ascii=False)}]")
        return found

    def member(self, name: str) -> object:
        """Return a member's value; None if it is missing.

        Raises:
            RequestError: this is no object.
        """
        if not isinstance(self.value, Mapping):
            raise self.error(f"must be an object, not {kind(self.value)}.")
        return self.value.get(name)

    def elements(self, least: int, most: int) -> list["Field"]:
        """Read a list with so many elements.

        Raises:
            RequestError: it is no list, or has fewer or more.
        """
        if not isinstance(self.value, (list, tuple)):
            raise self.error(f"must be a list, not {kind(self.value)}.")
        if not least <= len(self.value) <= most:
            raise self.error(f"has {len(self.value)} elements; it must have {least} to {most}.")
        return [Field(value, f"{self.path}[{index}]") for index, value in enumerate(self.value)]

    def text(self) -> str:
        """Read a text.

        Raises:
            RequestError: it is none.
        """
        if not isinstance(self.value, str):
            raise self.error(f"must be a text, not {kind(self.value)}.")
        return readable(self.value, self.path, self.error("").code)

    def number(self, least: float, most: float) -> float:
        """Read a number within a range.

        Raises:
            RequestError: it is none, or outside.
        """
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            raise self.error(f"must be a number from {least} to {most}, not {kind(self.value)}.")
        if not least <= self.value <= most:
            raise self.error(f"must be a number from {least} to {most}.")
        return float(self.value)

    def one_of(self, *allowed: str) -> str:
        """Read a text that is one of a few.

        Raises:
            RequestError: it is none of them.
        """
        if not isinstance(self.value, str) or self.value not in allowed:
            given = shown(self.value) if isinstance(self.value, str) else kind(self.value)
            raise self.error(f"must be {' or '.join(map(repr, allowed))}, not {given}.")
        return self.value
