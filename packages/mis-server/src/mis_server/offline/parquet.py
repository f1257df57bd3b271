"""Parquet for one process: a file that is read, and a folder of parts that is written.

Rows are scored in order, so the parts of a folder follow each other without gaps, and each is named by its first row.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from mis_core.errors import ConfigError
from mis_server.offline.answers import Schema, id_type, parquet_of, table_of
from mis_server.offline.asked import OfflineTask
from mis_server.offline.folder import JobFolder
from mis_server.offline.inputs import Input, Survey, check_unchanged
from mis_server.offline.output import Output
from mis_server.offline.rows import ERROR_COLUMN, InputRow
from mis_server.offline.tables import Parquet

_PART_ROWS = 16_384  # scored again at most, if the process is killed
_PART_BYTES = 64 * 1024 * 1024


class ParquetInput:
    """An input of rows in a Parquet file.

    Attributes:
        id_type: The type of its ids, None if it has none.
    """

    def __init__(self, name: str, file: Any, option: str, asked: OfflineTask) -> None:
        """Take what `Parquet` takes; the file is left open.

        Raises:
            ConfigError: as `Parquet`.
        """
        self._name = name
        self._file = file
        self._option = option
        self._parquet = Parquet(file, name, option, asked)
        self.id_type: pa.DataType | None = self._parquet.id_type

    def survey(self) -> Survey:
        """Read all of it."""
        self._file.seek(0)
        digest = hashlib.file_digest(self._file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        return Survey(self._parquet.footer.num_rows, digest)

    def rows(self, expected: Survey, skip: int = 0) -> Iterator[InputRow]:
        """Yield the rows, and check at the end that they are those of the survey.

        Args:
            expected: What the survey found.
            skip: So many rows are not read.

        Raises:
            ConfigError: it cannot be read, or is not what it was.
        """
        yield from self._parquet.rows_from(skip)
        check_unchanged(self._name, self.survey(), expected, self._option)


class OutputFolder(Output):
    """An output of Parquet files in a folder."""

    def __init__(self, name: str, made_with: dict[str, Any], schema: Schema) -> None:
        """Take a path.

        Args:
            name: Of the folder.
            made_with: Everything that the output depends on.
            schema: Of every part.
        """
        self._name = name
        self._folder = JobFolder(name, "parquet", made_with)
        self._schema = schema
        self._first = 0  # row of the next part
        self._waiting: list[pa.Table] = []

    def resume(self, *, overwrite: bool) -> tuple[int, int]:
        """Return how many rows are there, and how many of them are errors.

        Raises:
            ConfigError: the folder was made with other arguments, is not ours, lacks a part, or cannot be read.
        """
        errors = 0
        for name in sorted(self._folder.check("auto", overwrite=overwrite)):
            if name != self._part():
                message = f"{self._name} has {name}, but the next part must be {self._part()}.parquet; "
                raise ConfigError(f"{message}use another --output, or --overwrite.", "output")
            column = self._folder.column(name, ERROR_COLUMN)
            self._first += len(column)
            errors += len(column) - column.null_count
        return self._first, errors

    def check_type(self, dtype: str) -> None:
        """Refuse another type."""
        self._folder.check_type(dtype)

    @contextlib.contextmanager
    def opened(self, dtype: str) -> Iterator[None]:
        """Write the note."""
        if dtype:
            self._folder.agree(dtype)
        else:
            self._folder.begin()
        try:
            yield
        except BaseException:
            self._publish()  # what is scored is kept, whatever ends the run
            raise
        self._publish(even_empty=self._first == 0)
        self._folder.end()

    def void(self) -> None:
        """Have the note say so."""
        self._folder.void()

    async def append(self, rows: list[InputRow]) -> None:
        """Take rows; they are written when they are enough for a part."""
        self._waiting.append(table_of(rows, self._schema))
        num_rows, num_bytes = self._num_rows(), sum(table.nbytes for table in self._waiting)
        if num_rows >= _PART_ROWS or num_bytes >= _PART_BYTES:
            self._publish()

    def _publish(self, *, even_empty: bool = False) -> None:
        waiting = self._waiting or ([table_of([], self._schema)] if even_empty else [])
        if waiting:
            self._folder.publish(self._part(), parquet_of(pa.concat_tables(waiting)))
            self._first, self._waiting = self._first + self._num_rows(), []

    def _num_rows(self) -> int:
        return sum(table.num_rows for table in self._waiting)

    def _part(self) -> str:
        return f"{self._first:015d}"


def output_folder(name: str, made_with: dict[str, Any], asked: OfflineTask, source: Input) -> OutputFolder:
    """Return an output for the rows of an input: ids have its type, or are texts if its rows are lines."""
    ids = id_type([(name, source.id_type)]) if isinstance(source, ParquetInput) else pa.string()
    return OutputFolder(name, made_with, Schema(asked, ids))
