"""Bodies as documents have them: a JSON schema, and a table."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from mis_core.tasks.fields.body import NO_EFFECT, Body, fields_of


class FieldRow(NamedTuple):
    """A field of a body in a table: all are text."""

    name: str
    noun: str
    default: str
    help: str


def rows_of(declared: type[Body]) -> Iterator[FieldRow]:
    """Yield the rows of a body's table, in the order in which fields are checked."""
    for name, field in fields_of(declared).items():
        default = "required" if field.is_required else msgspec.json.encode(field.default).decode()
        yield FieldRow(name, field.noun, "" if default == "null" else default, field.about.help)


def without_effect(declared: type[Body]) -> list[str]:
    """Return the fields that change nothing."""
    return [row.name for row in rows_of(declared) if row.help == NO_EFFECT.description]


def schema_of(declared: type[Body], examples: Sequence[Any] = ()) -> dict[str, Any]:
    """Return the JSON schema of a body, whole: it refers to nothing outside itself."""
    (schema,), parts = msgspec.json.schema_components([declared], ref_template="{name}")
    body = parts[schema["$ref"]]
    for name, field in fields_of(declared).items():
        rules, own = field.about, body["properties"][name]
        each = () if rules.each is None else rules.each if isinstance(rules.each, tuple) else (rules.each,)
        schemas, others = msgspec.json.schema_components((*rules.schemas, *each), ref_template="{name}")
        parts |= others
        alternatives, elements = [*schemas[: len(rules.schemas)]], [*schemas[len(rules.schemas) :]]
        items = elements[0] if len(elements) == 1 else {"anyOf": elements}
        if alternatives:
            own["anyOf"] = alternatives + ([{"type": "array", "items": items, "minItems": 1}] if elements else [])
        elif elements:
            own["additionalProperties" if own.get("type") == "object" else "items"] = items
        if field.about.nullable:
            body["properties"][name] = _with_null(body["properties"][name])
    return _inlined(body, parts) | ({"examples": [*examples]} if examples else {})


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    apart = {name: schema.pop(name) for name in ("description", "default") if name in schema}
    return {"anyOf": [*(schema.get("anyOf") or [schema]), {"type": "null"}]} | apart


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    """Return a JSON schema with what it refers to in its place, of its parts by their names."""
    if isinstance(schema, list):
        return [_inlined(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"]], parts)
    return {name: _inlined(each, parts) for name, each in schema.items()}
