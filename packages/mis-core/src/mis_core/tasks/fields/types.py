"""Types of fields in words: what a value must be."""

import json
from collections.abc import Mapping
from typing import Any

from msgspec import inspect

_NOUNS: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.StrType: "a text",
    inspect.ListType: "a list",
    inspect.DictType: "an object",
    inspect.AnyType: "anything",
    inspect.NoneType: "null",
}
_KINDS: dict[type[inspect.Type], type | tuple[type, ...]] = {
    inspect.IntType: int,
    inspect.FloatType: (int, float),
    inspect.StrType: str,
    inspect.ListType: (list, tuple),
    inspect.DictType: Mapping,
    inspect.StructType: Mapping,
}


def _alternatives(info: inspect.Type) -> tuple[inspect.Type, ...]:
    """Return what a type may be, without null."""
    if isinstance(info, inspect.Metadata):
        return _alternatives(info.type)
    parts = info.types if isinstance(info, inspect.UnionType) else (info,)
    return tuple(part for part in parts if not isinstance(part, inspect.NoneType))


def inside(info: inspect.Type, value: Any, step: int | str) -> tuple[inspect.Type, object]:
    """Return the type and the value of an element or a member."""
    if isinstance(step, int):
        (of_list,) = (each for each in _alternatives(info) if isinstance(each, inspect.ListType))
        return of_list.item_type, value[step]
    types = [field.type for each in _alternatives(info) for field in getattr(each, "fields", ()) if field.name == step]
    return (types or [inspect.AnyType()])[0], value.get(step)


def in_words(info: inspect.Type) -> str:
    """Return what a value must be."""
    return " or ".join(map(_one_in_words, _alternatives(info))) or "null"


def _one_in_words(info: inspect.Type) -> str:
    match info:
        case inspect.IntType(gt, ge, lt, le):
            least, most = ge if gt is None else gt + 1, le if lt is None else lt - 1
            return "a whole number" + _range(None, least, None, most)
        case inspect.FloatType(gt, ge, lt, le):
            return "a finite number" + _range(gt, ge, lt, le)
        case inspect.LiteralType(values):
            return " or ".join(json.dumps(each) for each in values)
        case inspect.StructType(_, fields):
            needed = ", ".join(field.encode_name for field in fields if field.required)
            return f"an object with {needed}" if needed else "an object"
    return _NOUNS[type(info)]


def _range(above: float | None, least: float | None, below: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {least} to {most}"
    ends = {"above": above, "of at least": least, "below": below, "of at most": most}
    said = " and ".join(f"{end} {value}" for end, value in ends.items() if value is not None)
    return f" {said}" if said else ""


def is_of_kind(value: object, info: inspect.Type) -> bool:
    """Whether only the size of a value can be wrong."""
    alternatives = _alternatives(info)
    if isinstance(value, bool):
        return any(isinstance(each, inspect.BoolType) for each in alternatives)
    return any(isinstance(value, _KINDS.get(type(each), ())) for each in alternatives)
