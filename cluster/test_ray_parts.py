"""Parts of files: every row is in exactly one, wherever files are cut."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError
from mis_server.offline import asked, text
from mis_server.offline.folder import file_system
from mis_server.offline.query import OfflineQuery
from mis_server.offline.rows import InputRow
from mis_server.offline.text import zstd
from mis_server.ray import actor, parts
from mis_server.ray.parts import digest, plan, read_rows, sources

in_any_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def rows_of(path: Path, part_bytes: int) -> list[list[InputRow]]:
    fs, pattern = file_system(str(path))
    query = OfflineQuery()
    return [read_rows(fs, part, query) for part in plan(fs, sources(fs, pattern), part_bytes, query).parts]


def lines_of(path: Path) -> list[InputRow]:
    """Rows as one process reads them."""
    with path.open("rb") as file:
        return [OfflineQuery().read_line(line) for line in text.Lines(file, str(path), "items")]


LINE = st.binary(max_size=60).map(lambda line: line.replace(b"\n", b""))
BLANK = st.sampled_from([b"", b" ", b"\r", b"\t ", text.BYTE_ORDER_MARK])


@in_any_folder
@given(
    lines=st.lists(LINE | BLANK, max_size=40),
    blank=st.lists(BLANK, max_size=5),
    ends=st.booleans(),
    part_bytes=st.integers(1, 200),
    tail_bytes=st.integers(4, 50),
)
def test_every_line_is_in_one_part(
    tmp_path: Path, lines: list[bytes], blank: list[bytes], ends: bool, part_bytes: int, tail_bytes: int
) -> None:
    file = tmp_path / "some.jsonl"
    content = b"\n".join([*lines, *blank]) + (b"\n" if ends else b"")
    if not content.startswith(text.BYTE_ORDER_MARK):
        content = b" " + content  # no line of JSON begins as an encoding does
    file.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "_TAIL_BYTES", tail_bytes)
        got = rows_of(file, part_bytes)
    assert [row for part in got for row in part] == lines_of(file)
    assert len(got) >= 1


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("zst", zstd.compress)], ids=["gz", "zst"])
def test_a_compressed_file_is_one_part(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = text.BYTE_ORDER_MARK + b"".join(json.dumps(f"text {i}").encode() + b"\n" for i in range(1000)) + b"\n \n"
    file, plain = tmp_path / f"some.jsonl.{suffix}", tmp_path / "plain.jsonl"
    file.write_bytes(compress(content[:5000]) + compress(content[5000:]))
    plain.write_bytes(content)
    (rows,) = rows_of(file, 100)
    assert len(rows) == 1000
    assert rows == [row for part in rows_of(plain, 100) for row in part] == lines_of(file)
    monkeypatch.setattr(parts, "MAX_EXPANDED_BYTES", 10_000)
    with pytest.raises(ConfigError, match="expands to more than 10000 bytes; expand it, or split it into files"):
        rows_of(file, 100)


def test_a_line_that_is_too_long_is_an_error_of_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (text, asked):
        monkeypatch.setattr(module, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(parts, "_TAIL_BYTES", 7)
    file, fits = tmp_path / "some.jsonl", "missing_query"
    for length in range(95, 110):
        file.write_bytes(b"\n".join([b'"a"', b'"' + b"x" * (length - 2) + b'"', b'"' + b"y" * 1000 + b'"', b'"b"']))
        want = [row.error and row.error["code"] for row in lines_of(file)]
        assert want == [fits, "request_too_large" if length > 100 else fits, "request_too_large", fits]
        for part_bytes in (1, 10, 64, 5000):
            got = [row for part in rows_of(file, part_bytes) for row in part]
            assert [row.error and row.error["code"] for row in got] == want


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_bytes('"a"'.encode("utf-16"))
    with pytest.raises(ConfigError, match=r"some\.jsonl is UTF-16, which is not read"):
        rows_of(file, 100)
    file.write_text('"a"')
    for name in ("more.jsonl.bz2", "more.parquet.gz"):
        (tmp_path / name).write_bytes(b"BZh")
        for path in (tmp_path, tmp_path / name):
            with pytest.raises(ConfigError, match=rf"{name} cannot be read; compressed files must be \.jsonl\.gz"):
                rows_of(path, 100)
        (tmp_path / name).unlink()
    assert len(rows_of(tmp_path, 100)) == 1


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


def test_a_change_in_the_middle_of_a_file_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_bytes(b'"a line of it"\n' * 10_000)
    fs, pattern = file_system(str(file))
    found = sources(fs, pattern)
    before, planned = digest(fs, found), plan(fs, found, 50_000, OfflineQuery()).parts
    assert digest(fs, sources(fs, pattern)) == before
    assert len(read_rows(fs, planned[1], OfflineQuery())) > 3000
    with file.open("rb+") as writing:
        writing.seek(70_003)
        writing.write(b"X")
    assert digest(fs, sources(fs, pattern)) != before
    with pytest.raises(ConfigError, match=r"some\.jsonl changed while it was scored"):
        read_rows(fs, planned[1], OfflineQuery())


def test_a_file_that_is_not_parquet_is_said(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(ConfigError, match=r"bad\.parquet cannot be read"):
        rows_of(tmp_path, 1000)


def test_rows_of_a_query_are_asked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[list[str]] = []

    class Scorer:
        async def score(self, rows: list[InputRow]) -> None:
            batches.append([row.items[0] for row in rows])
            for row in rows:
                row.answer = [[float(row.items[0])]]

    @contextlib.asynccontextmanager
    async def running(*_: Any) -> AsyncIterator[Scorer]:
        yield Scorer()

    monkeypatch.setattr(actor, "running_scorer", running)
    queries: list[Any] = ["a", [1, 2], "b", "a", [1, 2], "[1, 2]"]
    rows = [InputRow(query, [str(i)]) for i, query in enumerate(queries)]
    asyncio.run(actor.Host(OfflineQuery(labels=("yes",)), EngineConfig(model="m")).score(rows))
    assert batches == [["0", "3"], ["1", "4"], ["2"], ["5"]]
    assert [row.answer for row in rows] == [[[float(i)]] for i in range(6)]
