"""Labelled data: rows of four kinds, what is wrong with them, and what rows have in common."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mis_core import labelled
from mis_core.errors import ConfigError
from mis_core.labelled import ClassifyRow, DecideRow, RerankRow, ScoreRow, groups_of, read_labelled

SCORE = {"query": "Good? ", "item": "Yes.", "labels": ["no", "yes"], "label": "yes"}
RERANK = {"query": "cats", "documents": ["a cat", "rain"], "relevance": [2, 0.5]}
QUESTIONS = {"refund": {"type": "noul", "instructions": "Money back?"}, "team": {"type": "choice", "criteria": {}}}
DECIDE = {"state": {"subject": "Late"}, "questions": QUESTIONS, "answers": {"refund": True, "team": "billing"}}
CLASSIFY = {"input": "A film.", "label": "good"}

LABELS = "a list of at least two different texts, unless --labels gives them"
LABEL = "one of the labels ['no', 'yes'], or its index, counted from 0"
RELEVANCE = "a list of 2 numbers, 0 or more, one for each document"
OBJECT = "an object; in a table, its JSON text"
ANSWER = "true or false, an option or a level"


def written(path: Path, *rows: Any) -> Path:
    file = path / "rows.jsonl"
    file.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return file


def read(path: Path, *rows: Any, labels: tuple[str, ...] = ()) -> Any:
    return read_labelled(written(path, *rows), labels)


def refused(path: Path, *rows: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(path, *rows)
    assert caught.value.option == "data"
    return caught.value.message.replace(f"{path / 'rows.jsonl'}", "FILE")


def common(path: Path, row: int = 1) -> dict[str, Any]:
    return {"where": f"{path / 'rows.jsonl'}, row {row}", "id": str(row - 1), "slice": None, "weight": 1.0}


def test_the_kind_follows_from_the_fields(tmp_path: Path) -> None:
    own = common(tmp_path)
    found = {kind: read(tmp_path, row) for kind, row in
             {"score": SCORE, "rerank": RERANK, "decide": DECIDE, "classify": CLASSIFY}.items()}  # fmt: skip
    assert [(each.kind, each.rows[0].kind) for each in found.values()] == [(kind, kind) for kind in found]
    assert found["score"].rows == (ScoreRow(**own, query="Good? ", item="Yes.", labels=("no", "yes"), label=1),)
    documents = {"documents": ("a cat", "rain"), "relevance": (2.0, 0.5)}
    assert found["rerank"].rows == (RerankRow(**own, query="cats", **documents),)
    assert found["decide"].rows == (DecideRow(**own, **DECIDE),)
    assert found["classify"].rows == (ClassifyRow(**own, **CLASSIFY),)


NOTHING: dict[str, Any] = {"where": "FILE, row 1", "id": "0", "slice": None, "weight": 1.0}
ASKED: dict[str, Any] = {
    "n": {"type": "noul"},
    "c": {"type": "choice", "criteria": {"cat": None, "dog": "a pet"}},
    "s": {"type": "score", "criteria": ["dry", {"it": "drips"}, "wet"]},
}


@pytest.mark.parametrize(
    ("name", "answer", "place"),
    [("n", False, 0), ("n", True, 1), ("c", "dog", 1), ("s", 1, 1), ("s", "wet", 2), ("s", 0, 0)],
)
def test_an_answer_is_one_of_the_options_of_its_question(name: str, answer: Any, place: int) -> None:
    row = DecideRow(**NOTHING, state="s", questions=ASKED, answers={name: answer})
    assert row.right_option(name) == place


@pytest.mark.parametrize(
    ("name", "answer", "wanted"),
    [
        ("n", 1, "true or false, not 1"),
        ("n", "true", "true or false, not 'true'"),
        ("c", "bird", "one of cat, dog, not 'bird'"),
        ("c", 0, "one of cat, dog, not 0"),
        ("s", 3, "a level from 0 to 2, not 3"),
        ("s", -1, "a level from 0 to 2, not -1"),
        ("s", True, "a level from 0 to 2, not True"),
        ("s", "damp", "a level from 0 to 2, not 'damp'"),
    ],
)
def test_an_answer_that_is_no_option_is_refused(name: str, answer: Any, wanted: str) -> None:
    row = DecideRow(**NOTHING, state="s", questions=ASKED, answers={name: answer})
    with pytest.raises(ConfigError) as caught:
        row.right_option(name)
    assert caught.value.message == f"FILE, row 1: answers.{name} must be {wanted}."


def test_rows_may_have_a_name_a_slice_and_a_weight(tmp_path: Path) -> None:
    named = CLASSIFY | {"id": 7, "slice": "films", "weight": 2}
    (row, other) = read(tmp_path, named, "", CLASSIFY | {"id": None}).rows
    assert (row.id, row.slice, row.weight) == ("7", "films", 2.0)
    assert (other.id, other.slice, other.weight, other.where) == ("1", None, 1.0, f"{tmp_path / 'rows.jsonl'}, row 2")


def test_labels_of_a_row_may_come_from_the_command(tmp_path: Path) -> None:
    bare = {"query": "Good? ", "item": "Yes.", "label": 0}
    (row, own) = read(tmp_path, bare, SCORE, labels=("bad", "good")).rows
    assert (row.labels, row.label) == (("bad", "good"), 0)
    assert (own.labels, own.label) == (("no", "yes"), 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 1: is not JSON: "),
        ([1], "row 1: is not an object."),
        ({"text": "x"}, "row 1: must have item, documents, state or input, which tells its kind."),
        (CLASSIFY | {"weight": 0}, "row 1: weight must be a number above 0, at most 1,000,000; it is not 0.0."),
        (CLASSIFY | {"weight": True}, "row 1: weight must be a number; it is not True."),
        (CLASSIFY | {"weight": "1"}, "row 1: weight must be a number; it is not '1'."),
        (CLASSIFY | {"label": 3}, "row 1: label must be a text; it is not 3."),
        ({"input": "x"}, "row 1: label must be a text; it is missing."),
        (SCORE | {"labels": ["a"]}, f"row 1: labels must be {LABELS}; it is not ['a']."),
        (SCORE | {"labels": ["a", "a"]}, f"row 1: labels must be {LABELS}; it is not ['a', 'a']."),
        (SCORE | {"labels": "no"}, "row 1: labels must be a list of texts; it is not 'no'."),
        (SCORE | {"labels": None}, f"row 1: labels must be {LABELS}; it is missing."),
        (SCORE | {"label": 2}, f"row 1: label must be {LABEL}; it is not 2."),
        (SCORE | {"label": True}, f"row 1: label must be {LABEL}; it is not True."),
        (SCORE | {"label": "maybe"}, f"row 1: label must be {LABEL}; it is not 'maybe'."),
        (SCORE | {"query": 1}, "row 1: query must be a text; it is not 1."),
        (RERANK | {"documents": []}, "row 1: documents must be a list of texts; it is not []."),
        (RERANK | {"relevance": [1]}, f"row 1: relevance must be {RELEVANCE}; it is not [1]."),
        (RERANK | {"relevance": [1, -1]}, f"row 1: relevance must be {RELEVANCE}; it is not -1."),
        (RERANK | {"relevance": [1, True]}, f"row 1: relevance must be {RELEVANCE}; it is not True."),
        (DECIDE | {"questions": [1]}, "row 1: questions must be an object; it is not [1]."),
        (DECIDE | {"questions": "{"}, f"row 1: questions must be {OBJECT}; it is not '{{'."),
        (DECIDE | {"answers": {"x": 1}}, "row 1: answers must be answers to the row's questions; it is not 'x'."),
        (DECIDE | {"answers": {"refund": 0.5}}, f"row 1: answers.refund must be {ANSWER}; it is not 0.5."),
        (CLASSIFY | {"label": 10**400}, "row 1: label must be a text; it is not 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence_with_row_and_field(tmp_path: Path, row: Any, message: str) -> None:
    said = refused(tmp_path, row)
    assert said.startswith(f"FILE, {message}")
    assert len(said) < 400


def test_a_file_is_of_one_kind_and_not_empty_nor_endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(tmp_path, SCORE, CLASSIFY) == "FILE, row 2: is of kind classify, but the first row is of kind score."
    assert refused(tmp_path, "", "  ") == "FILE: has no rows."
    monkeypatch.setattr(labelled, "MAX_ROWS", 2)
    assert len(read(tmp_path, CLASSIFY, CLASSIFY).rows) == 2
    assert refused(tmp_path, CLASSIFY, CLASSIFY, CLASSIFY) == "FILE: has more than 2 rows. Take a sample of them."
    monkeypatch.setattr(labelled, "_MAX_LINE", 20)
    assert refused(tmp_path, CLASSIFY) == "FILE, line 1: is longer than 20 bytes."
    with pytest.raises(ConfigError, match=r"missing\.jsonl: cannot be read: No such file"):
        read_labelled(tmp_path / "missing.jsonl")


@pytest.mark.parametrize("rows", [[SCORE | {"id": "b", "slice": "s"}, SCORE], [RERANK], [CLASSIFY | {"weight": 2.5}]])
def test_tables_hold_the_same(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    table = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), table)
    wanted = read(tmp_path, *rows)
    found = read_labelled(table)
    assert [str(row).replace(str(table), "") for row in found.rows] == [
        str(row).replace(str(tmp_path / "rows.jsonl"), "") for row in wanted.rows
    ]


def test_questions_of_a_table_are_objects_or_texts(tmp_path: Path) -> None:
    as_texts = {name: value if name == "state" else json.dumps(value) for name, value in DECIDE.items()}
    other = as_texts | {"answers": json.dumps({"refund": False})}
    table = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([as_texts, other]), table)
    assert [row.answers for row in read_labelled(table).rows] == [DECIDE["answers"], {"refund": False}]
    (tmp_path / "rows.parquet").write_bytes(b"no table")
    with pytest.raises(ConfigError, match="cannot be read as Parquet"):
        read_labelled(table)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="reading Parquet needs the package pyarrow: pip install pyarrow"):
        read_labelled(tmp_path / "rows.parquet")


# What rows have in common.


def score_row(query: str, item: str) -> ScoreRow:
    return ScoreRow(**NOTHING, query=query, item=item, labels=("a", "b"), label=0)


def rerank_row(query: str, *documents: str) -> RerankRow:
    return RerankRow(**NOTHING, query=query, documents=documents, relevance=(0.0,) * len(documents))


def test_an_instruction_that_all_share_says_nothing() -> None:
    rows = [score_row("Is it good?", f"text {index % 3}") for index in range(30)]
    assert groups_of(rows).tolist() == [index % 3 for index in range(30)]


def test_rows_of_a_query_are_together_where_there_are_many() -> None:
    rows = [score_row(f"query {index // 2}", f"text {index}") for index in range(40)]
    assert groups_of(rows).tolist() == [index // 2 for index in range(40)]
    rows[3] = score_row("query 1", "text 0")  # which another query has
    joined = groups_of(rows)
    assert joined[0] == joined[1] == joined[2] == joined[3]
    assert len(set(joined.tolist())) == 19


def test_rankings_are_together_by_their_queries_alone() -> None:
    rows = [rerank_row(f"query {index % 6}", f"own {index}", "of all") for index in range(12)]
    assert groups_of(rows).tolist() == [0, 1, 2, 3, 4, 5] * 2


def test_the_same_items_behind_many_queries_are_together() -> None:
    rows = [score_row(f"query {query}", f"item {item}") for query in range(12) for item in range(30)]
    assert len(set(groups_of(rows).tolist())) == 30


def test_states_are_the_same_if_they_say_the_same() -> None:
    states = [{"a": [1, "x"]}, {"a": [1, "x"]}, "text", ["text"]]
    rows = [DecideRow(**NOTHING, state=state, questions={}, answers={}) for state in states]
    assert len(set(groups_of(rows).tolist())) == 3
    assert groups_of([ClassifyRow(**NOTHING, input=text, label="a") for text in "aba"]).tolist() == [0, 1, 0]


WORDS = st.sampled_from("abcdefgh")


PAIRS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=40)


@given(PAIRS)
def test_equal_texts_are_never_apart(pairs: list[tuple[str, str]]) -> None:
    found = groups_of([score_row(query, item) for query, item in pairs])
    assert found.dtype == np.int64
    by_item: dict[str, set[int]] = {}
    for (_, item), group in zip(pairs, found.tolist(), strict=True):
        by_item.setdefault(item, set()).add(group)
    assert len(by_item) == 1 or all(len(groups) == 1 for groups in by_item.values())


def test_where_all_texts_are_equal_queries_count() -> None:
    assert groups_of([score_row(query, "item") for query in "abca"]).tolist() == [0, 1, 2, 0]


@given(PAIRS, st.randoms())
def test_neither_are_they_in_another_order(pairs: list[tuple[str, str]], random: Any) -> None:
    order = list(range(len(pairs)))
    random.shuffle(order)
    found = groups_of([score_row(*pair) for pair in pairs])
    moved = groups_of([score_row(*pairs[index]) for index in order])
    together = found[order][:, None] == found[order]
    np.testing.assert_array_equal(together, moved[:, None] == moved)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=20, max_size=40))
def test_a_chain_of_what_is_equal_puts_rows_together(pairs: list[tuple[int, int]]) -> None:
    found = groups_of([score_row(f"query {query}", f"item {item}") for query, item in pairs])
    shared = np.array([[one[0] == other[0] or one[1] == other[1] for other in pairs] for one in pairs], float)
    reached = np.linalg.matrix_power(shared, len(pairs)) > 0
    if reached.sum(axis=1).max() <= len(pairs) // 5:
        np.testing.assert_array_equal(reached, found[:, None] == found)
