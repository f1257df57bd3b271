"""Bodies that are declared once: what reads a request, its errors, the OpenAPI document and the pages are made of it.

A body is a struct of msgspec. The names of a request's fields are checked first; then each field is converted, in the
order in which they are declared. So which of several faults is reported does not depend on the order of the bytes, as
it would if msgspec converted the struct itself.
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta, inspect

from mis_core.errors import RequestError
from mis_core.tasks.fields.values import check_names, kind, readable, shown

_EACH, _SCHEMA, _CODES, _NOUN = "each", "schema", "codes", "noun"
_STEP = re.compile(r"\[(\d+)\]|\.(\w+)")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)` - at")
_NEEDED = re.compile(r"Object missing required field `(\w+)`")


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a request. A field that may be null is as good as missing if it is."""


B = TypeVar("B", bound=Body)


def about(help: str, *, each: Any = None, schema: tuple[Any, ...] = (), noun: str | None = None, **codes: str) -> Meta:
    """Return what a declaration says of a field beside its type.

    Args:
        help: What it is for: one sentence, which stands in the documents.
        each: The type of a list's elements, where each is read by itself, by `read_each`.
        schema: Types of which a value has one, where the field has a reader of its own and is declared as anything.
        noun: What the field must be, where its type does not say so in plain words.
        codes: Of errors, where they are not `invalid_` and the field's name: `wrong` (its type or value), `empty`,
            and `missing` of a field that is required; `{}` stands for the name.
    """
    return Meta(description=help, extra={_EACH: each, _SCHEMA: schema, _NOUN: noun, _CODES: codes})


TYPE = "invalid_{}_type"
"""Code of those fields whose error of a wrong type says so."""

NO_EFFECT = about("No effect.")
"""Of fields that other servers have, and that change nothing here."""

REFUSED_CODE = "unsupported_parameter"
REFUSED = about("Refused, but for what changes nothing.", wrong=REFUSED_CODE)
"""Of fields that would change an answer in a way that is not there."""


ModelName = Annotated[str | None, about("The served model; any other name is refused.", wrong=TYPE)]
"""The type of the field `model`."""

CacheSalt = Annotated[
    str | None,
    about("Requests share cached prefixes only with requests that have the same salt.", wrong=TYPE),
]
"""The type of the field `cache_salt`."""


TokenId = Annotated[int, Meta(ge=0)]

AddSpecialTokens = Annotated[
    bool,
    about("Add the tokenizer's special tokens, such as BOS, to texts that do not start with them.", wrong=TYPE),
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
    fields = _fields(declared)
    check_names(given, tuple(fields))
    return declared(**{
        name: field.convert(given.get(name)) for name, field in fields.items() if field.is_given(given)
    })  # fmt: skip


def read_field(declared: type[Body], name: str, given: Mapping[str, object]) -> Any:
    """Return one field of a body, for what must be known before the others are read.

    Raises:
        RequestError: it is missing, or not of its type.
    """
    field = _fields(declared)[name]
    return field.convert(given[name]) if field.is_given(given) else field.default


def read_element(declared: type[Body], name: str, index: int, value: object) -> Any:
    """Return an element of a list whose elements are read each by itself.

    Raises:
        RequestError: it is not of the type that the declaration says; `param` is the field.
    """
    field = _fields(declared)[name]
    each = _Field(
        f"{name}[{index}]", field.each, inspect.type_info(field.each), True, None, field.about | {_EACH: None}
    )
    try:
        return each.convert(value)
    except RequestError as error:
        raise RequestError(error.code, error.message, name) from None


def schema_of(declared: type[Body], examples: Sequence[Any] = ()) -> dict[str, Any]:
    """Return the JSON schema of a body, whole: it refers to nothing outside itself."""
    (schema,), parts = msgspec.json.schema_components([declared], ref_template="{name}")
    body = parts[schema["$ref"]]
    for name, field in _fields(declared).items():
        types = field.about.get(_SCHEMA) or (() if field.each is None else (field.each,))
        schemas, others = msgspec.json.schema_components(types, ref_template="{name}")
        parts |= others
        if field.each is not None:
            body["properties"][name]["items"] = schemas[0]
        elif types:
            body["properties"][name] |= {"anyOf": [*schemas]} if len(types) > 1 else schemas[0]
    return inlined(body, parts) | ({"examples": [*examples]} if examples else {})


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a body: its path, its type, and what the declaration says of it."""

    path: str
    type: Any
    info: inspect.Type
    is_required: bool
    default: Any
    about: dict[str, Any]

    @property
    def each(self) -> Any:
        return self.about.get(_EACH)

    @property
    def admits_null(self) -> bool:
        return any(isinstance(each, inspect.NoneType) for each in getattr(self.info, "types", [self.info]))

    def is_given(self, given: Mapping[str, object]) -> bool:
        """Whether a request has the field, and not null where that means nothing.

        Raises:
            RequestError: it is missing and required.
        """
        if given.get(self.path) is not None:
            return True
        if self.is_required:
            message = f"The field {self.path} is required: {self._noun()}."
            raise RequestError(self._code("missing", f"missing_{self.path}"), message, self.path)
        return self.path in given and not self.admits_null

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
        path, info = self.path, self.info
        for index, name in _STEP.findall(said.partition(" - at `$")[2]):
            info, value = _inside(info, value, int(index) if index else name)
            path += f"[{index}]" if index else f".{name}"
        wrong = self._code("wrong")
        if wrong == REFUSED_CODE:
            return RequestError(wrong, f"{path} is not supported here; leave it out.", path)
        unknown, needed = _UNKNOWN.match(said), _NEEDED.match(said)
        if unknown is not None:
            return RequestError("unknown_parameter", f"{path} has an unknown field {shown(unknown[1])}.", path)
        if needed is not None:
            return RequestError(wrong, f"{path} needs the field {needed[1]}.", path)
        if isinstance(value, (str, list, tuple)) and not value and "of length >=" in said:
            return RequestError(self._code("empty", wrong), f"{path} must not be empty.", path)
        noun = self._noun() if info is self.info else _in_words(info)
        has_type = any(isinstance(value, _TYPES.get(type(each), ())) for each in _alternatives(info))
        given = "" if has_type else f", not {shown(value) if isinstance(value, str) else kind(value)}"
        return RequestError(wrong, f"{path} must be {noun}{given}.", path)

    def _code(self, fault: str, default: str | None = None) -> str:
        name = self.path.partition("[")[0]
        return self.about.get(_CODES, {}).get(fault, default or "invalid_{}").format(name)

    def _noun(self) -> str:
        return self.about.get(_NOUN) or _in_words(self.info)


@functools.cache
def _fields(declared: type[Body]) -> dict[str, _Field]:
    types = get_type_hints(declared, include_extras=True)
    fields = {}
    for field in inspect.type_info(declared).fields:  # pyrefly: ignore[missing-attribute]
        extra, info = {}, field.type
        while isinstance(info, inspect.Metadata):
            extra, info = extra | (info.extra or {}), info.type
        fields[field.name] = _Field(field.name, types[field.name], info, field.required, field.default, extra)
    return fields


def _alternatives(info: inspect.Type) -> tuple[inspect.Type, ...]:
    """Return what a type may be, without null."""
    if isinstance(info, inspect.Metadata):
        return _alternatives(info.type)
    parts = info.types if isinstance(info, inspect.UnionType) else (info,)
    return tuple(part for part in parts if not isinstance(part, inspect.NoneType))


def _inside(info: inspect.Type, value: Any, step: int | str) -> tuple[inspect.Type, object]:
    """Return the type and the value of an element or a member."""
    if isinstance(step, int):
        (of_list,) = (each for each in _alternatives(info) if isinstance(each, inspect.ListType))
        return of_list.item_type, value[step]
    types = [field.type for each in _alternatives(info) for field in getattr(each, "fields", ()) if field.name == step]
    return (types or [inspect.AnyType()])[0], value.get(step)


def _in_words(info: inspect.Type) -> str:
    """Return what a value must be."""
    return " or ".join(map(_one_in_words, _alternatives(info))) or "null"


def _one_in_words(info: inspect.Type) -> str:
    match info:
        case inspect.IntType(gt, ge, lt, le):
            least = ge if gt is None else gt + 1
            most = le if lt is None else lt - 1
            return "a whole number" + _range(least, most)
        case inspect.FloatType(gt, ge, _, le):
            return "a number" + _range(ge, le) if gt is None else f"a finite number above {gt:g}"
        case inspect.LiteralType(values):
            return " or ".join(map(repr, values))
        case inspect.StructType(_, fields):
            return f"an object with {', '.join(field.encode_name for field in fields if field.required)}"
    return _NAMES.get(type(info), "a value of another kind")


def _range(least: float | None, most: float | None) -> str:
    if least is None and most is None:
        return ""
    return f" from {least:g}" if most is None else f" from {least} to {most}"


def inlined(schema: Any, parts: dict[str, Any]) -> Any:
    """Return a JSON schema with what it refers to in its place.

    Args:
        schema: The schema.
        parts: Others, by the references to them.
    """
    if isinstance(schema, list):
        return [inlined(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return inlined(parts[schema["$ref"]], parts)
    return {name: inlined(each, parts) for name, each in schema.items()}


_NAMES: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.StrType: "a text",
    inspect.ListType: "a list",
    inspect.DictType: "an object",
}
_TYPES: dict[type[inspect.Type], type | tuple[type, ...]] = {
    inspect.IntType: int,
    inspect.FloatType: (int, float),
    inspect.StrType: str,
    inspect.ListType: (list, tuple),
    inspect.DictType: Mapping,
    inspect.StructType: Mapping,
}
