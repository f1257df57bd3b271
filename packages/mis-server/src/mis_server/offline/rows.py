"""Rows: what is read from a line of JSON or a row of a table, and what is written for it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from mis_server.offline.asked import SCORE_COLUMN
from mis_server.offline.text import MAX_LINE_BYTES, is_too_long, without_mark

ERROR = b'{"error":'
"""How the line of a row with an error begins."""


@dataclass(slots=True)
class InputRow:
    """A row of the input, and later its answer.

    Attributes:
        query: A text or ids.
        items: Texts or lists of ids; one, or as many as the row lists.
        is_list: Whether the row has a list of items, and its scores are a list for each.
        id: What the output repeats, None for nothing: any value of JSON, or of a table an Arrow array of this one.
        scores: For each item a value for each label; None before, and if there is an error.
        error: Why the row cannot be scored: `code` and `message`.
    """

    query: Any
    items: list[Any]
    is_list: bool = False
    id: Any = None
    scores: list[list[float]] | None = None
    error: dict[str, str] | None = None


def read_line(text: bytes, query: str | None) -> InputRow:
    """Read a line of JSON: a text, a list of token ids, or an object with `item` or `items`, `query` and `id`."""
    if is_too_long(text):
        message = f"The line is longer than {MAX_LINE_BYTES} bytes."
        return InputRow(query, [], error={"code": "request_too_large", "message": message})
    try:
        value = msgspec.json.decode(without_mark(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return InputRow(query, [], error={"code": "invalid_json", "message": "The line is not JSON."})
    return read_row(value if isinstance(value, dict) else {"item": value}, query)


def read_row(values: Mapping[str, Any], query: str | None) -> InputRow:
    """Read a row's values by name; `query` is for rows without their own."""
    own = values.get("query")
    row = InputRow(query if own is None else own, [values.get("item")], id=values.get("id"))
    items = values.get("items")
    if items is not None:
        row.items, row.is_list = (items, True) if isinstance(items, list) else ([], True)
    if items is not None and row.items is not items:
        row.error = {"code": "invalid_items_type", "message": "The row's items are not a list."}
    elif items == []:
        row.error = {"code": "empty_items", "message": "The row's list of items is empty."}
    elif items is not None and values.get("item") is not None:
        row.error = {"code": "invalid_items_type", "message": "The row has both item and items; it may have one."}
    elif items is None and row.items[0] is None:
        row.error = {"code": "missing_items", "message": "The line has no item."}
    elif row.query is None:
        row.error = {"code": "missing_query", "message": "The line has no query, and there is no --query."}
    return row


def write_line(row: InputRow, score_column: str = SCORE_COLUMN) -> bytes:
    """Return the line of JSON for a row that is scored or has an error; `score_column` names its scores."""
    fields: dict[str, Any] = {"error": row.error}
    if row.error is None:
        assert row.scores is not None
        fields = {score_column: row.scores if row.is_list else row.scores[0]}
    if row.id is not None:
        fields["id"] = row.id
    return msgspec.json.encode(fields, enc_hook=_of_arrow) + b"\n"


def write_lines(rows: Iterable[InputRow], score_column: str = SCORE_COLUMN) -> bytes:
    """Return the lines of JSON for rows, as `write_line`."""
    return b"".join(write_line(row, score_column) for row in rows)


def _of_arrow(id: Any) -> Any:
    from mis_server.offline.answers import json_value  # which needs an extra that JSON lines do not

    return json_value(id)
