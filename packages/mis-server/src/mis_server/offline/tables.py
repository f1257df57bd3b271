"""Rows of Arrow's tables and of Parquet files, for one process and for many; needs the extra `mis-server[parquet]`.

A column that cannot be read as text or token ids makes an error of every row that has a value in it. Ids are never
converted: a row keeps its own as an Arrow array of one value.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet

from mis_core.errors import ConfigError
from mis_server.offline.asked import OfflineTask
from mis_server.offline.rows import ID_COLUMN, InputColumn, InputRow

SUFFIX = ".parquet"

_ROWS = 1024  # in memory at once
_BUFFER_BYTES = 1 << 20  # of each column that is read


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stands for a value of another type."""

    error: dict[str, str]


class Parquet:
    """A Parquet file of rows.

    Attributes:
        footer: Its `pyarrow.parquet.FileMetaData`.
        id_type: The type of its ids, None if it has none.
    """

    def __init__(self, file: Any, name: str, option: str, asked: OfflineTask) -> None:
        """Read the footer.

        Args:
            file: A file that can seek, of Python or of pyarrow; it is left open.
            name: For messages.
            option: That it was given by, for errors.
            asked: What is asked of its rows.

        Raises:
            ConfigError: it is not Parquet, or has no column that is asked about.
        """
        self._name = name
        self._option = option
        self._asked = asked
        with self._reading():
            self._file = pa.parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES)
        self.footer = self._file.metadata
        schema = self._file.schema_arrow
        self._columns = [each for each in (ID_COLUMN, *names_of(asked)) if each in schema.names]
        if not set(asked.needed) & set(schema.names):
            found = ", ".join(schema.names) or "none"
            needed = " nor ".join(f"a column {each}" for each in asked.needed)
            lacks = f"neither {needed}" if asked.needed[1:] else f"no column {asked.needed[0]}"
            raise ConfigError(f"{name} has {lacks}, but {found}.", option)
        for each in self._columns:
            if schema.names.count(each) > 1:
                raise ConfigError(f"{name} has {schema.names.count(each)} columns that are called {each}.", option)
        self.id_type = schema.field(ID_COLUMN).type if ID_COLUMN in schema.names else None

    def rows(self, groups: list[int], begin: int, end: int) -> Iterator[InputRow]:
        """Yield some rows; few of them are in memory at once.

        Args:
            groups: The row groups they are in.
            begin: The first row, counted from the beginning of the first of these groups.
            end: The row after the last one, counted likewise.

        Raises:
            ConfigError: the file cannot be read.
        """
        row = 0
        with self._reading():
            for batch in self._file.iter_batches(_ROWS, row_groups=groups, columns=self._columns, use_threads=False):
                if row >= end:
                    return
                yield from read_table(batch.slice(max(0, begin - row), max(0, end - max(row, begin))), self._asked)
                row += batch.num_rows

    def rows_from(self, begin: int) -> Iterator[InputRow]:
        """Yield the rows from a row of the file on; otherwise as `rows`."""
        group = before = 0
        while group < self.footer.num_row_groups and before + self.footer.row_group(group).num_rows <= begin:
            before += self.footer.row_group(group).num_rows
            group += 1
        groups = list(range(group, self.footer.num_row_groups))
        return self.rows(groups, begin - before, self.footer.num_rows - before)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            message = f"{self._name} cannot be read: {str(error).splitlines()[0].rstrip('.')}."
            raise ConfigError(message, self._option) from None


def names_of(asked: OfflineTask) -> list[str]:
    """Return the names of the columns that rows are read from, besides that of their ids."""
    return [column.name for column in asked.columns]


def read_table(table: pa.Table | pa.RecordBatch, asked: OfflineTask) -> list[InputRow]:
    """Return the rows of a table, of which an answer to `asked` is wanted."""
    found = table.schema.names
    columns = {each.name: _read_column(each, table.column(each.name)) for each in asked.columns if each.name in found}
    if ID_COLUMN in found:
        columns[ID_COLUMN] = _ids(table.column(ID_COLUMN))
    rows = []
    for index in range(table.num_rows):
        values = {name: column[index] for name, column in columns.items()}
        unreadable = [value for value in values.values() if isinstance(value, _Unreadable)]
        if unreadable:
            rows.append(InputRow(None, [], id=values.get(ID_COLUMN), error=unreadable[0].error))
        else:
            rows.append(asked.read(values))
    return rows


def _read_column(column: InputColumn, values: pa.Array | pa.ChunkedArray) -> list[Any]:
    read = _read_values(column, values)
    return [_decoded(column, each) for each in read] if column.holds == "json" else read


def _decoded(column: InputColumn, text: Any) -> Any:
    """Return what a text of JSON says."""
    if not isinstance(text, str):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _Unreadable({"code": column.code, "message": f"The column {column.name} has a text that is not JSON."})


def _read_values(column: InputColumn, values: pa.Array | pa.ChunkedArray) -> list[Any]:
    fits, _ = _KINDS[column.holds]
    if isinstance(values.type, pa.BaseExtensionType) or (fits(values.type) and _has_bytes(values.type)):
        return [_plain(column, scalar) for scalar in values]
    if not fits(values.type):
        return [_unreadable(column, scalar) if scalar.is_valid else None for scalar in values]
    try:
        return values.to_pylist()
    except UnicodeDecodeError:  # bytes that a file calls a text without being one
        return [_plain(column, scalar) for scalar in values]


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


def _is_text_or_null(type: pa.DataType) -> bool:
    return _is_text(type) or pa.types.is_null(type)


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


_KINDS = {
    "input": (_is_input, "a text or a list of token ids"),
    "inputs": (_is_list_of(_is_input), "a list of texts or of lists of token ids"),
    "text": (_is_text_or_null, "a text"),
    "json": (_is_text_or_null, "a text of JSON"),
}
"""By what a column holds: which types do, and how they are called."""


def _plain(column: InputColumn, scalar: pa.Scalar) -> Any:
    """Return a value as text, or as lists of texts and ids; bytes and what an extension's values are in Python too."""
    try:
        value = _as_lists(scalar.as_py())
    except UnicodeDecodeError:
        return _unreadable(column, scalar, " and bytes that are not UTF-8")
    except (TypeError, OverflowError, ValueError):  # of Python's dates, too, which end with the year 9999
        return _unreadable(column, scalar)
    only_text = column.holds in ("text", "json")
    return _unreadable(column, scalar) if isinstance(value, (int, list) if only_text else int) else value


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


def _unreadable(column: InputColumn, scalar: pa.Scalar, and_more: str = "") -> _Unreadable:
    _, wanted = _KINDS[column.holds]
    message = f"The column {column.name} has type {scalar.type}{and_more}; it must be {wanted}."
    return _Unreadable({"code": column.code, "message": message})
