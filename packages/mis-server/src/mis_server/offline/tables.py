"""Rows of Arrow's tables and of Parquet files, for one process and for many; needs the extra `mis-server[parquet]`.

A column that cannot be read as text or token ids makes an error of every row that has a value in it. Ids are never
converted: a row keeps its own as an Arrow array of one value.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from mis_core.errors import ConfigError
from mis_server.offline.rows import InputRow, read_row

SUFFIX = ".parquet"
SCORED = ("query", "item", "items")
COLUMNS = ("id", *SCORED)

_ROWS = 1024  # in memory at once
_BUFFER_BYTES = 1 << 20  # of each column that is read


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stands for a value that is neither a text nor token ids."""

    error: dict[str, str]


class Parquet:
    """A Parquet file of rows.

    Attributes:
        footer: Its `pyarrow.parquet.FileMetaData`.
        id_type: The type of its ids, None if it has none.
    """

    def __init__(self, file: Any, name: str, option: str) -> None:
        """Read the footer.

        Args:
            file: A file that can seek, of Python or of pyarrow; it is left open.
            name: For messages.
            option: That it was given by, for errors.

        Raises:
            ConfigError: it is not Parquet, or has no column to score.
        """
        self._name = name
        self._option = option
        with self._reading():
            self._file = pa.parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES)
        self.footer = self._file.metadata
        schema = self._file.schema_arrow
        self._columns = [each for each in COLUMNS if each in schema.names]
        if "item" not in schema.names and "items" not in schema.names:
            found = ", ".join(schema.names) or "none"
            raise ConfigError(f"{name} has neither a column item nor a column items, but {found}.", option)
        for each in self._columns:
            if schema.names.count(each) > 1:
                raise ConfigError(f"{name} has {schema.names.count(each)} columns that are called {each}.", option)
        self.id_type = schema.field("id").type if "id" in schema.names else None

    def rows(self, groups: list[int], begin: int, end: int, query: str | None) -> Iterator[InputRow]:
        """Yield some rows; few of them are in memory at once.

        Args:
            groups: The row groups they are in.
            begin: The first row, counted from the beginning of the first of these groups.
            end: The row after the last one, counted likewise.
            query: For rows without their own.

        Raises:
            ConfigError: the file cannot be read.
        """
        row = 0
        with self._reading():
            for batch in self._file.iter_batches(_ROWS, row_groups=groups, columns=self._columns, use_threads=False):
                if row >= end:
                    return
                yield from read_table(batch.slice(max(0, begin - row), max(0, end - max(row, begin))), query)
                row += batch.num_rows

    def rows_from(self, begin: int, query: str | None) -> Iterator[InputRow]:
        """Yield the rows from a row of the file on; otherwise as `rows`."""
        group = before = 0
        while group < self.footer.num_row_groups and before + self.footer.row_group(group).num_rows <= begin:
            before += self.footer.row_group(group).num_rows
            group += 1
        groups = list(range(group, self.footer.num_row_groups))
        return self.rows(groups, begin - before, self.footer.num_rows - before, query)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            message = f"{self._name} cannot be read: {str(error).splitlines()[0].rstrip('.')}."
            raise ConfigError(message, self._option) from None


def read_table(table: pa.Table | pa.RecordBatch, query: str | None) -> list[InputRow]:
    """Return the rows of a table with columns named as in `COLUMNS`; `query` is for rows without their own."""
    columns = {name: _read_column(name, table.column(name)) for name in COLUMNS if name in table.schema.names}
    rows = []
    for index in range(table.num_rows):
        values = {name: column[index] for name, column in columns.items()}
        unreadable = [value for value in values.values() if isinstance(value, _Unreadable)]
        if unreadable:
            rows.append(InputRow(query, [], id=values.get("id"), error=unreadable[0].error))
        else:
            rows.append(read_row(values, query))
    return rows


def _read_column(name: str, column: pa.Array | pa.ChunkedArray) -> list[Any]:
    if name == "id":
        return _ids(column)
    fits = _is_list_of(_is_input) if name == "items" else _is_input
    if isinstance(column.type, pa.BaseExtensionType) or (fits(column.type) and _has_bytes(column.type)):
        return [_plain(name, scalar) for scalar in column]
    if not fits(column.type):
        return [_unreadable(name, scalar) if scalar.is_valid else None for scalar in column]
    try:
        return column.to_pylist()
    except UnicodeDecodeError:  # bytes that a file calls a text without being one
        return [_plain(name, scalar) for scalar in column]


def _ids(column: pa.Array | pa.ChunkedArray) -> list[pa.Array | None]:
    if isinstance(column, pa.ChunkedArray):
        return [each for chunk in column.chunks for each in _ids(chunk)]
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    valid = column.is_valid().to_pylist()
    return [column.slice(index, 1) if is_valid else None for index, is_valid in enumerate(valid)]


# What a type's values are, whichever of Arrow's layouts they have.

STRINGS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
BINARIES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
_BYTES = (*BINARIES, pa.types.is_fixed_size_binary)
_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def is_any(kinds: tuple[Callable[[pa.DataType], bool], ...], type: pa.DataType) -> bool:
    """Return whether a type is of one of these kinds."""
    return any(is_kind(type) for is_kind in kinds)


def _is_text(type: pa.DataType) -> bool:
    return _is_text(type.value_type) if pa.types.is_dictionary(type) else is_any((*STRINGS, *_BYTES), type)


def _is_list_of(is_element: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    def fits(type: pa.DataType) -> bool:
        return pa.types.is_null(type) or (is_any(_LISTS, type) and is_element(type.value_type))

    return fits


def _is_id(type: pa.DataType) -> bool:
    return pa.types.is_integer(type) or pa.types.is_null(type)


def _is_input(type: pa.DataType) -> bool:
    return _is_text(type) or _is_list_of(_is_id)(type)


def _has_bytes(type: pa.DataType) -> bool:
    if is_any(_LISTS, type) or pa.types.is_dictionary(type):
        return _has_bytes(type.value_type)
    return is_any(_BYTES, type)


def _plain(name: str, scalar: pa.Scalar) -> Any:
    """Return a value as text, or as lists of texts and ids; bytes and what an extension's values are in Python too."""
    try:
        value = _as_lists(scalar.as_py())
    except UnicodeDecodeError:
        return _unreadable(name, scalar, " and bytes that are not UTF-8")
    except (TypeError, OverflowError, ValueError):  # of Python's dates, too, which end with the year 9999
        return _unreadable(name, scalar)
    return _unreadable(name, scalar) if isinstance(value, int) else value


def _as_lists(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "dtype") and value.dtype.kind in "iuUSO":  # NumPy's
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_as_lists(each) for each in value]
    if value is None or isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise TypeError(type(value))


def _unreadable(name: str, scalar: pa.Scalar, and_more: str = "") -> _Unreadable:
    code = "invalid_query_type" if name == "query" else "invalid_items_type"
    wanted = "a list of texts or of lists of token ids" if name == "items" else "a text or a list of token ids"
    return _Unreadable(
        {
            "code": code,
            "message": f"The column {name} has type {scalar.type}{and_more}; it must be {wanted}.",
        }
    )
