"""Token ids as callers send them, to flat arrays: lists, tuples or NumPy arrays of integers.

Python booleans and floats are not integers here. The common case, lists of `int`, is checked without
a Python loop over tokens; only a refusal looks for the path to name.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self, cast

import numpy as np
from jaxtyping import Bool, Int64

from mis_core.errors import RequestError
from mis_core.ragged import rows_at

ROW_TYPES = (list, tuple, np.ndarray)

_TOO_LARGE = 1 << 62  # stands for integers beyond 64 bits; above every vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class TokenRows:
    """Token ids of one field of a request.

    Attributes:
        param: The field.
        values: All ids, row after row. None is negative; those beyond 63 bits may appear as negative numbers.
        lens: Ids of each row.
        is_nested: Whether the field is a list of rows; otherwise it is one row.
    """

    param: str
    values: Int64[np.ndarray, " tokens"]
    lens: Int64[np.ndarray, " rows"]
    is_nested: bool

    @classmethod
    def single(cls, param: str, values: Int64[np.ndarray, " tokens"]) -> Self:
        """Make a field of one list."""
        return cls(param, values, np.array([len(values)]), is_nested=False)

    @classmethod
    def nested(cls, param: str, rows: Sequence[np.ndarray]) -> Self:
        """Make a field of several lists."""
        values = np.concatenate([np.empty(0, np.int64), *rows])
        return cls(param, values, np.array(list(map(len, rows)), np.int64), is_nested=True)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lens)

    def rows(self, rows: Int64[np.ndarray, " rows"]) -> Self:
        """Return some lists of a nested field."""
        lens = self.lens[rows]
        starts = np.cumsum(self.lens) - self.lens
        return replace(self, values=rows_at(self.values, starts[rows], lens), lens=lens)

    def above(self, size: int) -> Bool[np.ndarray, " tokens"]:
        """Return which ids are not below a size."""
        return self.values.view(np.uint64) >= size

    def check_below(self, size: int, name: str = "vocabulary size") -> None:
        """Refuse ids outside the vocabulary, or rows outside a head.

        Args:
            size: What all are below.
            name: What that is.

        Raises:
            RequestError: `token_id_exceeds_vocab`.
        """
        is_above = self.above(size)
        if is_above.any():
            raise self.exceeds(self.path(int(np.argmax(is_above))), size, name)

    def exceeds(self, path: str, size: int, name: str = "vocabulary size") -> RequestError:
        """Return the error of an id outside the vocabulary, or of a row outside a head."""
        return RequestError("token_id_exceeds_vocab", f"{path} is not below the {name} {size}.", self.param)

    def first_columns(self, is_token: Bool[np.ndarray, " tokens"]) -> Int64[np.ndarray, " rows"]:
        """Return where each row has the first of some tokens; -1 where it has none."""
        ends = np.cumsum(self.lens)
        found = np.flatnonzero(is_token)
        rows, first = np.unique(np.searchsorted(ends, found, side="right"), return_index=True)
        columns = np.full(len(self.lens), -1)
        columns[rows] = found[first] - (ends - self.lens)[rows]
        return columns

    @property
    def longest(self) -> int:
        """Length of the longest row; there is one."""
        return int(self.lens.max()) if self.is_nested else len(self.values)

    def path(self, index: int) -> str:
        """Write where an index into `values` is in the request, such as `items[3][2]`."""
        if not self.is_nested:
            return f"{self.param}[{index}]"
        ends = np.cumsum(self.lens)
        row = int(np.searchsorted(ends, index, side="right"))
        return f"{self.param}[{row}][{index - int(ends[row] - self.lens[row])}]"


def read_row(param: str, row: Sequence[object] | np.ndarray) -> TokenRows:
    """Read a field that is one list of token ids.

    Raises:
        RequestError: `invalid_token_id_type` or `negative_token_id`; names the path.
    """
    return _read(param, row, np.array([len(row)]), is_nested=False)


def read_rows(param: str, rows: Sequence[Sequence[object] | np.ndarray]) -> TokenRows:
    """Read a field that is a list of lists of token ids.

    Raises:
        RequestError: `invalid_token_id_type` or `negative_token_id`; names the path.
    """
    if np.ndarray in set(map(type, rows)) and any(isinstance(row, np.ndarray) and row.ndim != 1 for row in rows):
        raise RequestError("invalid_token_id_type", f"Every array in {param} must have one dimension.", param)
    lens = np.fromiter(map(len, rows), np.int64, len(rows))
    if all(map(_is_integer_array, rows)):
        return _read(param, np.concatenate([_to_int64(row) for row in rows]), lens, is_nested=True)
    return _read(param, list(itertools.chain.from_iterable(rows)), lens, is_nested=True)


def _read(param: str, flat: Sequence[object] | np.ndarray, lens: np.ndarray, is_nested: bool) -> TokenRows:
    if not _is_integer_array(flat):
        _check_integers(param, flat, lens, is_nested)
    rows = TokenRows(param, _to_int64(flat), lens, is_nested)
    if rows.values.size and rows.values.min() < 0:
        path = rows.path(int(np.argmax(rows.values < 0)))
        raise RequestError("negative_token_id", f"{path} is negative; token ids begin at 0.", param)
    return rows


def _is_integer_array(row: object) -> bool:
    return isinstance(row, np.ndarray) and row.ndim == 1 and (row.dtype.kind in "iu" or row.size == 0)


def _check_integers(param: str, flat: Iterable[object], lens: np.ndarray, is_nested: bool) -> None:
    kinds = set(map(type, flat))
    if kinds <= {int}:
        return
    wrong = {kind for kind in kinds if not issubclass(kind, (int, np.integer)) or issubclass(kind, bool)}
    for index, value in enumerate(flat):
        if type(value) in wrong:
            path = TokenRows(param, np.empty(0, np.int64), lens, is_nested).path(index)
            name = type(value).__name__
            raise RequestError("invalid_token_id_type", f"{path} must be an integer token id, not {name}.", param)


def _to_int64(row: Sequence[object] | np.ndarray) -> np.ndarray:
    """Convert integers; those beyond 64 bits become other ones that are refused for the same reason."""
    if isinstance(row, np.ndarray):
        return np.minimum(row, _TOO_LARGE).astype(np.int64) if row.dtype == np.uint64 else row.astype(np.int64)
    try:
        return np.array(row, np.int64)
    except OverflowError:
        return np.array([max(-1, min(int(value), _TOO_LARGE)) for value in cast(Sequence[int], row)], np.int64)
