"""The outputs of `mis-server score`: what is written and removed, and when. A pretended engine scores, or none."""

import asyncio
import contextlib
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError, ModelError
from mis_server.cli import main
from mis_server.offline import Job, score_file, window
from mis_server.offline.output import Stream, is_standard_output, output_of
from mis_server.offline.query import OfflineQuery
from mis_server.offline.rows import InputRow
from mis_server.offline.tables import read_table


@dataclass
class PretendedScorer:
    """Gives every item the same score.

    Attributes:
        failure: What it raises instead of starting.
        before: What is done before rows are scored.
    """

    dtype: str = "float32"
    failure: Exception | None = None
    before: Callable[[], object] = lambda: None

    async def score(self, rows: list[InputRow]) -> None:
        self.before()
        for row in rows:
            row.answer = [[1.0]] * len(row.items)


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PretendedScorer:
    """Stands for the engine; the current folder is an empty one."""
    pretended = PretendedScorer()

    @contextlib.asynccontextmanager
    async def running(*_: Any) -> AsyncIterator[PretendedScorer]:
        if pretended.failure is not None:
            raise pretended.failure
        yield pretended

    monkeypatch.setattr(sys.modules[score_file.__module__], "running_scorer", running)
    monkeypatch.chdir(tmp_path)
    Path("items.jsonl").write_text('"a"\n"b"\n')
    Path("model").mkdir()
    return pretended


def score(output: str, items: str = "items.jsonl", *, overwrite: bool = False, **asked: Any) -> int:
    query = OfflineQuery(labels=("yes",), **{"query": "q ", **asked})
    job = Job(asked=query, input=items, output=output, format="parquet" if output.endswith(".parquet") else "jsonl")
    return score_file(job, EngineConfig(model="model"), overwrite=overwrite, progress=False)


def contents(folder: str = ".") -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


SCORED = b'{"scores":[1.0]}\n' * 2


@pytest.mark.parametrize("output", ["o.jsonl", "o.parquet"])
def test_what_is_there_stays_if_the_run_is_refused(scorer: PretendedScorer, output: str) -> None:
    scorer.failure = ModelError("It has no tokenizer.")
    before = contents()
    with pytest.raises(ModelError):
        score(output)
    assert contents() == before
    scorer.failure = None
    score(output)
    before, scorer.failure = contents(), ModelError("It has no tokenizer.")
    with pytest.raises(ModelError):
        score(output, query="other ", overwrite=True)
    assert contents() == before
    scorer.failure = None  # the twin
    score(output, query="other ", overwrite=True)
    assert contents() != before


def test_two_runs_do_not_write_one_file(scorer: PretendedScorer) -> None:
    asked = partial(output_of, "o.jsonl", "0" * 32, OfflineQuery().write_lines)
    with asked() as first, asked() as second:
        assert first.resume(overwrite=False) == second.resume(overwrite=False) == (0, 0)
        with first.opened("float32"):
            for overwrite in (False, True):
                with asked() as third, pytest.raises(ConfigError, match="Another run is writing"):
                    third.resume(overwrite=overwrite)
            asyncio.run(first.append([InputRow("q", ["a"], answer=[[1.0]])]))
    before = contents()
    with asked() as second, asked() as third:
        second._starts_over = True  # as `resume` found before there was a file
        with pytest.raises(ConfigError, match="Another run is writing"), second.opened("float32"):
            pass
    assert contents() == before
    with asked() as third:  # the twin
        assert third.resume(overwrite=False) == (1, 0)


def test_an_interruption_before_the_end_is_made_good(scorer: PretendedScorer) -> None:
    score("o.parquet")
    Path("o.parquet/_SUCCESS").unlink()
    for _ in range(2):
        score("o.parquet")
        assert {"_SUCCESS", "_job.json", f"{0:015d}.parquet"} == {path.name for path in Path("o.parquet").iterdir()}


@pytest.mark.parametrize("output", ["o.jsonl", "o.parquet"])
def test_rows_of_an_input_that_changed_are_not_continued(
    scorer: PretendedScorer, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "UNANSWERED_ROWS", 100)  # or all of it would be read before it changes
    items, long = Path("items.jsonl"), b'"%s"\n' % (b"word " * 400)
    items.write_bytes(long * 2000)
    scorer.before = lambda: items.write_bytes(long * 1000 + b'"b"\n')
    with pytest.raises(ConfigError, match="changed while it was scored"):
        score(output, batch_size=10)
    items.write_bytes(long * 2000)
    scorer.before = lambda: None
    with pytest.raises(ConfigError, match="was made with other"):
        score(output)
    score(output, overwrite=True)


def test_links_stay_and_what_they_lead_to_is_written(scorer: PretendedScorer) -> None:
    Path("big").mkdir()
    Path("empty.jsonl").touch()
    for name, target in (("dangling", "big/out.jsonl"), ("soft", "empty.jsonl")):
        link = Path(name)
        link.symlink_to(target)
        for _ in range(2):
            score(name, overwrite=True)
            assert (link.is_symlink(), Path(target).read_bytes()) == (True, SCORED)


def test_dev_stdout_is_standard_output(scorer: PretendedScorer, capfd: pytest.CaptureFixture[str]) -> None:
    assert is_standard_output("/dev/stdout")  # or the run would replace the machine's link
    score("/dev/stdout", overwrite=True)
    assert capfd.readouterr().out.encode() == SCORED
    assert Path("/dev/stdout").is_symlink()
    assert not Path("/dev/stdout.job").exists()
    message = "writes a folder, not to standard output"
    assert message in refused("--items", "items.jsonl", "--output", "/dev/stdout", "--output-format", "parquet")


def refused(*arguments: str, model: str = "model") -> str:
    arguments = ("score", model, "--query", "q ", "--labels", "yes", *arguments)
    done = CliRunner().invoke(main, list(arguments), prog_name="mis-server")
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code not in (0, 2) or "Usage" in done.stderr, done.stderr
    return done.stderr


@pytest.mark.parametrize("option", ["items", "output"])
@pytest.mark.parametrize("name", ["", ".", "/", "long"])
def test_what_is_no_name_is_one_line(scorer: PretendedScorer, option: str, name: str) -> None:
    name = "x" * 300 if name == "long" else name
    given = {"items": "items.jsonl", "output": "o"} | {option: name}
    assert f"Error: --{option}: " in refused("--items", given["items"], "--output", given["output"])
    if option == "items":
        assert "Error: --items: " in refused("--items", name)


@pytest.mark.parametrize("option", ["model", "--tokenizer-path"])
@pytest.mark.parametrize("name", ["/no/such/model", "./none", "path/to/Qwen3-0.6B", "none.gguf"])
def test_a_model_that_is_not_there_is_one_line(tmp_path: Path, option: str, name: str) -> None:
    (tmp_path / "items.jsonl").write_text('"a"\n')
    (tmp_path / "model").mkdir()
    model, *more = (name,) if option == "model" else (str(tmp_path / "model"), option, name)
    assert f"{name!r} does not exist" in refused("--items", str(tmp_path / "items.jsonl"), *more, model=model)
    assert len(list(tmp_path.iterdir())) == 2


def test_standard_streams_that_are_closed_are_said(scorer: PretendedScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigError, match="standard input is closed"):
        score("o.jsonl", "-")
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(ConfigError, match="standard output is closed"):
        score("-")


@pytest.mark.parametrize("output", ["o.jsonl", "o.parquet"])
def test_an_unwritable_output_is_reported_before_a_start(scorer: PretendedScorer, output: str) -> None:
    scorer.failure = AssertionError("the engine started")
    Path("file").touch()
    for folder in ("file", *(["none"] if output == "o.jsonl" else [])):
        with pytest.raises(ConfigError, match=r"cannot be (read or )?written: (Not a directory|No such file)"):
            score(f"{folder}/{output}")


def test_what_fails_in_a_folder_is_one_line(scorer: PretendedScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    score("o.parquet")
    (part,) = Path("o.parquet").glob("0*.parquet")
    whole = part.read_bytes()
    part.write_bytes(whole[:-20])
    with pytest.raises(ConfigError, match=r"o\.parquet cannot be read or written: "):
        score("o.parquet")
    part.unlink()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"o\.parquet cannot be read or written: No space left on device"):
        score("o.parquet")


def test_an_output_with_more_rows_than_the_input_is_refused(scorer: PretendedScorer) -> None:
    for output in ("o.jsonl", "o.parquet"):
        score(output)
    with Path("o.jsonl").open("ab") as file:
        file.write(SCORED)
    pq.write_table(pa.table({"scores": [[[1.0]]], "error": pa.nulls(1)}), f"o.parquet/{2:015d}.parquet")
    for output, rows in (("o.jsonl", 4), ("o.parquet", 3)):
        before = contents()
        with pytest.raises(ConfigError, match=f"has {rows} rows, but the input has 2"):
            score(output)
        assert contents() == before


def test_a_file_with_a_recipes_name_is_not_the_recipe(scorer: PretendedScorer) -> None:
    config = EngineConfig(model="model", rerank_template="generic")
    job = Job(asked=OfflineQuery(query="q", rerank=True), input="items.jsonl", output="generic")
    score_file(job, config, progress=False)
    score_file(job, config, progress=False)
    assert Path("generic").read_bytes() == SCORED


def test_ctrl_c_ends_a_wait_for_a_pipes_reader(scorer: PretendedScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("pipe")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT))
    rescue = threading.Timer(30, lambda: Path("pipe").open("rb").close())  # or a fault would hang
    try:
        timer.start()
        rescue.start()
        with pytest.raises(KeyboardInterrupt):
            score("pipe")
        assert rescue.is_alive()
    finally:
        rescue.cancel()
        signal.signal(signal.SIGINT, before)


def test_a_reader_that_pauses_holds_up_nothing_else() -> None:
    reading, writing = os.pipe()
    rows = [InputRow("q", ["a"], answer=[[0.5] * 100]) for _ in range(1000)]

    async def write() -> bytes:
        with os.fdopen(writing, "wb", 0) as file:
            task = asyncio.create_task(Stream("pipe", OfflineQuery().write_lines, file).append(rows))
            for _ in range(100):
                await asyncio.sleep(0)  # which a blocked loop never ends
            assert not task.done()
            found = b""
            while not task.done():
                found += os.read(reading, 1000)
                await asyncio.sleep(0)
            await task
        while more := os.read(reading, 65_536):
            found += more
        return found

    assert asyncio.run(write()) == OfflineQuery().write_lines(rows)
    os.close(reading)


def test_ids_and_values_beyond_python_are_text_or_a_row_error(scorer: PretendedScorer) -> None:
    beyond = pa.array([10_000_000, None], pa.date32())
    for ids, want in (
        (beyond, "10000000"),
        (pa.array([[10_000_000], None], pa.list_(pa.date32())), ["10000000"]),
        (pa.array([1, None], pa.timestamp("us", "Foo/Bar")), "1970-01-01T00:00:00.000001"),
    ):
        pq.write_table(pa.table({"item": ["a", "b"], "id": ids}), "items.parquet")
        score("o.jsonl", "items.parquet", overwrite=True)
        first, second = Path("o.jsonl").read_bytes().splitlines()
        assert json.loads(first) == {"scores": [1.0], "id": want}
        assert json.loads(second) == {"scores": [1.0]}
    opaque = pa.ExtensionArray.from_storage(pa.opaque(pa.date32(), "date", "somebody"), beyond)
    first, second = read_table(pa.table({"item": opaque}), OfflineQuery(query="q"))
    assert first.error is not None
    assert first.error["message"].startswith("The column item has type extension<arrow.opaque")
    assert second.error is not None
    assert second.error["code"] == "missing_items"
