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
from typing import Annotated, Any, TypeVar, get_type_hints

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
_STEP = re.compile(r"\[(\d+)\]|\.(\w+)")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)` - at")
_NEEDED = re.compile(r"Object missing required field `(\w+)`")


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a request. A field that may be null is as good as missing if it is."""


B = TypeVar("B", bound=Body)


@dataclass(frozen=True, slots=True)
class FieldRules:
    """What a declaration says of a field beside its type.

    Attributes:
        help: What it is for: one sentence, which stands in the documents.
        each: The type of a list's elements, or some types, where each is read by itself.
        schemas: Types of which a value has one, where the field has a reader of its own and is declared as anything.
        noun: What the field must be, where its type does not say so in plain words.
        nullable: Whether null is as good as missing, though the type does not admit it.
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
    """Return the annotation of a field that would change an answer in a way that is not there.

    Args:
        harmless: The value that asks for nothing, as JSON: the field's type admits no other one.
    """
    return about("Refused otherwise.", noun=f"`{harmless}`", wrong=_UNSUPPORTED)


TokenId = Annotated[int, Meta(ge=0)]

ModelName = Annotated[str | None, about("The served model; any other name is refused.", wrong=TYPE)]
"""The type of the field `model`."""

CacheSalt = Annotated[
    str | None, about("Requests share cached prefixes only with requests that have the same salt.", wrong=TYPE)
]
"""The type of the field `cache_salt`."""

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
        RequestError: of the first fault, in the order of the declaration; names the field.
    """
    fields = fields_of(declared)
    check_names(given, tuple(fields))
    return declared(**{
        name: field.convert(given.get(name)) for name, field in fields.items() if field.is_given(given)
    })  # fmt: skip


def read_field(declared: type[Body], name: str, given: Mapping[str, object]) -> Any:
    """Return one field of a body, for what must be known before the others are read.

    Raises:
        RequestError: it is missing, or not of its type.
    """
    field = fields_of(declared)[name]
    return field.convert(given[name]) if field.is_given(given) else field.default


def read_element(declared: type[Body], name: str, index: int, value: object) -> Any:
    """Return an element of a list whose elements are read each by itself.

    Raises:
        RequestError: it is not of the type that the declaration says; `param` is the field.
    """
    about = fields_of(declared)[name].about
    info = inspect.type_info(about.each)
    element = DeclaredField(f"{name}[{index}]", about.each, info, True, None, replace(about, noun=None))
    try:
        return element.convert(value)
    except RequestError as error:
        raise RequestError(error.code, error.message, name) from None


@dataclass(frozen=True, slots=True)
class DeclaredField:
    """A field of a body: its path, its type, and what the declaration says of it besides."""

    path: str
    type: Any
    info: inspect.Type
    is_required: bool
    default: Any
    about: FieldRules

    @property
    def noun(self) -> str:
        """What it must be."""
        return self.about.noun or in_words(self.info)

    def is_given(self, given: Mapping[str, object]) -> bool:
        """Whether a request has the field, and not null where that means nothing.

        Raises:
            RequestError: it is missing and required.
        """
        if given.get(self.path) is not None:
            return True
        if self.is_required:
            message = f"The field {self.path} is required: {self.noun}."
            raise RequestError(self._code("missing", "missing_{}"), message, self.path)
        admits_null = any(isinstance(each, inspect.NoneType) for each in getattr(self.info, "types", [self.info]))
        return self.path in given and not (admits_null or self.about.nullable)

    def convert(self, value: object) -> Any:
        """Return a value as the type of this field.

        Raises:
            RequestError: it is not of it.
        """
        value = value.item() if isinstance(value, np.generic) else value
        try:
            converted = msgspec.convert(value, self.type)
        except msgspec.ValidationError as error:
            raise self._refusal(value, str(error)) from None
        if isinstance(converted, float) and not math.isfinite(converted):
            raise self._refusal(value, "")
        return readable(converted, self.path, self._code("wrong")) if isinstance(converted, str) else converted

    def _refusal(self, value: object, said: str) -> RequestError:
        """Return the error for what msgspec said of a value."""
        wrong = self._code("wrong")
        if wrong == _UNSUPPORTED:
            return RequestError(wrong, f"{self.path} is not supported here; leave it out.", self.path)
        path, info = self.path, self.info
        for index, name in _STEP.findall(said.partition(" - at `$")[2]):
            info, value = inside(info, value, int(index) if index else name)
            path += f"[{index}]" if index else f".{name}"
        unknown, needed = _UNKNOWN.match(said), _NEEDED.match(said)
        if unknown is not None:
            code = self.about.codes.get("unknown", "unknown_parameter")
            return RequestError(code, f"{path} has an unknown field {shown(unknown[1])}.", path)
        if needed is not None:
            return RequestError(wrong, f"{path} needs the field {needed[1]}.", path)
        if isinstance(value, (str, list, tuple)) and not value and "of length >=" in said:
            return RequestError(self._code("empty", wrong), f"{path} must not be empty.", path)
        noun = self.noun if info is self.info else in_words(info)
        given = shown(value) if isinstance(value, str) else kind(value)
        return RequestError(wrong, f"{path} must be {noun}{'' if is_of_kind(value, info) else f', not {given}'}.", path)

    def _code(self, fault: str, default: str = "invalid_{}") -> str:
        return self.about.codes.get(fault, default).format(self.path.partition("[")[0])


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
        fields[each.name] = DeclaredField(each.name, types[each.name], info, each.required, each.default, said)
    return fields
