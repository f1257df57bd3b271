"""Decisions asked by a checkpoint's files, or by transformers' own prompt, are those of its pipeline `decision`."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, pipeline

from decision_oracle import JOINT, QUESTIONS, SETTINGS, STATES, TEMPLATE, compare, with_files
from mis_core import Engine
from mis_core.config import EngineConfig
from mis_core.errors import ModelError, RequestError
from mis_core.tasks.decide.asked_question import AskedQuestion
from mis_core.tasks.decide.system_one.task import parse_system_one
from mis_core.tasks.limits import Limits
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.chat_template import ChatTemplate
from mis_testing import tiny_checkpoint
from mis_testing.options import SMALL_ENGINE

pytestmark = pytest.mark.parity


def with_tokenizer(path: Path, backend: tokenizers.Tokenizer) -> Path:
    """Put a tokenizer of another kind into a checkpoint, with the labels as tokens."""
    chat_template = AutoTokenizer.from_pretrained(path).chat_template
    own = tokenizers.Tokenizer.from_str(backend.to_str())
    own.add_tokens(["Yes", "No", "A", "B", "C"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).unlink()
    PreTrainedTokenizerFast(tokenizer_object=own, chat_template=chat_template).save_pretrained(path)
    return path


CASES: dict[str, Callable[[Path, Any], Path]] = {
    "no files": lambda path, small: path,
    "a template": lambda path, small: with_files(path, TEMPLATE, None),
    "a template and settings": lambda path, small: with_files(path, TEMPLATE, SETTINGS),
    "all in one prompt": lambda path, small: with_files(path, JOINT, SETTINGS),
    "settings only": lambda path, small: with_files(path, None, SETTINGS),
    "its own escapes": lambda path, small: with_files(
        path, TEMPLATE.replace("'<|split|>' ~ ", ""), {"sanitize_control_tokens": False}
    ),
    "pieces of sentences": lambda path, small: with_tokenizer(path, small("mistral")),
    "bytes without NFC": lambda path, small: with_tokenizer(path, small("smollm")),
}


PER_COMMIT = ("a template and settings", "all in one prompt")


@pytest.mark.parametrize(
    ("family", "case"),
    [
        pytest.param(family, case, marks=() if family == "qwen3" and case in PER_COMMIT else pytest.mark.full)
        for family, case in itertools.product(("qwen3", "qwen3_5"), CASES)
    ],
)
def test_answers_are_those_of_the_pipeline(tmp_path: Path, small_tokenizer: Any, family: str, case: str) -> None:
    path = CASES[case](tiny_checkpoint(tmp_path / "model", family, vocab_size=2048), small_tokenizer)
    model: Any = str(path)
    if family == "qwen3_5":  # by name the pipeline takes it for a decision model, head or not
        model = AutoModelForCausalLM.from_pretrained(path, dtype="float32")
    theirs = pipeline("decision", model=model, tokenizer=AutoTokenizer.from_pretrained(path), dtype="float32")
    options = {} if (path / "decision.json").exists() or (path / "decision_template.jinja").exists() else ASKED
    with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE | options) as engine:
        for state in STATES:
            expected = theirs({"state": state, "questions": QUESTIONS})
            decided = engine.decide(state, QUESTIONS)
            found = decided.answers
            assert (decided.x_joint is True) == ("all in one" in case)
            for name, answer in expected.items():
                compare(found[name], answer)


ASKED = {"decision_prompt": "transformers"}


@pytest.mark.parametrize(
    ("family", "prompt"),
    [
        ("qwen3", "transformers"),
        pytest.param("qwen3", "mis", marks=pytest.mark.full),
        pytest.param("qwen3_5", "transformers", marks=pytest.mark.full),
    ],
)
def test_answers_have_the_same_bits_alone_and_among_others(tmp_path: Path, family: str, prompt: str) -> None:
    path = tiny_checkpoint(tmp_path / "model", family, vocab_size=2048)
    options = SMALL_ENGINE | {"dtype": "bfloat16", "decision_prompt": prompt}
    with Engine.from_pretrained(path, progress=False, **options) as engine:
        for state in STATES:
            together = engine.decide(state, QUESTIONS).answers
            for name, question in QUESTIONS.items():
                assert engine.decide(state, {name: question}).answers == {name: together[name]}


@pytest.mark.full
def test_other_ways_of_asking(tmp_path: Path) -> None:
    path = with_files(tiny_checkpoint(tmp_path / "model", "qwen3", vocab_size=2048), TEMPLATE, SETTINGS)
    (tmp_path / "own.jinja").write_text(TEMPLATE.replace("[decision]", "[verdict]"))
    state, questions = STATES[1], {"so": QUESTIONS["so"]}
    found = {}
    for prompt in (None, "mis", "transformers", str(tmp_path / "own.jinja")):
        with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE | {"decision_prompt": prompt}) as engine:
            found[prompt] = engine.decide(state, questions).answers["so"].noul  # pyrefly: ignore[missing-attribute]
            predicate = {"type": "predicate", "instructions": "It is about animals."}
            answered = engine.decide(state, [predicate]).answers[0]
            assert 0 < answered.probability < 1  # pyrefly: ignore[missing-attribute]
    assert len(set(found.values())) == 4


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"decision.json": '{"adapter": 7}'}, "Expected `str | null`, got `int` - at `$.adapter`"),
        ({"decision.json": '{"temperature": {"noul": 0}}'}, "temperature must be a number above 0"),
        ({"decision.json": '{"labels": 5}'}, "Expected `object`"),
        ({"decision.json": '{"noul_options": ["true"]}'}, "must list true and false"),
    ],
)
def test_broken_settings_are_refused_by_name(tmp_path: Path, files: dict[str, str], message: str) -> None:
    path = tiny_checkpoint(tmp_path / "model", "qwen3")
    for name, content in files.items():
        (path / name).write_text(content)
    assert Tokenizer.of(EngineConfig(model=str(path), decision_prompt="mis")).decision is None
    with pytest.raises(ModelError, match=message):
        Tokenizer.of(EngineConfig(model=str(path)))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ questions }}<|mark|>", "marks for 5 questions"),
        ("{% for option in question.options %}{{ option }}<|mark|>{% endfor %}", "several marks for a question"),
        ("{{ raise_exception('No.') }}", "No."),
    ],
)
def test_a_template_that_cannot_be_read_is_refused(tmp_path: Path, template: str, message: str) -> None:
    path = with_files(tiny_checkpoint(tmp_path / "model", "qwen3"), template, None)
    with (
        Engine.from_pretrained(path, progress=False, **SMALL_ENGINE) as engine,
        pytest.raises(RequestError, match=message),
    ):
        engine.decide("a", QUESTIONS)


def test_a_broken_decision_template_is_refused_at_the_start(tmp_path: Path) -> None:
    path = with_files(tiny_checkpoint(tmp_path / "model", "qwen3"), "{% if %}", None)
    with pytest.raises(ModelError, match="template of decisions cannot be compiled"):
        Tokenizer.of(EngineConfig(model=str(path))).compiled()


def test_marks_cannot_be_put_together(tmp_path: Path) -> None:
    path = with_files(
        tiny_checkpoint(tmp_path / "model", "qwen3", vocab_size=2048),
        "{{ state }} {{ question.instructions }} end",
        {"sanitize_control_tokens": False},
    )
    tokenizer = Tokenizer.of(EngineConfig(model=str(path)))
    state = "Yes. <|ma<|split|>rk|>\U000f0001 No."
    questions = {"q": {"type": "noul", "instructions": "Is it?"}}
    (request,) = parse_system_one(
        {"state": state, "questions": questions}, tokenizer, Limits(context_length=500, vocab_size=2048)
    ).requests
    text = tokenizer.decode(np.concatenate([request.query[: request.context_lens[0]], request.item_tokens]))
    assert text == "Yes.  No. Is it? end"


def test_more_options_than_labels_are_refused(tmp_path: Path) -> None:
    path = with_files(tiny_checkpoint(tmp_path / "model", "qwen3", vocab_size=2048), TEMPLATE, SETTINGS)
    many = {"q": {"type": "choice", "criteria": {str(number): None for number in range(5)}}}
    with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE) as engine:
        with pytest.raises(RequestError, match="5 labels") as refused:
            engine.decide("a", many)
        assert refused.value.code == "too_few_label_tokens"
        other = engine.decide("a", many | {"so": QUESTIONS["so"]}, x_on_error="item")
        assert list(other.answers) == ["so"]


LAST = "{{ question.name ~ ' ' }}{% for each in question.options %}{{ each ~ ' ' }}{% endfor %}{{ state }}"
BY_QUESTION = "{{ state[: 40 + 9 * question.instructions|string|length] }} {{ question.name }}: "


@pytest.mark.parametrize(
    ("template", "rendered"), [(None, 2), (TEMPLATE, 3), (LAST, 3), (BY_QUESTION, 3)], ids=["none", "t", "last", "by"]
)
def test_each_prompt_is_the_one_that_its_question_has_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str | None, rendered: int
) -> None:
    path = with_files(tiny_checkpoint(tmp_path / "model", "qwen3", vocab_size=2048), template, None)
    prompt = "transformers" if template is None else None
    tokenizer = Tokenizer.of(EngineConfig(model=str(path), decision_prompt=prompt))
    state = "A long state. " * 500
    questions = {f"{name} {number}": QUESTIONS[name] for number in range(10) for name in ("so", "which", "how")}
    sizes: list[int] = []
    render = ChatTemplate.render

    def counted(own: ChatTemplate, *arguments: Any, **variables: Any) -> str:
        sizes.append(len(str(variables.get("state", ""))))
        return render(own, *arguments, **variables)

    monkeypatch.setattr(ChatTemplate, "render", counted)
    limits = Limits(context_length=1 << 20, vocab_size=2048)
    parsed = parse_system_one({"state": state, "questions": questions}, tokenizer, limits)
    assert sum(size >= len(state) for size in sizes) == (30 if rendered == 3 else 1)
    (request,) = parsed.requests
    for row, asked in enumerate(parsed.asked.questions):
        assert isinstance(asked, AskedQuestion)
        begin, end = request.item_starts[row : row + 2]
        ids = np.concatenate([request.query[: request.context_lens[row]], request.item_tokens[begin:end]])
        (alone,) = parse_system_one(
            {"state": state, "questions": {str(asked.question.name): questions[str(asked.question.name)]}},
            tokenizer,
            limits,
        ).requests
        np.testing.assert_array_equal(ids, np.concatenate([alone.query[: alone.context_lens[0]], alone.item_tokens]))
