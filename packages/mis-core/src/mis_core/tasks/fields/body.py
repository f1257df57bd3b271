"""Bodies that are declared once: what reads a request, its errors, the OpenAPI document and the pages are made of it.

A body is a struct of msgspec. The names of a request's fields are checked first; then each field is converted, in the
order in which they are declared. So which of several faults is reported does not depend on the order of the bytes, as
it would if msgspec converted the struct itself.
"""

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta, inspect

from mis_core.errors import RequestError
from mis_core.tasks.fields.types import in_words, inside, is_of_kind
from mis_core.tasks.fields.values import check_names, kind, readable, shown

TYPE = "invalid_{}_type"
"""Code of those fields whose error of a wrong type says so."""

_UNSUPPORTED = "unsupported_parameter"
_ABOUT = "about"
_ROOT = " - at `$[0]"
_OTHER = object()  # of no type that JSON has
_STEP = re.compile(r"\[(\d+)\]|\.(\w+)")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_NEEDED = re.compile(r"Object missing required field `(\w+)`")


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a request. Null in a field that admits it is the same as leaving it out."""


B = TypeVar("B", bound=Body)


@dataclass(frozen=True, slots=True)
class FieldRules:
    """What a declaration says of a field beside its type.

    Attributes:
        help: What it is for: one sentence, which stands in the documents.
        each: The type of a list's elements, or of an object's members, or some types, where each is read by itself.
        schemas: Types of which a value has one, where the field has a reader of its own and is declared as anything.
        noun: What the field must be, where its type does not say so in plain words.
        nullable: Whether null means absent, though the type does not admit it.
        codes: Of errors, where they are not `invalid_` and the field's name: `wrong` (its type or value), `empty`,
            `missing` of a field that is required, and `unknown` of a member; `{}` stands for the name.
    """

    help: str = ""
    each: Any = None
    schemas: tuple[Any, ...] = ()
    noun: str | None = None
    nullable: bool = False
    codes: Mapping[str, str] = field(default_factory=dict)


def about(
    help: str,
    *,
    each: Any = None,
    schemas: tuple[Any, ...] = (),
    noun: str | None = None,
    nullable: bool = False,
    **codes: str,
) -> Meta:
    """Return an annotation of a field; the arguments are the attributes of `FieldRules`."""
    return Meta(description=help, extra={_ABOUT: FieldRules(help, each, schemas, noun, nullable, codes)})


optional = functools.partial(about, nullable=True)
"""As `about`, of a field that null leaves at its default."""

NO_EFFECT = about("No effect, but its type is checked.")
"""Of fields that other servers have, and that change nothing here."""


def refused(harmless: str = "null") -> Meta:
    """Return the annotation of a field that asks for something that is not there.

    Args:
        harmless: The value that asks for nothing, as JSON: the field's type admits no other one.
    """
    return about("Not supported: no other value is accepted.", noun=f"`{harmless}`", wrong=_UNSUPPORTED)


Count = Annotated[int, Meta(ge=1, lt=1 << 31)]
TokenId = Annotated[int, Meta(ge=0)]
Text = Annotated[str, Meta(min_length=1)]
Tokens = Annotated[list[TokenId], Meta(min_length=1)]
OnlyText = Annotated[list[Literal["text"]], Meta(min_length=1, max_length=1)]
"""What asks for text and nothing else, where other servers know more."""

ModelName = Annotated[str | None, about("The served model; any other name is refused.", wrong=TYPE)]
"""The type of the field `model`."""

CacheSalt = Annotated[
    str | None, about("Requests share cached prefixes only with requests that have the same salt.", wrong=TYPE)
]
"""The type of the field `cache_salt`."""

Calibration = Annotated[
    Literal["none"] | None, about("`none` returns the model's own probabilities if the server would calibrate them.")
]
"""The type of the field `calibration`."""

AddSpecialTokens = Annotated[
    bool, about("Add the tokenizer's special tokens, such as BOS, to texts that do not begin with them.", wrong=TYPE)
]
"""The type of the field `add_special_tokens`."""


def check_model(model: str | None, served_models: tuple[str, ...] | None) -> None:
    """Refuse a model that is not served; None for `served_models` allows every name.

    Raises:
        RequestError: `model_not_found`.
    """
    if model is not None and served_models is not None and model not in served_models:
        raise RequestError("model_not_found", f"Model {shown(model)} is not served here.", "model")


def read_body(declared: type[B], given: Mapping[str, object]) -> B:
    """Return the body that fields make: those of a JSON object, or keyword arguments of the same names.

    Raises:
        RequestError: of the first fault: an unknown name, then required fields, then the others as they are declared.
    """
    fields = fields_of(declared)
    if declared.__struct_config__.forbid_unknown_fields:
        check_names(given, tuple(fields))
    return declared(**{
        name: each.convert(given.get(name)) for name, each in fields.items() if each.is_given(given)
    })  # fmt: skip


def read_field(declared: type[Body], name: str, given: Mapping[str, object]) -> Any:
    """Return one field of a body, for what must be known before the others are read.

    Raises:
        RequestError: it is missing, or not of its type.
    """
    declared_field = fields_of(declared)[name]
    return declared_field.convert(given[name]) if declared_field.is_given(given) else declared_field.default


def read_element(declared: type[Body], name: str, index: int, value: object) -> Any:
    """Return an element of a list whose elements are read each by itself.

    Raises:
        RequestError: it is not of the type that the declaration says.
    """
    return _element_of(declared, name).convert(value, index)


@dataclass(frozen=True, slots=True)
class DeclaredField:
    """A field of a body, or the elements of one: its name, its type, and what the declaration says of it besides."""

    name: str
    type: Any
    info: inspect.Type
    is_required: bool
    is_nullable: bool
    default: Any
    about: FieldRules

    @property
    def noun(self) -> str:
        """What it must be."""
        return self.about.noun or in_words(self.info)

    def is_given(self, given: Mapping[str, object]) -> bool:
        """Whether a request has the field, and not null where that is the same as leaving it out.

        Raises:
            RequestError: it is missing and required.
        """
        if given.get(self.name) is not None:
            return True
        if self.is_required:
            message = f"The field {self.name} is required: {self.noun}."
            raise RequestError(self._code("missing", "missing_{}"), message, self.name)
        return self.name in given and not self.is_nullable

    def convert(self, value: object, index: int | None = None) -> Any:
        """Return a value as the type of this field.

        Args:
            value: Of JSON, or what Python has for it: NumPy's numbers, tuples, any mapping.
            index: Of an element.

        Raises:
            RequestError: it is not of that type.
        """
        if isinstance(self.info, inspect.AnyType):
            return value
        try:
            converted = msgspec.convert(_plain(value), self.type)
        except (msgspec.ValidationError, UnicodeEncodeError):
            raise self._refusal(value, index) from None
        if isinstance(converted, float) and not math.isfinite(converted):
            raise self._refusal(value, index)
        values = msgspec.structs.astuple(converted) if isinstance(converted, msgspec.Struct) else converted
        # Elements that are read each by itself may be wrong each by itself.
        for text in values if isinstance(values, (list, tuple)) and self.about.each is None else (values,):
            if isinstance(text, str):
                readable(text, self.name, self._code("wrong"))
        return converted

    def _refusal(self, value: object, index: int | None) -> RequestError:
        """Return the error of a value that is not of the type."""
        wrong = self._code("wrong")
        if wrong == _UNSUPPORTED:
            return RequestError(wrong, f"{self.name} is not supported here; leave it out.", self.name)
        said, path = self._said_of(_plain(value))
        info, shown_path = self.info, self.name if index is None else f"{self.name}[{index}]"
        for number, member in _STEP.findall(path):
            info, value = inside(info, value, int(number) if number else member)
            shown_path += f"[{number}]" if number else f".{member}"
        unknown, needed = _UNKNOWN.match(said), _NEEDED.match(said)
        if unknown is not None:
            code = self.about.codes.get("unknown", "unknown_parameter")
            return RequestError(code, f"{shown_path} has an unknown field {shown(unknown[1])}.", self.name)
        if needed is not None:
            return RequestError(wrong, f"{shown_path} needs the field {needed[1]}.", self.name)
        if isinstance(value, (str, list, tuple, dict)) and not value and "of length >=" in said:
            return RequestError(self._code("empty", wrong), f"{shown_path} must not be empty.", self.name)
        noun = self.noun if info is self.info else in_words(info)
        given = shown(value) if isinstance(value, str) else kind(value)
        given = "" if is_of_kind(value, info) else f", not {given}"
        return RequestError(wrong, f"{shown_path} must be {noun}{given}.", self.name)

    def _said_of(self, value: object) -> tuple[str, str]:
        """Return what msgspec says of a value, and the path to the fault.

        Messages repeat the caller's text, which may look like a path. A value within a list always gets a real path at
        the end of its message.
        """
        try:
            msgspec.convert([value], list[self.type])
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            said, _, path = str(error).rpartition(_ROOT)
            return said, path
        return "", ""

    def _code(self, fault: str, default: str = "invalid_{}") -> str:
        return self.about.codes.get(fault, default).format(self.name)


def _plain(value: object) -> object:
    """Return what msgspec converts: of Python's values those that JSON has, and nothing that only looks like one."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, (str, bool, list, tuple, dict)):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    return dict(value) if isinstance(value, Mapping) else _OTHER


@functools.cache
def _element_of(declared: type[Body], name: str) -> DeclaredField:
    rules = fields_of(declared)[name].about
    return DeclaredField(
        name, rules.each, inspect.type_info(rules.each), True, False, None, replace(rules, noun=None, each=None)
    )


@functools.cache
def fields_of(declared: type[Body]) -> dict[str, DeclaredField]:
    """Return the fields of a body by their names, in the order in which they are checked: first those it must have."""
    types = get_type_hints(declared, include_extras=True)
    fields = {}
    declaration = inspect.type_info(declared).fields  # pyrefly: ignore[missing-attribute]
    for each in sorted(declaration, key=lambda each: not each.required):
        said, info = FieldRules(), each.type
        while isinstance(info, inspect.Metadata):
            said, info = (info.extra or {}).get(_ABOUT, said), info.type
        nullable = said.nullable or any(isinstance(part, inspect.NoneType) for part in getattr(info, "types", [info]))
        fields[each.name] = DeclaredField(
            each.name, types[each.name], info, each.required, nullable, each.default, said
        )
    return fields
