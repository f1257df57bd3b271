"""Rows: what is read from a line of JSON or a row of a table, and the answer that is written for it."""

from dataclasses import dataclass
from typing import Any, Literal

ERROR_COLUMN, ID_COLUMN = "error", "id"
"""What columns of every output are called."""


@dataclass(slots=True)
class InputRow:
    """A row of the input, and later its answer.

    Attributes:
        query: What rows may share: a text or ids; of decisions a state.
        items: What is asked of it: texts or lists of ids, one, or as many as the row lists; of decisions one object of
            questions.
        is_list: Whether the row has a list of items, and its answer is a list for each.
        id: What the output repeats, None for nothing: any value of JSON, or of a table an Arrow array of this one.
        answer: For each item a value for each label, of decisions the reply; None before, and if there is an error.
        error: Why the row has no answer: `code` and `message`.
    """

    query: Any
    items: list[Any]
    is_list: bool = False
    id: Any = None
    answer: Any = None
    error: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class InputColumn:
    """A column of a table that rows are read from, besides that of their ids.

    Attributes:
        name: Its name, and that of a line's field.
        holds: `input`: a text or token ids; `inputs`: a list of these; `text`: a text; `json`: a text of JSON.
        code: Of the error of a row whose value is another.
    """

    name: str
    holds: Literal["input", "inputs", "text", "json"]
    code: str


@dataclass(frozen=True, slots=True)
class RowSize:
    """What a row adds to a request, about, and what its answer needs.

    Attributes:
        items: How many things are asked.
        query_tokens: Of its query.
        tokens: Of its items.
        answer_bytes: Memory of its answer.
    """

    items: int
    query_tokens: int
    tokens: int
    answer_bytes: int
