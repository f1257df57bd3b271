"""Parts of files: every row is in exactly one, wherever files are cut."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mis_core.errors import ConfigError
from mis_server.offline.folder import file_system
from mis_server.offline.rows import Row, read_line
from mis_server.ray.actor import grouped
from mis_server.ray.parts import plan, read_rows, sources

in_any_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def rows_of(path: Path, part_bytes: int) -> list[list[Row]]:
    fs, pattern = file_system(str(path))
    return [read_rows(fs, part, None) for part in plan(fs, sources(fs, pattern), part_bytes).parts]


@in_any_folder
@given(
    lines=st.lists(st.binary(max_size=60).map(lambda line: line.replace(b"\n", b"")), min_size=1, max_size=40),
    ends=st.booleans(),
    part_bytes=st.integers(1, 200),
)
def test_every_line_is_in_one_part(tmp_path: Path, lines: list[bytes], ends: bool, part_bytes: int) -> None:
    file = tmp_path / "some.jsonl"
    file.write_bytes(b"\n".join(lines) + (b"\n" if ends else b""))
    with file.open("rb") as opened:
        want = [read_line(line, None) for line in opened]
    assert [row for part in rows_of(file, part_bytes) for row in part] == want


def test_a_line_of_many_parts_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text("".join(json.dumps({"item": "x" * n, "query": "q"}) + "\n" for n in (5, 300_000, 7)))
    found = rows_of(file, 1000)
    assert [len(row.items[0]) for part in found for row in part] == [5, 300_000, 7]
    assert len(found) > 100


@in_any_folder
@given(
    rows=st.integers(1, 200),
    group=st.integers(1, 80),
    part_bytes=st.integers(1, 20_000),
)
def test_every_row_of_parquet_is_in_one_part(tmp_path: Path, rows: int, group: int, part_bytes: int) -> None:
    file = tmp_path / "some.parquet"
    pq.write_table(
        pa.table({"id": range(rows), "item": ["text"] * rows, "more": [1] * rows}), file, row_group_size=group
    )
    assert [row.id[0].as_py() for part in rows_of(file, part_bytes) for row in part] == list(range(rows))


def test_a_file_without_rows_is_a_part_without_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    for groups in (0, 1):
        with pq.ParquetWriter(tmp_path / f"{groups}.parquet", pa.schema({"item": pa.string()})) as writer:
            for _ in range(groups):
                writer.write_table(pa.table({"item": pa.array([], pa.string())}))
    assert rows_of(tmp_path, 1000) == [[], [], []]


def test_a_folder_a_glob_and_a_file_are_found(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "deep/c.jsonl", "_job.jsonl", "other.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1\n")

    def found(pattern: str) -> list[str]:
        fs, path = file_system(str(tmp_path / pattern))
        return [source.name for source in sources(fs, path)]

    assert found("") == ["a.jsonl", "b.jsonl", "deep/c.jsonl"]
    assert found("[ab].jsonl") == ["a.jsonl", "b.jsonl"]
    assert found("b.jsonl") == ["b.jsonl"]
    for pattern in ("none", "*.parquet", "other.txt"):
        with pytest.raises(ConfigError, match=r"has no files|cannot be read"):
            found(pattern)


def test_a_file_that_is_not_parquet_is_said(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(ConfigError, match=r"bad\.parquet cannot be read"):
        rows_of(tmp_path, 1000)


def test_rows_of_a_query_stand_together() -> None:
    queries: list[Any] = ["a", [1, 2], "b", "a", [1, 2], "[1, 2]"]
    rows = [Row(query, [str(i)]) for i, query in enumerate(queries)]
    assert [row.items[0] for row in grouped(rows)] == ["0", "3", "1", "4", "2", "5"]
