"""`mis-server score` as a process: what it reads survives it, whatever it is named, and however it is stored."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import stopping
from mis_core import Engine
from mis_core.errors import ConfigError
from mis_server.cli import main
from mis_server.offline.inputs import Survey, opened
from mis_server.offline.query import OfflineQuery
from mis_server.offline.text import zstd
from stopping import stopped

LABELS = ("--labels", "yes", "no")
ENGINE = ("--dtype", "float32", "--skip-warmup", "--chunked-prefill-size", "256", "--max-total-tokens", "8192")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def command(model: Path | str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "mis_server", "score", str(model), *map(str, arguments), *LABELS, *ENGINE]


def score(model: Path | str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """In a process of its own, which takes seconds to start."""
    return subprocess.run(command(model, *arguments), capture_output=True, timeout=300, **options)


def score_here(model: Path | str, *arguments: object, input: bytes | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(main, command(model, *arguments)[3:], prog_name="mis-server", input=input)
    return done.exit_code, done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with things to read and things that are somebody's, which is the current one."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "in").mkdir()
    for name in ("a.jsonl", "in/b.jsonl", "out.jsonl.job"):
        (tmp_path / name).write_text('{"item": "text", "query": "q"}\n')
    (tmp_path / "soft").symlink_to("a.jsonl")
    (tmp_path / "hard").hardlink_to("a.jsonl" if Path.cwd() == tmp_path else tmp_path / "a.jsonl")
    (tmp_path / "part of the model").hardlink_to(tmp_path / "model" / "config.json")
    (tmp_path / "elsewhere").symlink_to("model", target_is_directory=True)
    (tmp_path / "template.jinja").write_text("{{ query }}")
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "done.jsonl").write_text('{"scores": [1.0]}\n')
    (tmp_path / "done.jsonl.job").write_text(f"{'0' * 32} float32")
    monkeypatch.chdir(tmp_path)
    return tmp_path


REFUSED = [
    ("a.jsonl", "a.jsonl", "a.jsonl is the input, which is read; use another --output"),
    ("a.jsonl", "soft", "soft is the input (a.jsonl)"),
    ("soft", "a.jsonl", "a.jsonl is the input (soft)"),
    ("a.jsonl", "hard", "hard is the input (a.jsonl)"),
    ("in/b.jsonl", "in", "in is a folder above the input"),
    ("out.jsonl.job", "out.jsonl", "out.jsonl.job is the input"),
    ("done.jsonl", "done.jsonl.job", "done.jsonl.job is the note of the input"),
    ("a.jsonl", "model/scores.jsonl", "model/scores.jsonl lies in the model (model)"),
    ("a.jsonl", "elsewhere/new", "elsewhere/new lies in the model (model)"),
    ("a.jsonl", "part of the model", "part of the model is a file of the model (model)"),
    ("a.jsonl", "template.jinja", "template.jinja is the rerank template"),
    ("a.jsonl", "thesis.txt", "thesis.txt exists, but no note thesis.txt.job shows that this command wrote it"),
    ("a.jsonl", "out.jsonl", "out.jsonl.job was not written by this command, which keeps a note there"),
    ("a.jsonl", "in", "in is a folder"),
]


def test_nothing_is_removed_that_is_read_or_that_is_not_ours(files: Path) -> None:
    before = contents(files)
    for overwrite in ((), ("--overwrite",)):
        for items, output, message in REFUSED:
            arguments = ("--items", items, "--output", output, "--rerank-template", "template.jinja", *overwrite)
            code, error = score_here("model", *arguments)
            assert (code, contents(files)) == (1, before), (arguments, error)
            assert f"Error: --output: {message}" in error
    # The twin: what is ours goes, and an empty file has nothing to lose.
    Path("empty.jsonl").touch()
    for output in ("done.jsonl", "free.jsonl", "empty.jsonl"):
        code, error = score_here("model", "--items", "/dev/null", "--output", output, "--overwrite")
        assert (code, Path(output).read_bytes()) == (0, b""), error


def test_no_part_of_a_model_in_several_files_is_written(files: Path) -> None:
    first, second = (f"model-0000{part}-of-00002.gguf" for part in (1, 2))
    for path in (first, second):
        Path(path).write_bytes(b"GGUF")
    before = contents(files)
    code, error = score_here(first, "--items", "a.jsonl", "--output", second, "--overwrite")
    assert (code, contents(files)) == (1, before)
    assert f"Error: --output: {second} is the model, which is read" in error


@pytest.mark.parametrize(
    ("items", "output", "message"),
    [
        ("-", "a.jsonl", b"a.jsonl is the input (/dev/stdin), which is read"),
        ("a.jsonl", "-", b"/dev/stdout is the input (a.jsonl), which is read"),
    ],
)
def test_a_process_leaves_them_alone_too(files: Path, items: str, output: str, message: bytes) -> None:
    before = contents(files)
    with Path("a.jsonl").open("rb") as stdin, Path("a.jsonl").open("ab") as stdout:
        arguments = command("model", "--items", items, "--output", output, "--overwrite")
        done = subprocess.run(arguments, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, timeout=300)
    assert (done.returncode, contents(files)) == (1, before), done.stderr
    assert b"Error: --output: " in done.stderr
    assert message in done.stderr


def test_an_empty_input_writes_an_empty_output(files: Path) -> None:
    for number, content in enumerate([b"", b"\n \r\n\t\n", BYTE_ORDER_MARK, gzip.compress(b""), zstd.compress(b"\n")]):
        Path("items").write_bytes(content)
        output = Path(f"scores{number}.jsonl")
        for _ in range(2):  # and is resumed
            code, error = score_here("model", "--items", "items", "--output", output)
            assert (code, output.read_bytes()) == (0, b""), error
    done = score("model", "--items", "-", "--output", "-", stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (0, b"")


def test_inputs_that_cannot_be_read_are_said(files: Path) -> None:
    Path("cut").write_bytes(gzip.compress(b'"a"\n' * 1000)[:-6])
    Path("damaged").write_bytes(zstd.compress(b'"a"\n' * 1000)[:-6])
    Path("sixteen").write_bytes('"a"\n'.encode("utf-16"))
    Path("xz").write_bytes(b"\xfd7zXZ\x00\x00\x04")
    os.mkfifo("pipe")
    for items, message in [
        ("cut", "--items: cut cannot be read as gzip: "),
        ("damaged", "--items: damaged cannot be read as zstd: "),
        ("sixteen", "--items: sixteen is UTF-16, which is not read; make it UTF-8, plain or compressed by gzip or"),
        ("xz", "--items: xz is xz, which is not read"),
        ("in", "--items: in is a folder"),
        ("-", "Missing option '--output', which - needs; - is standard output."),
        ("pipe", "Missing option '--output', which pipe needs"),
    ]:
        code, error = score_here("model", "--items", items, *(() if "Missing" in message else ("--output", "new")))
        assert (code != 0, message in error) == (True, True), error
        assert not Path("new").exists()


def test_a_copy_that_finds_no_room_is_one_line(files: Path) -> None:
    limited = ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *command("model", "--items", "-", "--output", "new")]
    done = subprocess.run(limited, input=b'"a long line of text"\n' * 10_000, capture_output=True, timeout=300)
    assert done.returncode == 1
    assert b"Error: --items: standard input is copied to " in done.stderr
    assert b"cannot hold it: File too large; name another folder with TMPDIR" in done.stderr
    assert not Path("new").exists()


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_copy_that_is_interrupted(files: Path, ended_by: signal.Signals) -> None:
    folder = files / "temporary"
    folder.mkdir()
    process = subprocess.Popen(
        stopping.command(command("model", "--items", "-", "--output", "new")[3:]),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    with process:
        assert process.stdin is not None
        process.stdin.write(b'"a line"\n' * 300_000)
        process.stdin.flush()

        def copies() -> list[int]:
            found = [
                each for each in Path(f"/proc/{process.pid}/fd").iterdir() if each.readlink().is_relative_to(folder)
            ]
            return [each.stat().st_size for each in found]

        while sum(copies()) < 2**20:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(ended_by)
        process.wait(60)
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    assert process.returncode != 0
    assert list(folder.iterdir()) == []
    assert not Path("new").exists()


def test_a_pipe_of_any_encoding_is_scored_to_standard_output(checkpoint: Path, engine: Engine, tmp_path: Path) -> None:
    texts = ["first", "second", "third", "fourth"]
    lines = [json.dumps(text).encode() for text in texts]
    folder = tmp_path / "temporary"
    folder.mkdir()
    # Two files joined, each with its mark, and lines of both kinds; a blank one between, and some at the end.
    text = BYTE_ORDER_MARK + lines[0] + b"\r\n" + lines[1] + b"\n\n"
    joined = zstd.compress(text) + zstd.compress(BYTE_ORDER_MARK + b"\n".join(lines[2:]) + b"\n\n \n")
    template = tmp_path / "template.jinja"
    template.write_text("\ufeff{{ query }} {{ document }}", encoding="utf-8")
    settings = tmp_path / "mis.toml"
    settings.write_text('\ufeffquery = "Good? "\n', encoding="utf-8")
    arguments = ("--items", "-", "--output", "-", "--config", settings, "--rerank-template", template)
    done = score(checkpoint, *arguments, input=joined, env=os.environ | {"TMPDIR": str(folder)})
    assert done.returncode == 2, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    want = engine.score(query="Good? ", items=texts, labels=["yes", "no"]).scores.tolist()
    assert [row.get("scores") for row in rows] == [*want[:2], None, *want[2:]]
    assert rows[2]["error"]["code"] == "invalid_json"
    assert b"Scores written to standard output. 1 rows have an error." in done.stderr
    assert list(folder.iterdir()) == []
    assert not list(tmp_path.glob("*.job"))


def test_a_compressed_file_is_scored_and_resumed(checkpoint: Path, engine: Engine, tmp_path: Path) -> None:
    texts = [f"item {i}" for i in range(30)]
    items, output = tmp_path / "items.jsonl.gz", tmp_path / "items.scores.jsonl"
    items.write_bytes(gzip.compress("".join(json.dumps(text) + "\n" for text in texts).encode()))
    assert score(checkpoint, "--items", items, "--query", "\ufeffGood? ").returncode == 0
    whole = output.read_bytes()
    want = engine.score(query="Good? ", items=texts, labels=["yes", "no"])
    np.testing.assert_array_equal([json.loads(line)["scores"] for line in whole.splitlines()], want.scores.tolist())
    plain = gzip.decompress(items.read_bytes())
    again = ("--items", "-", "--query", "Good? ", "--output", output)
    code, error = score_here(checkpoint, *again, input=plain)  # the same lines, so all is done
    assert (code, output.read_bytes()) == (0, whole), error
    code, error = score_here(checkpoint, *again, input=plain[:-3] + b'8"\n')  # late in the file, of the same length
    assert code == 1
    assert "was made with other arguments or files" in error


def test_a_file_that_changes_meanwhile_is_an_error(checkpoint: Path, tmp_path: Path) -> None:
    items, output = tmp_path / "items.jsonl", tmp_path / "out.jsonl"
    content = b"".join(b'{"item": "item %06d"}\n' % i for i in range(1000))
    items.write_bytes(content)
    arguments = ("--items", items, "--output", output, "--query", "Good? ", "--batch-size", 4)
    # It has not read all of the file when it stops.
    run = stopping.command(command(checkpoint, *arguments)[3:], rows=1, UNANSWERED_ROWS=50)
    with stopped(run, stderr=subprocess.PIPE) as process:
        assert output.read_bytes().count(b"\n") < 900
        with items.open("rb+") as file:
            file.seek(-6, os.SEEK_END)
            file.write(b'x"}\n')
        process.send_signal(signal.SIGCONT)
        _, error = process.communicate(timeout=300)
    assert process.returncode == 1, error
    assert b"items.jsonl changed while it was scored" in error
    assert b"Traceback" not in error
    items.write_bytes(content)  # what was scored meanwhile is not known to be of it
    code, error = score_here(checkpoint, *arguments)
    assert code == 1
    assert "was made with other arguments or files" in error


@pytest.mark.parametrize(("change", "read"), [(b'"a"\n"b"\n"c"\n', 2), (b'"a"\n', 1), (b'"a"\n"c"\n', 2), (b"", 0)])
def test_rows_are_those_that_were_counted(tmp_path: Path, change: bytes, read: int) -> None:
    file = tmp_path / "items.jsonl"
    file.write_bytes(b'"a"\n"b"\n')
    with opened(str(file), "items", OfflineQuery(query="q")) as source:
        survey = source.survey()
        assert survey == Survey(2, survey.digest)
        assert [row.items for row in source.rows(survey, skip=1)] == [["b"]]
        file.write_bytes(change)
        rows = source.rows(survey)
        for _ in range(read):
            next(rows)
        with pytest.raises(ConfigError, match="changed while it was scored"):
            next(rows)
