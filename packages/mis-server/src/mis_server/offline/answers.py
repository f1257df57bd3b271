"""Answers as Arrow's columns and Parquet files: one schema for all parts of an output."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from mis_core.errors import ConfigError
from mis_server.offline.asked import OfflineTask
from mis_server.offline.rows import ERROR_COLUMN, ID_COLUMN, InputRow
from mis_server.offline.tables import BINARIES, STRINGS, is_any

_KINDS = {
    "scores": pa.list_(pa.list_(pa.float32())),
    "text": pa.string(),
    "texts": pa.list_(pa.string()),
    "count": pa.int64(),
}
_ERROR = pa.struct([("code", pa.string()), ("message", pa.string())])
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


@dataclass(frozen=True)
class Schema:
    """The columns of every part.

    Attributes:
        asked: What was asked of every row.
        id_type: The type of the ids; None for an output without them.
    """

    asked: OfflineTask
    id_type: pa.DataType | None


def id_type(types: Iterable[tuple[str, pa.DataType | None]]) -> pa.DataType | None:
    """Return the one type that ids of all files have; None if there are none.

    Args:
        types: A file's name, and the type of its ids, None for a file without them.

    Raises:
        ConfigError: there is no type that all ids fit in.
    """
    found, first = None, ""
    for name, given in types:
        if given is None:
            continue
        given = given.value_type if pa.types.is_dictionary(given) else given
        both = given if found is None else _shared(found, given)
        if both is None:
            message = f"The ids of {first} are of type {found} and those of {name} of type {given}"
            raise ConfigError(f"{message}, but one column has one type: score them separately.", "input")
        found, first = both, first or name
    return found


def _shared(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that has every value of both, in Arrow's other layouts if need be."""
    if one.equals(other) or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    for kinds, layout in ((STRINGS, pa.large_string()), (BINARIES, pa.large_binary())):
        if is_any(kinds, one) and is_any(kinds, other):
            return layout
    for is_kind in (pa.types.is_signed_integer, pa.types.is_unsigned_integer):
        if is_kind(one) and is_kind(other):
            return max(one, other, key=lambda each: each.bit_width)
    return None


def columns(rows: list[InputRow], asked: OfflineTask) -> dict[str, pa.Array]:
    """Return the columns of the answers, and that of the errors, of rows that have one of both."""
    cells = [asked.cells(row) if row.error is None else {} for row in rows]
    table = {
        name: pa.array([each.get(name) for each in cells], _KINDS[kind]) for name, kind in asked.answer_columns.items()
    }
    return table | {ERROR_COLUMN: pa.array([row.error for row in rows], _ERROR)}


def table_of(rows: list[InputRow], schema: Schema) -> pa.Table:
    """Return the answers to rows."""
    table = columns(rows, schema.asked)
    if schema.id_type is not None:
        table[ID_COLUMN] = _id_column(rows, schema.id_type)
    return pa.table(table)


def parquet_of(table: pa.Table) -> bytes:
    """Return a table's file."""
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def _id_column(rows: list[InputRow], type: pa.DataType) -> pa.Array:
    """Return ids in order: those of a table as they are; of JSON, where they may be of several types, their text."""
    null = pa.nulls(1, type)

    def array(id: Any) -> pa.Array:
        if id is None:
            return null
        if isinstance(id, pa.Array):
            return id if id.type.equals(type) else id.cast(type)
        return pa.array([id if isinstance(id, str) else json.dumps(id)], type)

    return pa.concat_arrays([null.slice(1), *(array(row.id) for row in rows)])


def json_value(id: pa.Array) -> Any:
    """Return an id of a table for JSON lines: times and decimals become text, and so do bytes: UTF-8, else base64."""
    return _json(id[0])


def _json(value: pa.Scalar) -> Any:
    kind = pa.types
    if not value.is_valid:
        return None
    if kind.is_struct(value.type):
        return {name: _json(each) for name, each in value.items()}
    if kind.is_map(value.type):
        return [[_json(pair["key"]), _json(pair["value"])] for pair in value.values]
    if kind.is_nested(value.type):
        return [_json(each) for each in value.values]
    if kind.is_timestamp(value.type) or kind.is_time(value.type):  # Python's know no nanoseconds
        return _text_of_time(value)
    if kind.is_duration(value.type):
        return f"PT{Decimal(value.value).scaleb(-_DIGITS[value.type.unit]):f}S"
    try:
        plain = value.as_py()
        return plain.decode() if isinstance(plain, bytes) else plain
    except UnicodeDecodeError:
        return value.cast(pa.binary()).as_py()
    except (OverflowError, ValueError):  # a date of a year that Python lacks
        return str(value.value) if kind.is_date(value.type) else str(value)


def _text_of_time(value: pa.Scalar) -> str:
    """Return ISO text, without its zone where that is unknown here."""
    try:
        text = value.cast(pa.string()).as_py()
    except pa.ArrowInvalid:
        text = value.cast(pa.timestamp(value.type.unit)).cast(pa.string()).as_py()
    return text.replace(" ", "T")
