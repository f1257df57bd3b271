"""`mis-server score`: a line of output for each line of input, whatever happens in between."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import stopping
from mis_core import Engine
from mis_core.config import EngineConfig
from mis_core.tasks.recipes.recipe import RECIPES
from mis_kernels.backends.native import library as native
from mis_server.cli import main
from mis_server.offline.asked import decisive
from mis_server.offline.query import OfflineQuery
from mis_testing.tokenizer import write_larger_tokenizer
from stopping import stopped

LABELS = ("--labels", "yes", "no")
ENGINE = ("--dtype", "float32", "--skip-warmup", "--chunked-prefill-size", "256", "--max-total-tokens", "8192")


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    assert path.read_bytes().endswith(b"\n")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def score(checkpoint: Path, tmp_path: Path) -> Callable[..., tuple[int, str, list[dict[str, Any]]]]:
    """`score(lines, *flags)`: exit status, standard error and the output's lines."""

    def run(lines: list[Any], *flags: str) -> tuple[int, str, list[dict[str, Any]]]:
        items, output = write_lines(tmp_path / "items.jsonl", lines), tmp_path / "out.jsonl"
        arguments = ["score", str(checkpoint), "--items", str(items), "--output", str(output), *ENGINE, *flags]
        done = CliRunner().invoke(main, arguments, prog_name="mis-server")
        return done.exit_code, done.stderr, read_lines(output) if output.exists() else []

    return run


def test_lines_of_all_kinds_are_answered_in_order(score: Any, engine: Engine) -> None:
    texts = [f"item number {i}" for i in range(50)]
    several = [
        {"items": ["a", "b", "c"], "id": 1},
        {"items": ["d"], "query": "Own: ", "id": "x"},
        {"item": "d", "query": "Own: ", "id": [2, "y"]},
    ]
    wrong: list[tuple[Any, str]] = [
        ("not json", "invalid_json"),
        ("3", "invalid_items_type"),
        ("{}", "missing_items"),
        ('{"item": [1, 2]}', "mixed_input_types"),
        ('{"item": "own", "query": ""}', "empty_query"),
        ("", "invalid_json"),
        ({"id": 9, "item": "word " * 5000}, "context_length_exceeded"),
        ("[" * 5000, "invalid_json"),
        ({"items": []}, "empty_items"),
        ({"items": "text"}, "invalid_items_type"),
        ({"items": ["e", 5]}, "invalid_items_type"),
        ({"items": ["e"], "item": "f"}, "invalid_items_type"),
        ("[" * 700 + "]" * 700, "mixed_input_types"),
    ]
    lines = (
        [json.dumps(text) for text in texts[:30]]
        + several
        + [line for line, _ in wrong]
        + [json.dumps(t) for t in texts[30:]]
    )
    code, error, rows = score(lines, "--query", "Good? ", *LABELS, "--batch-size", "7", "--apply-softmax")
    assert code == 2
    assert "Traceback" not in error

    def want(query: str, items: list[str]) -> list[list[float]]:
        return engine.score(query=query, items=items, labels=["yes", "no"], apply_softmax=True).scores.tolist()

    assert rows[:30] + rows[46:] == [{"scores": scores} for scores in want("Good? ", texts)]
    (own,) = want("Own: ", ["d"])
    assert rows[30:33] == [
        {"scores": want("Good? ", ["a", "b", "c"]), "id": 1},
        {"scores": [own], "id": "x"},
        {"scores": own, "id": [2, "y"]},
    ]
    assert [row["error"]["code"] for row in rows[33:46]] == [code for _, code in wrong]
    assert rows[39]["id"] == 9


def test_token_ids_are_scored_too_and_behind_a_delimiter(score: Any, engine: Engine) -> None:
    lines = [{"query": [1, 2, 3], "item": [i, 5]} for i in range(8)]
    code, _, rows = score(lines, "--label-token-ids", "7", "8", "--multi-item-scoring-delimiter", "9")
    assert code == 0
    want = engine.score(query=[1, 2, 3, 9], items=[line["item"] for line in lines], label_token_ids=[7, 8])
    np.testing.assert_array_equal([row["scores"] for row in rows], want.scores.tolist())


def test_labels_may_have_several_tokens_or_one_the_model_lacks(score: Any, tmp_path: Path) -> None:
    tokenizer = write_larger_tokenizer(tmp_path / "larger", "qwen3", 960, "<|beyond|>")
    flags = ("--tokenizer-path", str(tokenizer), "--query", "Good? ", "--labels", "a long text", " yes")
    _, told, rows = score([json.dumps(text) for text in ("rain", "<|beyond|>", "sun")], *flags)
    assert [row.get("error", {}).get("code") for row in rows] == [None, "token_id_exceeds_vocab", None]
    assert "whose embedding has 960 rows" in told
    assert all(0 < row["scores"][0] < row["scores"][1] < 1 for row in (rows[0], rows[2]))


def test_documents_are_reranked(score: Any, engine: Engine) -> None:
    texts = ["of cats", "of the sea", "of dogs", "of cats and dogs"]
    code, error, rows = score([json.dumps(text) for text in texts], "--query", "Which is it? ", "--rerank")
    assert code == 0, error
    want = {each.index: each.relevance_score for each in engine.rerank("Which is it? ", texts).results}
    assert [row["scores"] for row in rows] == [[want[i]] for i in range(4)]


def test_a_version_with_other_recipes_continues_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(model="m")
    reranked, scored = (decisive(asked, config) for asked in (OfflineQuery(rerank=True), OfflineQuery(labels=("yes",))))
    monkeypatch.setitem(RECIPES, "generic", replace(RECIPES["generic"], instruction="Be kind"))
    assert decisive(OfflineQuery(rerank=True), config) != reranked
    assert decisive(OfflineQuery(labels=("yes",)), config) == scored


def test_scores_that_ignore_a_setting_do_not_continue_others() -> None:
    asked = OfflineQuery(labels=("yes",))
    plain, ignoring = (decisive(asked, EngineConfig(model="m", ignore_unknown_settings=each)) for each in (False, True))
    assert plain != ignoring


def test_done_rows_stay_and_other_arguments_continue_no_output(score: Any) -> None:
    code, _, rows = score(['"a"', '"b"'], "--query", "q ", *LABELS)
    assert (code, len(rows)) == (0, 2)
    assert score(['"a"', '"b"'], "--query", "q ", *LABELS)[::2] == (0, rows)
    for lines, flags in (
        (['"a"', '"b"'], ("--query", "another ", *LABELS)),
        (['"a"', '"b"'], ("--query", "q ", "--labels", "yes")),
        (['"a"', '"b"'], ("--query", "q ", *LABELS, "--apply-softmax")),
        (['"a"', '"c"'], ("--query", "q ", *LABELS)),
        (['"a"', '"b"'], ("--query", "q ", *LABELS, "--tokenizer-path", "another")),
        (['"a"', '"b"'], ("--query", "q ", *LABELS, "--quantization", "int8")),
        (['"a"', '"b"'], ("--query", "q ", *LABELS, "--multi-item-scoring-delimiter", "9")),
    ):
        code, error, left = score(lines, *flags)
        assert (code, left) == (1, rows)
        assert "made with other arguments" in error
    code, _, new = score(['"a"', '"b"'], "--query", "another ", *LABELS, "--overwrite")
    assert (code, len(new)) == (0, 2)
    assert new != rows


@pytest.mark.full
def test_an_output_is_not_continued_in_another_type(score: Any, tmp_path: Path) -> None:
    texts = [json.dumps(f"text {i}") for i in range(20)]
    rows = score(texts, "--query", "q ", *LABELS)[2]
    code, error, left = score(texts, "--query", "q ", *LABELS, "--dtype", "bfloat16")
    assert (code, left) == (1, rows)
    assert "was made in float32, but this run computes in bfloat16; use --dtype float32" in error
    # Made elsewhere, and interrupted there: here auto may choose another type.
    here = "float32" if native.why_not() else "bfloat16"
    elsewhere = "bfloat16" if here == "float32" else "float32"
    output, note = tmp_path / "out.jsonl", tmp_path / "out.jsonl.job"
    for made_in, continues in ((elsewhere, False), (here, True)):
        output.write_bytes(b"".join(output.read_bytes().splitlines(keepends=True)[:5]))
        note.write_text(note.read_text().replace("float32", made_in).replace("bfloat16", made_in))
        code, error, left = score(texts, "--query", "q ", *LABELS, "--dtype", "auto")
        assert (code, len(left)) == ((0, 20) if continues else (1, 5))
        assert (f"was made in {made_in}" in error) is not continues


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--labels", "yes"], "Missing option '--items'"),
        (["--items", "none.jsonl", "--labels", "yes"], "Error: --items: none.jsonl cannot be read: No such file"),
        (["--items", "none.jsonl"], "--labels is missing"),
    ],
)
def test_bad_arguments_are_one_line(checkpoint: Path, arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["score", str(checkpoint), *arguments], prog_name="mis-server")
    assert done.exit_code != 0
    assert message in done.stderr


def test_a_label_that_is_no_token_is_said_once_for_all(score: Any) -> None:
    code, error, rows = score(['"a"', '"b"'], "--query", "q ", "--labels", "")
    assert code == 1
    assert error.startswith("Error: --labels: ")
    assert "token" in error
    assert rows == []


@pytest.mark.parametrize(
    ("count", "kills"), [(1000, [0.3]), pytest.param(100_000, [0.1, 0.25, 0.4], marks=pytest.mark.full)]
)
def test_a_killed_run_continues_without_losing_or_repeating(
    checkpoint: Path, tmp_path: Path, engine: Engine, count: int, kills: list[float]
) -> None:
    output = tmp_path / "out.jsonl"
    lines = [{"id": i, "item": f"{i % 977} is {i}"} for i in range(count)]
    items = write_lines(tmp_path / "items.jsonl", lines)
    arguments = ["score", str(checkpoint), "--query", "Is it? ", "--items", str(items), "--output", str(output)]
    command = [sys.executable, "-m", "mis_server", *arguments, *LABELS, *ENGINE, "--batch-size", str(count // 50)]
    for share in kills:
        more = math.ceil(share * count) - count_lines(output)
        with stopped(stopping.command(command[3:], rows=more), stderr=subprocess.DEVNULL):
            pass
        with output.open("ab") as file:
            file.write(b'{"scores": [0.')  # the worst moment for it
    assert count_lines(output) < count
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    rows = read_lines(output)
    assert [row["id"] for row in rows] == list(range(count))
    some = np.random.default_rng(0).choice(count, 200, replace=False)
    want = engine.score(query="Is it? ", items=[str(lines[i]["item"]) for i in some], labels=["yes", "no"])
    np.testing.assert_array_equal([rows[i]["scores"] for i in some], want.scores.tolist())


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
