"""Tables: what a column's type means for its rows, and that an id comes back as it was. pyarrow is the oracle."""

import datetime
import json
import uuid
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mis_core.errors import ConfigError
from mis_server.offline.answers import Schema, id_type, parquet_of, table_of
from mis_server.offline.query import OfflineQuery
from mis_server.offline.rows import InputRow
from mis_server.offline.tables import Parquet, read_table

ASKED = OfflineQuery(query="q")
in_any_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

TEXTS = ["cat", None, "ä"]
NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TEXTS),
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS, pa.string_view()),
        pa.array(TEXTS).dictionary_encode(),
        pa.array([text and text.encode() for text in TEXTS]),
        pa.array([text and text.encode() for text in TEXTS], pa.large_binary()),
        pa.array([text and text.encode() for text in TEXTS], pa.binary_view()),
        pa.array([text and text.encode() for text in TEXTS]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_texts_of_all_layouts_are_texts(column: pa.Array) -> None:
    rows = read_table(pa.table({"item": column}), ASKED)
    assert [row.items[0] for row in rows] == TEXTS
    assert [row.error and row.error["code"] for row in rows] == [None, "missing_items", None]
    rows = read_table(pa.table({"query": column, "item": ["i"] * 3}), ASKED)
    assert [row.query for row in rows] == ["cat", "q", "ä"]
    lists = pa.ListArray.from_arrays([0, 2, 3], column)
    assert [row.items for row in read_table(pa.table({"items": lists}), ASKED)] == [["cat", None], ["ä"]]


@pytest.mark.parametrize(
    "type",
    [
        pa.list_(pa.int64()),
        pa.large_list(pa.uint16()),
        pa.list_(pa.int32(), 2),
        pa.list_view(pa.uint64()),
        pa.large_list_view(pa.int8()),
    ],
    ids=str,
)
def test_lists_of_integers_are_token_ids(type: pa.DataType) -> None:
    column = pa.array([[1, 2], [3, 4]], type)
    assert [row.items for row in read_table(pa.table({"item": column, "query": column}), OfflineQuery())] == [
        [[1, 2]],
        [[3, 4]],
    ]
    items = pa.array([[[1, 2], [3, 4]], [[5, 6]]], pa.list_(type))
    assert [row.items for row in read_table(pa.table({"items": items}), ASKED)] == [[[1, 2], [3, 4]], [[5, 6]]]


@pytest.mark.parametrize(
    ("column", "type"),
    [
        (pa.array([Decimal("1.25")], pa.decimal128(10, 2)), "decimal128(10, 2)"),
        (pa.array([datetime.date(2026, 1, 2)]), "date32[day]"),
        (pa.array([1], pa.time64("ns")), "time64[ns]"),
        (pa.array([1234567890123456789], pa.timestamp("ns", "UTC")), "timestamp[ns, tz=UTC]"),
        (pa.array([1], pa.duration("ns")), "duration[ns]"),
        (pa.array([7]), "int64"),
        (pa.array([0.5]), "double"),
        (pa.array([True]), "bool"),
        (pa.array([[True]]), "list<item: bool>"),
        (pa.array([[0.5]]), "list<item: double>"),
        (pa.array([{"text": "a"}]), "struct<text: string>"),
        (pa.array([b"a\xff"]), "binary and bytes that are not UTF-8"),
        (pa.array([b"\xff\xfe"], pa.binary(2)), "fixed_size_binary[2] and bytes that are not UTF-8"),
        (NOT_UTF8, "string and bytes that are not UTF-8"),
        (pa.array([uuid.UUID(int=1).bytes], pa.uuid()), "extension<arrow.uuid>"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_anything_else_is_an_error_that_names_column_and_type(column: pa.Array, type: str) -> None:
    good, null = pa.array(["good"]), pa.nulls(1, column.type)
    (row,) = read_table(pa.table({"item": column, "id": [7]}), ASKED)
    message = f"The column item has type {type}; it must be a text or a list of token ids."
    assert row.error == {"code": "invalid_items_type", "message": message}
    assert row.id.to_pylist() == [7]
    (row,) = read_table(pa.table({"query": column, "item": good}), ASKED)
    assert row.error == {"code": "invalid_query_type", "message": message.replace("column item", "column query")}
    (row,) = read_table(pa.table({"items": column}), ASKED)
    assert row.error is not None
    assert row.error["code"] == "invalid_items_type"
    assert row.error["message"].startswith("The column items has type ")
    (row,) = read_table(pa.table({"query": null, "item": good, "items": null}), ASKED)
    assert (row.query, row.items, row.error) == ("q", ["good"], None)


NS = pa.timestamp("ns")
STRUCT = pa.struct({"a": pa.uint64(), "b": pa.string()})
IDS = {
    "uint64 above 2^63": pa.array([2**64 - 1, None, 2**63], pa.uint64()),
    "decimals": pa.array([Decimal("1.25"), None, Decimal("-99999999.99")], pa.decimal128(10, 2)),
    "large decimals": pa.array([Decimal("1" * 50), None, Decimal(1)], pa.decimal256(60, 3)),
    "timestamps in ns": pa.array([1234567890123456789, None, 1], pa.timestamp("ns")),
    "timestamps with a zone": pa.array([1234567890123456789, None, 1], pa.timestamp("ns", "Europe/Berlin")),
    "times": pa.array([5, None, 6], pa.time64("ns")),
    "dates": pa.array([datetime.date(2026, 1, 2), None, datetime.date(1, 1, 1)]),
    "durations": pa.array([5, None, 6], pa.duration("ns")),
    "floats": pa.array([0.1, None, float("inf")], pa.float32()),
    "lists": pa.array([[1, None], None, []], pa.list_(pa.int16())),
    "lists of timestamps": pa.array([[1234567890123456789], None, []], pa.list_(pa.timestamp("ns"))),
    "structs": pa.array([{"a": 2**63, "b": "x"}, None, {"a": None, "b": ""}], STRUCT),
    "maps": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
    "binary": pa.array([b"\xff\x00", None, b"text"]),
    "binary of one size": pa.array([b"\xff" * 16, None, b"a" * 16], pa.binary(16)),
    "uuids": pa.array([uuid.UUID(int=1).bytes, None, uuid.UUID(int=2).bytes], pa.uuid()),
    "texts": pa.array(["a", None, "b"], pa.large_string()),
    "views": pa.array(["a", None, "b"], pa.string_view()),
    "null": pa.nulls(3),
    "texts that are no UTF-8": pa.concat_arrays([NOT_UTF8, pa.nulls(1, pa.string()), pa.array(["a"])]),
}  # fmt: skip


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_a_folder_is_one_table_with_every_id(tmp_path: Path, ids: pa.Array) -> None:
    source, output = tmp_path / "in.parquet", tmp_path / "out"
    pq.write_table(pa.table({"id": ids, "item": ["text"] * 3}), source, row_group_size=1)
    (output / "in.parquet").mkdir(parents=True)
    parquet = Parquet(pa.OSFile(str(source)), "in.parquet", "items", ASKED)
    schema = Schema(ASKED, id_type([("in.parquet", parquet.id_type)]))
    for group in range(3):  # the ids of the second part are all null, and the third part has errors only
        rows = list(parquet.rows([group], 0, 1))
        for row in rows:
            row.answer, row.error = ([[0.5]], None) if group < 2 else (None, {"code": "c", "message": "m"})
        (output / "in.parquet" / f"{group}.parquet").write_bytes(parquet_of(table_of(rows, schema)))
    assert len({str(pq.read_schema(path)) for path in output.glob("*/*")}) == 1
    want = pq.read_table(source)["id"].combine_chunks()
    for table in (pq.read_table(output), pyarrow.dataset.dataset(output).to_table()):
        assert table["id"].type == want.type
        assert table["id"].combine_chunks().equals(want) or str(ids.type) == "null"
        assert table["scores"].to_pylist() == [[[0.5]], [[0.5]], None]
        assert table["error"].to_pylist() == [None, None, {"code": "c", "message": "m"}]


def test_ids_of_a_dictionary_are_its_values() -> None:
    ids = pa.array(["a", None, "b"] * 200).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
    assert id_type([("f", ids.type)]) == pa.string()
    rows = read_table(pa.table({"id": ids, "item": ["i"] * 600}), ASKED)
    for row in rows:
        row.answer = [[0.5]]
    table = pq.read_table(pa.BufferReader(parquet_of(table_of(rows, Schema(ASKED, pa.string())))))
    assert table["id"].to_pylist() == ["a", None, "b"] * 200


def test_ids_of_json_lines_are_texts() -> None:
    rows = [InputRow("q", ["i"], id=each, answer=[[1.0]]) for each in ("a", 1, [1, "ä"], None, {"a": None})]
    for some in (rows, rows[3:4], []):
        table = pq.read_table(pa.BufferReader(parquet_of(table_of(some, Schema(ASKED, pa.string())))))
        assert table.schema.field("id").type == pa.string()
        want = [row.id if row.id is None or isinstance(row.id, str) else json.dumps(row.id) for row in some]
        assert table["id"].to_pylist() == want


def test_files_share_a_type_of_ids_that_loses_nothing() -> None:
    def shared(*types: pa.DataType | None) -> pa.DataType | None:
        return id_type((f"{index}.parquet", given) for index, given in enumerate(types))

    assert shared(None, None) is None
    assert shared(None, pa.int32(), pa.null()) == pa.int32()
    assert shared(pa.null(), pa.int32(), pa.int64(), pa.int8()) == pa.int64()
    assert shared(pa.uint64(), pa.uint8()) == pa.uint64()
    assert shared(pa.string(), pa.dictionary(pa.int8(), pa.string())) == pa.string()
    assert shared(pa.string(), pa.string_view()) == pa.large_string()
    for types in ((pa.int64(), pa.uint64()), (pa.int64(), pa.string()), (pa.timestamp("us"), pa.timestamp("ns"))):
        with pytest.raises(ConfigError, match=r"ids of 1\.parquet are of type .* and those of 2\.parquet of type"):
            shared(None, *types)
    ids = pa.array([1, None], pa.int8())
    rows = read_table(pa.table({"id": ids, "item": ["i"] * 2}), ASKED)
    for row in rows:
        row.answer = [[0.5]]
    table = pq.read_table(
        pa.BufferReader(parquet_of(table_of(rows, Schema(OfflineQuery(score_column="s"), pa.int64()))))
    )
    assert (table["id"].type, table["id"].to_pylist(), table.column_names) == (
        pa.int64(),
        [1, None],
        ["s", "error", "id"],
    )


def test_ids_of_tables_in_json_lines() -> None:
    for ids, texts in [
        (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
        (pa.array([Decimal("1.20")]), ["1.20"]),
        (pa.array([1234567890123456789], pa.timestamp("ns")), ["2009-02-13T23:31:30.123456789"]),
        (pa.array([1], pa.timestamp("us", "UTC")), ["1970-01-01T00:00:00.000001Z"]),
        (pa.array([5], pa.time64("ns")), ["00:00:00.000000005"]),
        (pa.array([datetime.date(2026, 1, 2)]), ["2026-01-02"]),
        (pa.array([1500], pa.duration("ns")), ["PT0.000001500S"]),
        (pa.array([b"text"]), ["text"]),
        (pa.array([b"\xff"]), ["/w=="]),
        (NOT_UTF8, ["/w=="]),
        (pa.array([uuid.UUID(int=1).bytes], pa.uuid()), [str(uuid.UUID(int=1))]),
        (pa.array([{"at": [1]}], pa.struct({"at": pa.list_(NS)})), [{"at": ["1970-01-01T00:00:00.000000001"]}]),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), [[["a", 1]]]),
        (pa.array([True, None]), [True, None]),
        (pa.nulls(1), [None]),
    ]:  # fmt: skip
        rows = read_table(pa.table({"id": ids, "item": ["i"] * len(ids)}), ASKED)
        for row in rows:
            row.answer = [[0.5]]
        assert [json.loads(ASKED.write_line(row)).get("id") for row in rows] == texts
        assert json.loads(OfflineQuery(score_column="p").write_line(rows[0]))["p"] == [0.5]


@in_any_folder
@given(rows=st.integers(0, 3000), group=st.integers(1, 2500), begin=st.integers(0, 3000))
def test_rows_are_read_from_any_row_on(tmp_path: Path, rows: int, group: int, begin: int) -> None:
    file = tmp_path / "some.parquet"
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "item": pa.array(["text"] * rows, pa.string())})
    pq.write_table(table, file, row_group_size=group)
    with pa.OSFile(str(file)) as opened:
        found = [row.id[0].as_py() for row in Parquet(opened, "some", "items", ASKED).rows_from(begin)]
    assert found == list(range(begin, rows))


def test_a_file_without_items_or_with_equal_columns_is_refused() -> None:
    def opened(table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        Parquet(pa.BufferReader(sink.getvalue()), "some.parquet", "items", ASKED)

    with pytest.raises(ConfigError, match=r"some\.parquet has neither a column item nor a column items, but text, id"):
        opened(pa.table({"text": ["a"], "id": [1]}))
    with pytest.raises(ConfigError, match=r"some\.parquet has 2 columns that are called id"):
        opened(pa.Table.from_arrays([pa.array(["a"])] * 3, names=["item", "id", "id"]))
    with pytest.raises(ConfigError, match=r"some\.parquet cannot be read"):
        Parquet(pa.BufferReader(b"no"), "some.parquet", "items", ASKED)


def test_scores_are_what_they_were() -> None:
    scores = np.float32([[0.1, 0.2], [0.3, 0.4]]).tolist()
    rows = [InputRow("q", ["a", "b"], answer=scores), InputRow("q", [], error={"code": "c", "message": "m"})]
    table = pq.read_table(pa.BufferReader(parquet_of(table_of(rows, Schema(ASKED, None)))))
    assert table.column_names == ["scores", "error"]
    assert table["scores"].to_pylist() == [scores, None]
