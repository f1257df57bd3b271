"""`mis-server decide`: a line of output for each state, with the bits of a request of its own."""

import asyncio
import gzip
import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import stopping
from mis_core import Engine
from mis_core.config import EngineConfig
from mis_core.errors import ConfigError
from mis_server.cli import main
from mis_server.offline.asked import decisive
from mis_server.offline.decisions import OfflineDecisions
from mis_server.offline.query import OfflineQuery
from mis_server.offline.rows import InputRow
from mis_server.offline.scorer import Scorer
from mis_server.offline.tables import read_table
from stopping import stopped

ENGINE = ("--dtype", "float32", "--skip-warmup", "--chunked-prefill-size", "256", "--max-total-tokens", "8192")
SMALL_WINDOW = {"UNANSWERED_ROWS": 12, "HELD_ROWS": 16, "REQUESTS": 4, "FULL_BATCHES": 4}
NOUL: Any = {"type": "noul", "instructions": "Is it about animals?"}
CHOICE: Any = {"type": "choice", "criteria": {"cat": "a pet", "환불": None}}
LEVELS: Any = {"type": "score", "instructions": "How wet?", "criteria": ["dry", {"label": "wet"}]}
QUESTIONS: Any = {"a n": NOUL, "c.1": CHOICE, "s": LEVELS}
ROWS = 48


def lines_of(rows: int) -> list[str]:
    """Rows of all kinds, those of a state far from each other, and some of them twice or wrong."""
    states: list[Any] = ["A cat.", {"text": "It rains.", "n": [1, 2.5, None]}, ["one", {"two": 2}], "고양이 🙂"]
    lines: list[Any] = []
    for row in range(rows):
        line: dict[str, Any] = {"state": states[row % 4] if row % 3 else f"State {row // 2}."}
        if row % 5:
            line["id"] = [row, "x"] if row % 7 == 0 else row
        if row % 4 == 1:
            line["questions"] = {f"own {row % 3}": NOUL, "levels": LEVELS}
        lines.append(line)
    lines += lines[:4]
    lines += [{"id": "bad", "state": "s", "questions": {"no": {"type": "noul"}, "yes": NOUL}}]
    lines += [{"id": "number", "state": 5}, {"id": "none"}, {"state": "word " * 5000}, {"state": "s", "questions": "t"}]
    lines += ["A text is a state.", ["a", "list"]]
    random.Random(0).shuffle(lines)
    return [json.dumps(line) for line in [*lines[:7], None, *lines[7:]]] + ["not json"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text("\n".join(lines_of(ROWS)) + "\n")
    (tmp_path / "questions.json").write_text("\ufeff" + json.dumps(QUESTIONS))
    return tmp_path


def arguments(checkpoint: Path, files: Path, *more: object) -> list[str]:
    asked = ("--questions", files / "questions.json", *more)
    return ["decide", str(checkpoint), *map(str, asked), *ENGINE]


def decide(*given: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, list(given), prog_name="mis-server")
    return done.exit_code, done.stderr


def reply_of(engine: Engine, checkpoint: Path, state: Any, questions: Any, **options: Any) -> dict[str, Any]:
    """What the server replies, as JSON has it, but for tokens that were cached."""
    result = msgspec.json.decode(msgspec.json.encode(engine.decide(state, questions, **options)))
    del result["usage"]["x_cached_tokens"]
    return {"model": str(checkpoint), **result}


CODES = {"not json": "invalid_json", "null": "missing_state"}
CODES_BY_ID = {"bad": "invalid_questions", "number": "invalid_state", "none": "missing_state"}


@pytest.mark.parametrize("rows", [ROWS, pytest.param(1000, marks=pytest.mark.full)])
def test_lines_of_a_killed_run_have_the_bits_of_their_requests(
    checkpoint: Path, files: Path, engine: Engine, rows: int
) -> None:
    output, lines = files / "out.jsonl", lines_of(rows)
    (files / "rows.jsonl").write_text("\n".join(lines) + "\n")
    piped = [sys.executable, "-m", "mis_server", *arguments(checkpoint, files, "--input", "-", "--output", "-")]
    done = subprocess.run(
        piped, input=gzip.compress((files / "rows.jsonl").read_bytes()), capture_output=True, timeout=300
    )
    assert done.returncode == 2, done.stderr
    assert b"Decisions written to standard output. 7 rows have an error." in done.stderr
    want = done.stdout
    replies = [json.loads(line) for line in want.splitlines()]
    assert len(replies) == len(lines)
    for number, (line, reply) in enumerate(zip(lines, replies, strict=True)):
        row = {} if line in CODES else json.loads(line)
        row = row if isinstance(row, dict) else {"state": row}
        assert reply.get("id") == row.get("id")
        if "error" not in reply:
            if number % 3 == 0:
                expected = reply_of(engine, checkpoint, row["state"], row.get("questions", QUESTIONS))
                assert {name: value for name, value in reply.items() if name != "id"} == expected
            continue
        code = CODES.get(line) or CODES_BY_ID.get(row.get("id"), "")
        code = code or ("invalid_questions" if "questions" in row else "context_length_exceeded")
        assert (reply["error"]["code"], set(reply)) == (code, {"error"} | ({"id"} & set(row)))

    given = arguments(checkpoint, files, "--input", files / "rows.jsonl", "--output", output)
    for third in (1, 2):
        rest = third * len(lines) // 3 - (output.read_bytes().count(b"\n") if third > 1 else 0)
        with stopped(stopping.command(given, rows=rest, **SMALL_WINDOW), stderr=subprocess.DEVNULL):
            pass
        assert output.read_bytes().count(b"\n") < len(lines)
        with output.open("ab") as file:
            file.write(b'{"model":"mo')
    done = subprocess.run(stopping.command(given, **SMALL_WINDOW), capture_output=True, timeout=300)
    assert done.returncode == 2, done.stderr
    assert output.read_bytes() == want

    # Other questions, and the same ones in another order, are not continued.
    for questions in (QUESTIONS | {"more": NOUL}, dict(reversed(QUESTIONS.items()))):
        (files / "questions.json").write_text(json.dumps(questions))
        code, error = decide(*given)
        assert (code, output.read_bytes()) == (1, want)
        assert "was made with other arguments or files" in error


def test_parquet_has_a_column_for_each_part_of_a_reply(checkpoint: Path, files: Path, engine: Engine) -> None:
    states = ["A cat.", b"It rains.", b"a\xff", None, b"s", b"s", b"s"]
    own = [None, json.dumps({"own": NOUL}), None, None, "{", json.dumps({"bad": {"type": "noul"}, "ok": NOUL}), "5"]
    ids = pa.array([2**64 - 1, *range(6)], pa.uint64())
    pq.write_table(
        pa.table({"id": ids, "state": pa.array(states, pa.binary()), "questions": own}), files / "in.parquet"
    )
    options = ("--abstain-below", 0.9, "--on-error", "item", "--choice-order", "reversed")
    code, error = decide(
        *arguments(checkpoint, files, "--input", files / "in.parquet", *options, "--output-format", "parquet")
    )
    assert code == 2, error
    output = files / "in.decisions.parquet"
    table = pq.read_table(output)
    assert table.column_names == ["answers", "input_tokens", "x_abstained", "x_errors", "error", "id"]
    assert table["id"].combine_chunks().equals(ids)
    rows = table.to_pylist()
    assert [row["error"] and row["error"]["code"] for row in rows] == [
        None, None, "invalid_state", "missing_state", "invalid_questions", None, "invalid_questions",
    ]  # fmt: skip
    assert (
        rows[2]["error"]["message"]
        == "The column state has type binary and bytes that are not UTF-8; it must be a text."
    )
    assert rows[4]["error"]["message"] == "The column questions has a text that is not JSON."
    options_of = {"x_abstain_below": 0.9, "x_on_error": "item", "x_choice_order": "reversed"}
    for row, state, questions in (
        (rows[0], "A cat.", QUESTIONS),
        (rows[1], "It rains.", {"own": NOUL}),
        (rows[5], "s", json.loads(own[5] or "")),
    ):
        want = reply_of(engine, checkpoint, state, questions, **options_of)
        assert json.loads(row["answers"]) == want["answers"]
        assert (row["input_tokens"], row["x_abstained"]) == (want["usage"]["input_tokens"], want["x_abstained"])
        assert (row["x_errors"] and json.loads(row["x_errors"])) == want.get("x_errors")
    assert list(json.loads(rows[5]["x_errors"])) == ["bad"]


class EngineModel:
    """A model whose engine is in this process; knows in which order rows are asked.

    Attributes:
        log: The ids of questions as they are asked, and again as they are answered.
        cached: Tokens of each answer that were in the cache.
    """

    def __init__(self, engine: Engine) -> None:
        self.log: list[tuple[str, str]] = []
        self.cached: list[int] = []
        self._engine = engine

    async def parse(self, _: Any, fields: dict[str, Any]) -> None:
        await self._decide(**fields)

    async def answer(self, _: Any, fields: dict[str, Any]) -> Any:
        (name,) = fields["questions"]
        self.log.append(("asked", name))
        result = await self._decide(**fields)
        self.log.append(("answered", name))
        self.cached.append(result.usage.x_cached_tokens)
        return type("Answered", (), {"result": result})

    async def _decide(self, state: Any, questions: Any, **options: Any) -> Any:
        return await self._engine.decide_async(state, questions, **options)


def test_the_first_row_of_a_state_is_answered_before_the_others(engine: Engine) -> None:
    asked, model = OfflineDecisions(model_name="m"), EngineModel(engine)
    rows = [asked.read({"state": "A cat. " * 50, "questions": {f"{row}": NOUL}}) for row in range(6)]
    rows[3].items = [{"3": {"type": "box"}}]
    asyncio.run(Scorer(asked, model, "float32").score(rows))  # pyrefly: ignore[bad-argument-type]
    assert model.cached[0] + 100 < min(model.cached[1:])
    assert model.log[:2] == [("asked", "0"), ("answered", "0")]
    assert [name for kind, name in model.log[2:7] if kind == "asked"] == ["1", "2", "3", "4", "5"]
    assert [row.error and row.error["code"] for row in rows] == [None] * 3 + ["unsupported_parameter"] + [None] * 2
    assert [row.answer and list(row.answer["answers"]) for row in rows if row.error is None] == [
        ["0"],
        ["1"],
        ["2"],
        ["4"],
        ["5"],
    ]


@pytest.mark.parametrize(
    ("options", "option", "message"),
    [
        ({"questions": {"a b": {"type": "noul"}}}, "questions", 'questions["a b"] needs instructions'),
        ({"questions": {"a": {"type": "noul"}}, "on_error": "item"}, "questions", 'questions["a"] needs instructions'),
        ({"questions": {}}, "questions", "must not be empty"),
        ({"abstain_below": 2.0}, "abstain_below", "x_abstain_below must be a"),
    ],
)
def test_a_fault_of_every_row_is_reported_before_any_is_asked(
    engine: Engine, options: Any, option: str, message: str
) -> None:
    model: Any = EngineModel(engine)
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        asyncio.run(OfflineDecisions(model_name="m", **options).check(model))
    assert raised.value.option == option
    asyncio.run(OfflineDecisions(model_name="m", questions=QUESTIONS, abstain_below=0.5).check(model))  # the twin


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory."),
        (b"{", "is not JSON: Input data was truncated."),
        (b"\xff", "is not JSON: "),
        (b"[" * 5000, "is not JSON: "),
        (b"[1]", "must hold an object of questions, keyed by id."),
    ],
)
def test_a_file_that_holds_no_questions_is_one_line(files: Path, content: bytes | None, message: str) -> None:
    path = files / "questions.json"
    path.unlink() if content is None else path.write_bytes(content)
    code, error = decide(*arguments(files, files, "--input", files / "rows.jsonl"))
    assert (code, error.count("\n")) == (1, 1)
    assert error.startswith(f"Error: --questions: {path} {message}")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "Missing option '--input'."),
        (("--input", "-"), "Missing option '--output', which - needs"),
        (("--input", "none.jsonl"), "Error: --input: none.jsonl cannot be read: No such file"),
        (("--input", "rows.jsonl", "--output", "questions.json"), "questions.json is the questions"),
        (("--input", "rows.jsonl", "--abstain-below", "2"), "'--abstain-below': 2.0 is not in the range"),
        (("--input", "no.parquet"), "Error: --input: no.parquet has no column state, but item."),
        (("--ray", "--output", "out"), "Missing option '--input', which --ray needs."),
    ],
)
def test_wrong_options_are_one_line(
    files: Path, monkeypatch: pytest.MonkeyPatch, more: Sequence[str], message: str
) -> None:
    monkeypatch.chdir(files)
    Path("model").mkdir()
    pq.write_table(pa.table({"item": ["a"]}), "no.parquet")
    before = {path: path.read_bytes() for path in files.iterdir() if path.is_file()}
    code, error = decide(*arguments(Path("model"), Path(), *more))
    assert code in (1, 2)
    assert message in error
    assert {path: path.read_bytes() for path in files.iterdir() if path.is_file()} == before


def test_answers_depend_on_option_order_not_on_the_file_path() -> None:
    def depends(config: EngineConfig, path: str) -> dict[str, Any]:
        return decisive(OfflineDecisions(model_name="m", questions=QUESTIONS, questions_file=path), config)

    given, reversed_ = (EngineConfig(model="m", choice_order=order) for order in ("given", "reversed"))
    assert depends(given, "a") == depends(given, "b")
    assert depends(given, "a") != depends(reversed_, "a")
    scores = OfflineQuery(labels=("yes",))
    assert decisive(scores, given) == decisive(scores, reversed_)


def test_sizes_count_questions_and_what_they_say() -> None:
    asked = OfflineDecisions(model_name="m", questions=QUESTIONS)
    small, large = (asked.size(asked.read({"state": state})) for state in ("A cat.", {"text": ["word " * 1000]}))
    assert (small.items, small.query_tokens, large.query_tokens) == (3, 2, 1255)
    assert large.tokens == small.tokens > 20
    assert small.answer_bytes > 3 * 512
    assert asked.size(InputRow(None, [], error={"code": "c", "message": "m"})).items == 0


def test_values_of_other_types_are_errors_of_their_rows() -> None:
    asked = OfflineDecisions(model_name="m", questions=QUESTIONS)
    lists = pa.array([["a"]])
    for table, code in (
        ({"state": lists}, "invalid_state"),
        ({"state": pa.array([1])}, "invalid_state"),
        ({"state": ["s"], "questions": lists}, "invalid_questions"),
        ({"state": pa.ExtensionArray.from_storage(pa.opaque(lists.type, "list", "somebody"), lists)}, "invalid_state"),
    ):
        (row,) = read_table(pa.table(table), asked)
        assert row.error is not None
        assert row.error["code"] == code
        assert "; it must be a text" in row.error["message"]
    (row,) = read_table(pa.table({"state": ["s"], "questions": pa.nulls(1)}), asked)  # the twin
    assert (row.query, row.items, row.error) == ("s", [QUESTIONS], None)
