"""Texts with tokens that the model does not have are refused by every task, and the request's field is named."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mis_core import Engine
from mis_core.checkpoints import gguf_parts
from mis_core.config import EngineConfig
from mis_core.errors import RequestError
from mis_core.tasks.classify.task import CLASSIFY
from mis_core.tasks.classify.token_task import TOKEN_CLASSIFY
from mis_core.tasks.decide.task import DECIDE
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Task
from mis_core.tasks.rerank.task import RERANK
from mis_core.tasks.score.task import SCORE
from mis_core.tasks.served import TASKS, tasks_of
from mis_core.tasks.text.chat import CHAT
from mis_core.tasks.text.completion import COMPLETE
from mis_core.tokenization import Tokenizer
from mis_testing.gguf_file import write_gguf
from mis_testing.options import SMALL_ENGINE
from mis_testing.tokenizer import write_larger_tokenizer

BEYOND = "<|beyond|>"
BAD, GOOD = f"rain {BEYOND} in the plains", "rain in the plains"
QUESTION = {"type": "predicate", "name": "rain", "instructions": "It rains."}
MESSAGES = [{"role": "user", "content": GOOD}]
SCORING = {"query": GOOD, "items": [GOOD, GOOD], "labels": ["yes", "no"]}

TEXTS: dict[str, tuple[Task[Any, Any], dict[str, Any], dict[str, tuple[dict[str, Any], str]]]] = {
    "score": (
        SCORE,
        SCORING,
        {
            "query": ({"query": BAD}, "query"),
            "items[1]": ({"items": [GOOD, BAD]}, "items"),
            "Label '<|beyond|>'": ({"labels": ["yes", BEYOND]}, "labels"),
        },
    ),
    "rerank": (
        RERANK,
        {"query": GOOD, "documents": [GOOD, GOOD, GOOD]},
        {
            "query": ({"query": BAD}, "query"),
            "documents[2]": ({"documents": [GOOD, {"text": GOOD}, {"text": BAD}]}, "documents"),
            "instruction": ({"instruction": BAD}, "instruction"),
        },
    ),
    "decide": (
        DECIDE,
        {"input": GOOD, "questions": [QUESTION]},
        {
            "input": ({"input": BAD}, "input"),
            "questions[1]": ({"questions": [QUESTION, QUESTION | {"instructions": BAD}]}, "questions"),
        },
    ),
    "complete": (
        COMPLETE,
        {"prompt": GOOD},
        {"prompt[0]": ({"prompt": BAD}, "prompt"), "prompt[1]": ({"prompt": [GOOD, BAD]}, "prompt")},
    ),
    "chat": (
        CHAT,
        {"messages": MESSAGES},
        {
            "messages": ({"messages": [{"role": "user", "content": BAD}]}, "messages"),
            "Label '<|beyond|>'": ({"labels": ["yes", BEYOND]}, "labels"),
        },
    ),
    "classify": (CLASSIFY, {"input": GOOD}, {"input[1]": ({"input": [GOOD, BAD]}, "input")}),
    "token_classify": (TOKEN_CLASSIFY, {"input": GOOD}, {"input[1]": ({"input": [GOOD, BAD]}, "input")}),
}
"""By the name of a task: it, fields that are answered, and what is called bad with these changes, with the field."""

CASES = [(task, what) for task, (_, _, changes) in TEXTS.items() for what in changes]
LIMITS = Limits(context_length=500, vocab_size=960)


@pytest.fixture(scope="module")
def larger(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with one token more than the model has."""
    size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    assert size == LIMITS.vocab_size
    return write_larger_tokenizer(tmp_path_factory.mktemp("larger"), "qwen3", size, BEYOND)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path, larger: Path) -> Tokenizer:
    return Tokenizer.of(EngineConfig(model=str(checkpoint), tokenizer_path=str(larger)))


def limits_of(task: str) -> Limits:
    if not task.endswith("classify"):
        return LIMITS
    return replace(
        LIMITS, head_labels=("bad", "good"), only_task="token_classify" if task == "token_classify" else None
    )


def refusal(work: Callable[[], object]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        work()
    return caught.value


def test_every_task_is_here() -> None:
    assert set(TEXTS) == set(TASKS)
    assert all(name == task.name for name, (task, _, _) in TEXTS.items())


@pytest.mark.parametrize(("name", "what"), CASES)
def test_a_text_with_a_token_that_the_model_lacks_is_refused(tokenizer: Tokenizer, name: str, what: str) -> None:
    task, fields, changes = TEXTS[name]
    changed, param = changes[what]
    task.parse(fields, tokenizer, limits_of(name), None)
    task.parse(fields | changed, tokenizer.within(None), replace(limits_of(name), vocab_size=2000), None)
    error = refusal(lambda: task.parse(fields | changed, tokenizer, limits_of(name), None))
    assert (error.code, error.param) == ("token_id_exceeds_vocab", param)
    assert error.message.startswith(f"{what} has token 960, '<|beyond|>',")


@pytest.mark.parametrize(
    "changes",
    [
        {"query": f"{GOOD} <|bey", "items": [GOOD, "ond|>"]},
        {"query": "ond|>", "items": [GOOD, f"{GOOD} <|bey"], "item_first": True},
    ],
)
def test_what_counts_is_the_joined_text(tokenizer: Tokenizer, changes: dict[str, Any]) -> None:
    error = refusal(lambda: SCORE.parse(SCORING | changes, tokenizer, LIMITS, None))
    assert error.message.startswith("items[1] has token 960")
    SCORE.parse(SCORING | changes, tokenizer, replace(LIMITS, delimiter=5), None)  # then they are not joined


@pytest.mark.parametrize(("changes", "what"), [({"query": BAD}, "query"), ({"items": [GOOD, BAD]}, "items[1]")])
def test_texts_around_a_delimiter_are_checked_too(tokenizer: Tokenizer, changes: dict[str, Any], what: str) -> None:
    error = refusal(lambda: SCORE.parse(SCORING | changes, tokenizer, replace(LIMITS, delimiter=5), None))
    assert (error.code, error.message.startswith(f"{what} has token 960")) == ("token_id_exceeds_vocab", True)


@pytest.mark.parametrize("delimiter", [None, 5])
def test_with_errors_of_items_the_other_items_are_scored(tokenizer: Tokenizer, delimiter: int | None) -> None:
    limits = replace(LIMITS, delimiter=delimiter)
    fields = SCORING | {"items": [BAD, GOOD, BEYOND, "", BAD]}
    parsed = SCORE.parse(fields | {"on_error": "item"}, tokenizer, limits, None)
    alone = SCORE.parse(SCORING | {"items": [GOOD, ""]}, tokenizer, limits, None)
    assert [(error.index, error.code) for error in parsed.items.errors] == [
        (index, "token_id_exceeds_vocab") for index in (0, 2, 4)
    ]
    assert parsed.items.kept.tolist() == [1, 3]
    for name in ("query", "item_tokens", "item_starts", "context_lens"):
        np.testing.assert_array_equal(getattr(parsed.request, name), getattr(alone.request, name))
    assert SCORE.parse(SCORING | {"items": [BAD], "on_error": "item"}, tokenizer, limits, None).requests == ()


def test_with_errors_of_items_the_other_documents_are_ranked(tokenizer: Tokenizer) -> None:
    fields = {"query": GOOD, "documents": [BAD, GOOD, "sun " * 900, BAD], "return_documents": True, "on_error": "item"}
    parsed = RERANK.parse(fields, tokenizer, LIMITS, None)
    alone = RERANK.parse(fields | {"documents": [GOOD, "sun " * 900]}, tokenizer, LIMITS, None)
    assert [error.index for error in parsed.documents.errors] == [0, 3]
    assert (parsed.texts, parsed.truncated) == ({1: GOOD, 2: "sun " * 900}, (2,))
    np.testing.assert_array_equal(parsed.requests[0].item_tokens, alone.requests[0].item_tokens)
    error = refusal(lambda: RERANK.parse(fields | {"documents": [BAD]}, tokenizer, LIMITS, None))
    assert (error.code, error.param) == ("token_id_exceeds_vocab", "documents")


def test_with_errors_of_items_the_other_questions_are_answered(tokenizer: Tokenizer) -> None:
    choices = [{"value": GOOD}, {"value": "sun"}]
    choice, bad = ({"type": "choice", "instructions": text, "choices": choices} for text in (GOOD, BAD))
    fields = {"input": GOOD, "choice_order": "independent", "on_error": "item"}
    parsed = DECIDE.parse(fields | {"questions": [choice, bad, QUESTION, bad]}, tokenizer, LIMITS, None)
    alone = DECIDE.parse(fields | {"questions": [choice, QUESTION]}, tokenizer, LIMITS, None)
    codes = [getattr(each, "code", None) for each in parsed.asked.questions]
    assert codes == [None, "token_id_exceeds_vocab", None, "token_id_exceeds_vocab"]
    (request,), (expected,) = parsed.requests, alone.requests
    np.testing.assert_array_equal(request.item_tokens, expected.item_tokens)


def test_tokenizer_processes_refuse_as_well(tokenizer: Tokenizer) -> None:
    there = Tokenizer.from_json(tokenizer.to_json())
    assert refusal(lambda: there.encode(BAD, field="prompt")).code == "token_id_exceeds_vocab"
    assert Tokenizer.from_json(tokenizer.within(None).to_json()).encode(BEYOND).tolist() == [960]


def test_a_model_without_yes_and_no_does_not_rerank(tokenizer: Tokenizer) -> None:
    few = tokenizer.label_id("yes")
    assert "rerank" in tasks_of(tokenizer, LIMITS)
    assert "rerank" not in tasks_of(tokenizer.within(few), replace(LIMITS, vocab_size=few))


@pytest.mark.parametrize("is_larger", [True, False])
def test_the_log_says_at_load_how_many_tokens_the_model_lacks(
    checkpoint: Path, larger: Path, caplog: pytest.LogCaptureFixture, is_larger: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        Tokenizer.of(EngineConfig(model=str(checkpoint), tokenizer_path=str(larger) if is_larger else None))
    lines = [record.getMessage() for record in caplog.records if "embedding" in record.getMessage()]
    assert len(lines) == is_larger
    assert all("1 of the tokenizer's 961 tokens" in line and "960" in line for line in lines)


def test_a_gguf_file_may_have_more_tokens_than_rows(checkpoint: Path, larger: Path, tmp_path: Path) -> None:
    for path in [*checkpoint.iterdir(), *larger.iterdir()]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    file = write_gguf(tmp_path / "model.gguf", tmp_path)
    loaded = Tokenizer.of(EngineConfig(model=str(file)))
    assert loaded.encode(GOOD).max() < 960
    assert refusal(lambda: loaded.encode(BAD, field="query")).code == "token_id_exceeds_vocab"


def test_a_gguf_file_is_read_once(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, other = (write_gguf(tmp_path / name, checkpoint) for name in ("model.gguf", "other.gguf"))
    opened, open_gguf = [], gguf_parts.open_gguf
    monkeypatch.setattr(gguf_parts, "open_gguf", lambda path, *rest: opened.append(path) or open_gguf(path, *rest))
    Tokenizer.of(EngineConfig(model=str(file)))
    assert opened == [file]
    Tokenizer.of(EngineConfig(model=str(file), tokenizer_path=str(other)))  # the twin: two files
    assert sorted(opened[1:]) == [file, other]


def test_an_engine_refuses_what_its_model_lacks(
    engine_factory: Callable[..., Engine], checkpoint: Path, larger: Path
) -> None:
    engine = engine_factory(checkpoint, tokenizer_path=str(larger), **SMALL_ENGINE)
    assert refusal(lambda: engine.score(**SCORING | {"items": [GOOD, BAD]})).message.startswith("items[1] has token")
    assert refusal(lambda: engine.generate(BAD, max_new_tokens=2)).param == "prompt"
    engine.score(**SCORING)
