"""`mis-server score` on Parquet, as a process: what is read, what is written, and that it goes on where it ended."""

import datetime
import json
import shutil
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import stopping
from mis_core import Engine
from mis_server.cli import main
from stopping import stopped

ENGINE = ("--dtype", "float32", "--skip-warmup", "--chunked-prefill-size", "256", "--max-total-tokens", "8192")
ROWS = 1000
NS = pa.timestamp("ns", "UTC")
ITEMS = pa.table({"item": ["a"]})


def command(checkpoint: Path, *arguments: object) -> list[str]:
    asked = ("--query", "Good? ", "--labels", "yes", "no", *ENGINE)
    return [sys.executable, "-m", "mis_server", "score", str(checkpoint), *map(str, arguments), *asked]


def table() -> pa.Table:
    """Rows of which some are no text; all ids of the later ones are null."""
    texts: list[bytes | None] = [f"text {index % 500} ä".encode() for index in range(ROWS)]
    queries: list[int | None] = [None] * ROWS
    items: list[Decimal | None] = [None] * ROWS
    texts[3], queries[5], texts[7], items[7] = b"a\xff", 1234567890123456789, None, Decimal("1.25")
    return pa.table(
        {
            "id": pa.array([2**64 - 1 - index if index < 100 else None for index in range(ROWS)], pa.uint64()),
            "item": pa.array(texts),
            "query": pa.array(queries, NS),
            "items": pa.array(items, pa.decimal128(10, 2)),
            "else": pa.array([datetime.date(2026, 1, 1)] * ROWS),
        }
    )


ERRORS = {
    3: ("invalid_items_type", "The column item has type binary and bytes that are not UTF-8; "),
    5: ("invalid_query_type", "The column query has type timestamp[ns, tz=UTC]; "),
    7: ("invalid_items_type", "The column items has type decimal128(10, 2); "),
}


def test_an_interrupted_run_goes_on_and_its_folder_is_one_table(
    checkpoint: Path, tmp_path: Path, engine: Engine
) -> None:
    source, output = tmp_path / "items.parquet", tmp_path / "out.parquet"
    pq.write_table(table(), source, row_group_size=300)
    run = command(checkpoint, "--items", source, "--output", output, "--batch-size", 20, "--score-column", "p")
    with stopped(stopping.command(run[3:], rows=400, REQUESTS=10), stderr=subprocess.DEVNULL) as process:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        process.wait()
    (first,) = output.glob("*.parquet")
    assert 400 <= pq.read_metadata(first).num_rows < ROWS  # answers that waited for earlier ones are not written
    again = subprocess.run(run, capture_output=True, text=True, timeout=500)
    assert again.returncode == 2, again.stderr
    assert "3 rows have an error" in again.stdout
    assert {path.name for path in output.iterdir()} == {"_job.json", "_SUCCESS", *(p.name for p in parts(output))}
    assert len(parts(output)) == 2
    assert len({str(pq.read_schema(path)) for path in parts(output)}) == 1
    for got in (pq.read_table(output), pyarrow.dataset.dataset(output).to_table()):
        assert got.column_names == ["p", "error", "id"]
        assert got["id"].equals(table()["id"])
        check_errors(got["error"].to_pylist())
    rows = [0, 4, 6, 99, 100, ROWS - 1]
    texts = [f"text {index % 500} ä" for index in rows]
    want = engine.score(query="Good? ", items=texts, labels=["yes", "no"]).scores.tolist()
    assert [got["p"][row].as_py() for row in rows] == [[scores] for scores in want]

    # What a program pipes in is Parquet, too, and lines have the same scores, and ids that JSON has numbers for.
    piped = command(checkpoint, "--items", "-", "--output", "-")
    few = pyarrow.BufferOutputStream()
    pq.write_table(table().slice(0, 100), few)
    done = subprocess.run(piped, input=few.getvalue().to_pybytes(), capture_output=True, timeout=500)
    assert done.returncode == 2, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("id") for line in lines] == table()["id"].to_pylist()[:100]
    check_errors([line.get("error") for line in lines])
    np.testing.assert_array_equal(
        [line["scores"] for line in lines if "scores" in line],
        [scores[0] for scores in got["p"].to_pylist()[:100] if scores],
    )

    # Neither other arguments nor what an older version began are continued.
    assert "was made with other values of score_column" in refused([*run[3:], "--score-column", "q"])
    note = output / "_job.json"
    note.write_text(json.dumps({key: value for key, value in json.loads(note.read_text()).items() if key != "version"}))
    assert "was begun by another version of mis-server: finish it with that one, use another" in refused(run[3:])
    assert len(parts(output)) == 2


def check_errors(errors: list[dict[str, str] | None]) -> None:
    assert [row for row, error in enumerate(errors) if error] == list(ERRORS)
    for row, (code, message) in ERRORS.items():
        error = errors[row]
        assert error is not None
        assert error["code"] == code
        assert error["message"].startswith(message)


def parts(output: Path) -> list[Path]:
    return sorted(output.glob("*.parquet"))


def refused(arguments: list[str]) -> str:
    done = CliRunner().invoke(main, arguments, prog_name="mis-server")
    assert done.exit_code == 1, done.output
    return done.stderr


def test_an_input_of_lines_or_without_rows_has_parts_too(checkpoint: Path, tmp_path: Path) -> None:
    lines, output = tmp_path / "items.jsonl", tmp_path / "out"
    rows: list[Any] = ["a", {"item": "b", "id": [1, "x"]}, {"item": "c", "id": "y"}]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = ["--output-format", "parquet"]
    done = CliRunner().invoke(main, command(checkpoint, "--items", lines, "--output", output, *run)[3:])
    assert done.exit_code == 0, done.output
    # An engine that starts, but refuses what is asked, has removed nothing.
    before = {path: path.read_bytes() for path in output.iterdir()}
    other = shutil.copytree(checkpoint, tmp_path / "model")
    (other / "README.md").write_text("# Releasing zeroentropy/zerank-2\n")
    told = refused([*command(other, "--items", lines, "--output", output, *run, "--overwrite", "--rerank")[3:]])
    assert "zerank-2" in told
    assert "--rerank-template" in told
    assert {path: path.read_bytes() for path in output.iterdir()} == before
    got = pq.read_table(output)
    assert got["id"].to_pylist() == [None, '[1, "x"]', "y"]
    assert got.schema.field("id").type == pa.string()
    pq.write_table(
        pa.table({"item": pa.array([], pa.string()), "id": pa.array([], pa.uint64())}), tmp_path / "no.parquet"
    )
    done = CliRunner().invoke(main, command(checkpoint, "--items", tmp_path / "no.parquet", *run)[3:])
    assert done.exit_code == 0, done.output
    got = pq.read_table(tmp_path / "no.scores.parquet")
    assert (got.num_rows, got.schema.field("id").type) == (0, pa.uint64())


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (b"no", (), "Error: --items: {items} cannot be read: Parquet"),
        (pa.table({"a": ["b"]}), (), "Error: --items: {items} has neither a column item nor a column items, but a."),
        (ITEMS, ("--score-column", "id"), "Error: --score-column: 'id' cannot name the scores; "),
        (ITEMS, ("--output", "-", "--output-format", "parquet"), "not to standard output; name one"),
    ],
)
def test_what_cannot_be_read_or_written_is_one_line(
    checkpoint: Path, tmp_path: Path, content: Any, flags: tuple[str, ...], message: str
) -> None:
    items = tmp_path / "items.parquet"
    if isinstance(content, bytes):
        items.write_bytes(content)
    else:
        pq.write_table(content, items)
    done = CliRunner().invoke(main, command(checkpoint, "--items", items, *flags)[3:], prog_name="mis-server")
    assert done.exit_code != 0
    assert message.format(items=items) in done.stderr


def test_without_pyarrow_the_extra_is_named(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(ITEMS, tmp_path / "items.parquet")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = "Parquet needs pyarrow: pip install 'mis-server[parquet]'."
    assert f"Error: --items: {message}" in refused(command(checkpoint, "--items", tmp_path / "items.parquet")[3:])
    arguments = command(checkpoint, "--items", tmp_path / "items.jsonl", "--output", tmp_path / "out.parquet")
    assert f"Error: --output: {message}" in refused(arguments[3:])
