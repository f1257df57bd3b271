"""Bodies made of their declarations: fields with values of their JSON schemas, with values near them, or others."""

from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mis_core.tasks.fields.body import Body
from mis_core.tasks.fields.described import schema_of

Schema = Mapping[str, Any]
Values = st.SearchStrategy[Any]

WORDS = ("m", "a", "b", " yes", "no way", "")  # `m` is served; some are a token, some are more
LENGTHS = (21, 51)  # more labels and more items than the server of the fuzz allows
SMALL = 12

_numbers = st.integers(-3, 1100) | st.floats(allow_nan=False, allow_infinity=False)
_leaves = st.none() | st.booleans() | _numbers | st.text(max_size=20)
_unreadable = st.sampled_from([float("nan"), float("inf"), 2**31, 2**63, 2**64, -(2**63), "\ud800", "a\udfff"])
_odd = st.sampled_from([None, True, -1, 5, 0.5, 1e9, "", "x", "5", [], {}, ["x"], [5], {"x": 1}])


def mostly(likely: Values, *others: Values, times: int = 7) -> Values:
    """Values of the first strategy so many times as often as of each other one."""
    return st.integers(1 - times, len(others)).flatmap(lambda place: others[place - 1] if place > 0 else likely)


def _nested(leaves: Values) -> Values:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
        max_leaves=8,
    )


_json = _nested(_leaves)
anything = _nested(mostly(_leaves, _unreadable, times=19))


def values(schema: Schema) -> Values:
    """Values of a JSON schema as msgspec writes them, without references: small numbers, short texts and lists."""
    if "anyOf" in schema:
        null, others = [], []
        for each in schema["anyOf"]:
            (null if each.get("type") == "null" else others).append(values(each))
        return mostly(st.one_of(others), *null)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            return _integers(schema)
        case "number":
            low, high = schema.get("exclusiveMinimum", schema.get("minimum")), schema.get("maximum")
            return st.floats(low, high, exclude_min="exclusiveMinimum" in schema, allow_nan=False, allow_infinity=False)
        case "string":
            return _texts(schema)
        case "array":
            return _lists(schema)
        case "object":
            return _objects(schema)
    return _json


def _integers(schema: Schema) -> Values:
    low, high = schema.get("minimum", -5), schema.get("maximum", schema.get("exclusiveMaximum", 1 << 64) - 1)
    return mostly(st.integers(low, min(low + SMALL, high)), st.integers(low, min(low + 1100, high)), st.just(high))


def _texts(schema: Schema) -> Values:
    if "pattern" in schema:
        return st.from_regex(schema["pattern"], fullmatch=True)
    if schema.get("contentMediaType") == "application/json":
        return st.sampled_from(["", "{}", '{"a": [1]}'])
    least = schema.get("minLength", 0)
    return st.sampled_from([word for word in WORDS if len(word) >= least]) | st.text(min_size=least, max_size=10)


def _lists(schema: Schema) -> Values:
    element, least, most = values(schema.get("items", {})), schema.get("minItems", 0), schema.get("maxItems", 1 << 30)
    few = st.lists(element, min_size=least, max_size=min(least + 3, most))
    many = [st.builds(lambda value, count: [value] * count, element, st.just(each)) for each in LENGTHS if each <= most]
    return mostly(few, *many, times=30)


def _objects(schema: Schema) -> Values:
    if "properties" not in schema:
        names, member = _texts(schema.get("propertyNames", {})), values(schema.get("additionalProperties", {}))
        least, most = schema.get("minProperties", 0), schema.get("maxProperties", 1 << 30)
        return st.dictionaries(names, member, min_size=least, max_size=min(least + 3, most))
    members = {name: values(each) for name, each in schema["properties"].items()}
    required = {name: members.pop(name) for name in schema.get("required", ())}
    return st.fixed_dictionaries(required, optional=members)


def wrong(schema: Schema) -> Values:
    """Values that a JSON schema refuses for one thing: a member or an element, its type, its range, or its absence."""
    validator = Draft202012Validator(schema)
    return _near(schema).filter(lambda value: not validator.is_valid(value))


def _near(schema: Schema) -> Values:
    if "anyOf" in schema:
        return st.one_of([_near(each) for each in schema["anyOf"]])
    steps = {"minimum": -1, "exclusiveMinimum": 0, "maximum": 1, "exclusiveMaximum": 0}
    limits = [schema[name] + step for name, step in steps.items() if name in schema]
    changed: list[Values] = [_odd, *([st.sampled_from(limits)] if limits else [])]
    if schema.get("type") == "array" and "items" in schema:
        changed.append(st.builds(lambda good, bad: [*good, bad], values(schema), _near(schema["items"])))
    if isinstance(schema.get("additionalProperties"), dict):
        changed.append(
            st.builds(lambda good, bad: good | {"x": bad}, values(schema), _near(schema["additionalProperties"]))
        )
    if "properties" in schema:
        members, objects = schema["properties"], values(schema)
        for name, each in members.items():
            changed.append(st.builds(lambda good, bad, name=name: good | {name: bad}, objects, _near(each)))
        without = st.sampled_from(sorted(members))
        changed.append(st.builds(lambda good, out: {n: v for n, v in good.items() if n != out}, objects, without))
        changed.append(st.builds(lambda good, name: good | {name: None}, objects, names_near(members)))
    return st.one_of(changed)


def names_near(names: Iterable[str]) -> Values:
    """Names that are none of these, but look like them, and one that does not."""
    near = {spelled for name in names for spelled in (name[:-1], f"{name}s", name.upper(), f"x_{name}")}
    return st.sampled_from(["nothing", *sorted(near - {*names})])


def bodies(declared: type[Body], good: Mapping[str, Any], better: Mapping[str, Values] | None = None) -> Values:
    """Bodies of a declaration with some fields that are right, and half of them with one that may be wrong.

    Args:
        declared: The declaration.
        good: A body that is answered; what is made stands in it mostly, so that it passes the earlier checks.
        better: Values of fields of which more is known than is declared.
    """
    schema = schema_of(declared)
    fields = schema["properties"]
    right = {name: values(each) for name, each in fields.items()} | dict(better or {})
    faulty = {name: wrong(each) | anything for name, each in fields.items()}  # once: making strategies takes time
    names, better_names = st.sampled_from(list(fields)), st.sampled_from(list(better or fields))
    faulty_names = mostly(names, names_near(fields))
    changes = st.lists(names, min_size=1, max_size=2 + len(fields) // 8, unique=True)
    is_made_whole = mostly(st.just(False), st.just(True), times=3)

    @st.composite
    def made(draw: st.DrawFn) -> dict[str, Any]:
        body = dict(good)
        if draw(is_made_whole):
            body = {name: draw(right[name]) for name in schema["required"]}
        changed = draw(changes)
        for name in [*changed, draw(better_names)] if better else changed:
            body[name] = draw(right[name])
        if draw(st.booleans()):
            name = draw(faulty_names)
            body[name] = draw(faulty.get(name, anything))
        return body

    return made()
