"""Tasks say what their distributions over labels may be calibrated by, and apply it."""

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET
from scipy.special import softmax

from mis_core.calibration import Calibrations, Curve, Entry, Figures, Identity, ModelIdentity, Scaling, Threshold
from mis_core.requests import EngineOutput
from mis_core.tasks.classify.task import CLASSIFY
from mis_core.tasks.decide.asked_question import AskedQuestion
from mis_core.tasks.decide.judged import question_logprobs
from mis_core.tasks.decide.system_one.task import SYSTEM_ONE
from mis_core.tasks.decide.task import DECIDE
from mis_core.tasks.limits import Limits
from mis_core.tasks.path.task import Task
from mis_core.tasks.rerank.task import RERANK
from mis_core.tasks.score.task import SCORE
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.decision_contract import DecisionContract

LIMITS = Limits(context_length=4000, vocab_size=5000, architecture="Qwen3ForCausalLM", identified=True)
HEAD = dataclasses.replace(LIMITS, head_labels=("bad", "so so", "good"), architecture="Qwen3ForSequenceClassification")
ONE_ROW = dataclasses.replace(LIMITS, head_labels=("good",), head_activation="sigmoid")
MODEL = ModelIdentity(weights="w", tokenizer="t", dtype="float32", quantization="none")
FIGURES = Figures(log_loss=0.5, brier=0.3, accuracy=0.8)
NEVER = Threshold(accuracy=0.95, observed=0, confidence=None, coverage=0, at_least=0)
SCORE_BODY = {"query": "Is it? ", "items": ["a", "b", "c"], "labels": ["yes", "no"], "apply_softmax": True}
NOUL = {"type": "noul", "instructions": "Is it wet?"}
CHOICE = {"type": "choice", "instructions": "Which?", "criteria": {"cat": "a pet", "dog": None, "ant": None}}


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_pretrained(checkpoint)


def entry(identity: Identity, begins: tuple[int, ...] = (), **parts: Any) -> Entry:
    figures = {"raw": FIGURES, "calibrated": FIGURES, "act": NEVER, "review": NEVER}
    if not parts:
        bias = np.linspace(-1, 1, identity.num_labels)
        parts = {"scaling": Scaling(temperature=2.0, bias=tuple(bias.tolist()))}
    return Entry(identity=identity, begins=begins, rows=20, groups=20, **figures, **parts)


def parse(task: Task[Any, Any], fields: Any, tokenizer: Tokenizer | None, limits: Limits = LIMITS) -> Any:
    return pickle.loads(pickle.dumps(task.read(fields, tokenizer, limits, None)))


def outputs_of(parsed: Any) -> tuple[EngineOutput, ...]:
    """What an engine would say: other logits for every label of every item."""
    random = np.random.default_rng(5)
    shapes = [(request.num_items, request.label_ids.shape[1]) for request in parsed.requests]
    return tuple(
        EngineOutput(random.normal(0, 3, shape).astype(np.float32), np.full(shape[0], 30, np.float32))
        for shape in shapes
    )


def scaled(logits: np.ndarray) -> np.ndarray:
    """What `entry` makes of logits."""
    return softmax(logits.astype(np.float64) / 2 + np.linspace(-1, 1, logits.shape[1]), axis=1)


def test_a_softmax_of_scores_is_calibrated(tokenizer: Tokenizer) -> None:
    parsed = parse(SCORE, SCORE_BODY, tokenizer)
    (output,) = outputs = outputs_of(parsed)
    raw = SCORE.finish(parsed, outputs, None)
    assert raw.calibration is UNSET
    none = SCORE.finish(parsed, outputs, Calibrations(MODEL, ()))
    assert none.calibration is None
    assert (none.scores == raw.scores).all()
    known = Calibrations(MODEL, (entry(parsed.identity),))
    found = SCORE.finish(parsed, outputs, known)
    assert found.calibration == known.entries[0].digest
    np.testing.assert_allclose(found.scores, scaled(output.logits), rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"apply_softmax": False},
        {"temperature": 2.0},
        {"calibration": "none"},
        {"labels": ["yes"]},
        {"labels": None, "label_token_ids": [[1, 2], [1, 2], [2, 1]]},
    ],
)
def test_what_else_a_score_may_ask_for_is_raw(tokenizer: Tokenizer, change: dict[str, Any]) -> None:
    parsed = parse(SCORE, SCORE_BODY | change, tokenizer)
    assert parsed.identity is None
    assert SCORE.finish(parsed, outputs_of(parsed), Calibrations(MODEL, ())).calibration is None


def test_labels_order_and_item_first_distinguish_questions(tokenizer: Tokenizer) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"labels": ["no", "yes"]},
        {"labels": ["yes", "no and no"]},
        {"item_first": True},
        {"add_special_tokens": False},
    ]
    digests = [parse(SCORE, SCORE_BODY | change, tokenizer).identity.digest for change in changes]
    assert len(set(digests)) == len(changes)
    ids = {"labels": None, "label_token_ids": [tokenizer.label_id("yes"), tokenizer.label_id("no")]}
    assert parse(SCORE, SCORE_BODY | ids, tokenizer).identity.digest == digests[0]
    assert parse(SCORE, SCORE_BODY | {"query": "Else? "}, tokenizer).identity.digest == digests[0]


@pytest.mark.parametrize("item_first", [False, True])
def test_a_query_is_known_by_how_it_begins(tokenizer: Tokenizer, item_first: bool) -> None:
    begin = "What follows is about animals: "
    first, same, other = (
        parse(SCORE, SCORE_BODY | {"query": query, "item_first": item_first}, tokenizer)
        for query in (begin, begin + "which is it? ", "Something else altogether, is it so? ")
    )
    known = Calibrations(MODEL, (entry(first.identity, begins=tuple(first.begins[:8].tolist())),))
    found = [SCORE.finish(each, outputs_of(each), known).calibration for each in (first, same, other)]
    assert found == [known.entries[0].digest] * 2 + [None]


def test_an_id_that_the_model_does_not_read_is_no_other_question(tokenizer: Tokenizer) -> None:
    contract = Tokenizer.from_json(tokenizer.to_json())
    contract.decision = DecisionContract.generic()
    digests = {
        parse(SYSTEM_ONE, {"state": "s", "questions": {name: NOUL}}, contract).asked.questions[0].identity.digest
        for name in ("a", "b")
    }
    assert len(digests) == 1
    own = parse(SYSTEM_ONE, {"state": "s", "questions": {"a": NOUL}}, tokenizer)
    assert own.asked.questions[0].identity.digest not in digests


def test_nothing_is_identified_where_no_calibration_is_loaded(tokenizer: Tokenizer) -> None:
    assert parse(SCORE, SCORE_BODY, tokenizer, dataclasses.replace(LIMITS, identified=False)).identity is None


def test_documents_rank_by_calibrated_relevance_ties_by_the_raw(tokenizer: Tokenizer) -> None:
    body = {"query": "cats", "documents": ["a", "b", "c", "d"]}
    parsed = parse(RERANK, body, tokenizer)
    outputs = outputs_of(parsed)
    raw = RERANK.finish(parsed, outputs, None)
    assert raw.calibration is UNSET
    known = Calibrations(MODEL, (entry(parsed.identity),))
    found = RERANK.finish(parsed, outputs, known)
    scores = {each.index: each.relevance_score for each in found.results}
    np.testing.assert_allclose([scores[i] for i in range(4)], scaled(outputs[0].logits)[:, 1], rtol=1e-12)
    assert found.calibration == known.entries[0].digest
    flat = entry(parsed.identity, curves=(Curve(before=(0.0, 1.0), after=(0.5, 0.5)),))
    tied = RERANK.finish(parsed, outputs, Calibrations(MODEL, (flat,)))
    assert [each.index for each in tied.results] == [each.index for each in raw.results]
    for change in ({"instruction": "Else"}, {"calibration": "none"}):
        other = RERANK.finish(parse(RERANK, body | change, tokenizer), outputs, known)
        assert (other.results, other.calibration) == (raw.results, None)


def test_another_recipe_or_template_is_another_question(tokenizer: Tokenizer) -> None:
    body = {"query": "cats", "documents": ["a"]}
    digests = {
        parse(RERANK, body, tokenizer, dataclasses.replace(LIMITS, rerank_recipe=recipe)).identity.digest
        for recipe in (None, "generic", "qwen3-reranker")
    }
    assert len(digests) == 2  # the first is the last


@pytest.mark.parametrize("order", ["given", "sorted", "reversed", "independent"])
def test_decisions_are_calibrated_question_by_question(tokenizer: Tokenizer, order: str) -> None:
    body = {"state": "Rain.", "questions": {"n": NOUL, "c": CHOICE}, "x_choice_order": order}
    parsed = parse(SYSTEM_ONE, body, tokenizer)
    outputs = outputs_of(parsed)
    raw = SYSTEM_ONE.finish(parsed, outputs, None)
    assert raw.x_calibration is UNSET
    asked = parsed.asked.questions[1]
    assert isinstance(asked, AskedQuestion)
    assert asked.identity is not None
    known = Calibrations(MODEL, (entry(asked.identity),))
    found = SYSTEM_ONE.finish(parsed, outputs, known)
    assert found.x_calibration == {"n": None, "c": known.entries[0].digest}
    assert found.answers["n"] == raw.answers["n"]
    before = np.array([raw.answers["c"].probabilities[name] for name in ("cat", "dog", "ant")])
    wanted = np.empty(3)
    first = asked.orders[0]
    wanted[first] = scaled(np.log(before[first])[None])[0]
    probabilities = found.answers["c"].probabilities
    np.testing.assert_allclose([probabilities[name] for name in ("cat", "dog", "ant")], wanted, rtol=1e-5)
    assert found.answers["c"].choice == max(probabilities, key=lambda name: probabilities[name])
    np.testing.assert_allclose(question_logprobs(parsed.asked, outputs)[1], np.log(before[first]), rtol=1e-5)
    off = SYSTEM_ONE.finish(parse(SYSTEM_ONE, body | {"x_calibration": "none"}, tokenizer), outputs, known)
    assert (off.answers, off.x_calibration) == (raw.answers, {"n": None, "c": None})


def test_a_question_is_the_same_on_both_routes_and_among_others(tokenizer: Tokenizer) -> None:
    ours = {"type": "choice", "instructions": "Which?", "choices": [{"value": "cat"}, {"value": "dog"}]}
    theirs = {"type": "choice", "instructions": "Which?", "criteria": {"cat": None, "dog": None}}
    decision = parse(DECIDE, {"input": "Rain.", "questions": [ours]}, tokenizer)
    system_one = parse(SYSTEM_ONE, {"state": "Snow.", "questions": {"n": NOUL, "any id": theirs}}, tokenizer)
    identity = decision.asked.questions[0].identity
    assert identity.digest == system_one.asked.questions[1].identity.digest
    outputs = outputs_of(decision)
    known = Calibrations(MODEL, (entry(identity),))
    assert DECIDE.finish(decision, outputs, known).calibration == (known.entries[0].digest,)
    assert DECIDE.finish(decision, outputs, None).calibration is UNSET


@pytest.mark.parametrize(
    "change",
    [
        {"instructions": "Which one?"},
        {"criteria": {"dog": None, "cat": "a pet", "ant": None}},
        {"criteria": {"cat": "a beast", "dog": None, "ant": None}},
        {"criteria": {"cat": "a pet", "dog": None}},
    ],
)
def test_another_wording_is_another_question(tokenizer: Tokenizer, change: dict[str, Any]) -> None:
    def digest(question: Any, **options: Any) -> str:
        parsed = parse(SYSTEM_ONE, {"state": "s", "questions": {"c": question}} | options, tokenizer)
        return parsed.asked.questions[0].identity.digest

    assert digest(CHOICE) != digest(CHOICE | change)
    same = "criteria" in change and len(change["criteria"]) == 3 and change["criteria"]["cat"] == "a pet"
    in_order = digest(CHOICE | change, x_choice_order="sorted")
    assert (digest(CHOICE, x_choice_order="sorted") == in_order) is same  # whatever order they were sent in


@pytest.mark.parametrize("limits", [HEAD, ONE_ROW])
def test_classes_are_calibrated(tokenizer: Tokenizer, limits: Limits) -> None:
    body = {"input": ["a", "b", "c"]}
    parsed = parse(CLASSIFY, body, tokenizer, limits)
    (output,) = outputs = outputs_of(parsed)
    known = Calibrations(MODEL, (entry(parsed.identity),))
    found = CLASSIFY.finish(parsed, outputs, known)
    logits = output.logits if limits is HEAD else np.concatenate([0 * output.logits, output.logits], axis=1)
    wanted = scaled(logits)[:, -output.logits.shape[1] :]
    np.testing.assert_allclose(found.probabilities, wanted, rtol=1e-6)
    assert found.labels == tuple(limits.head_labels[i] for i in wanted.argmax(axis=1))
    assert found.calibration == known.entries[0].digest
    for change in ({"calibration": "none"}, {"use_activation": False}):
        raw = CLASSIFY.finish(parse(CLASSIFY, body | change, tokenizer, limits), outputs, known)
        assert raw.calibration is None


@pytest.mark.parametrize(
    ("task", "body", "limits"),
    [
        (SCORE, SCORE_BODY, LIMITS),
        (RERANK, {"query": "cats", "documents": ["a", "b"]}, LIMITS),
        (SYSTEM_ONE, {"state": "s", "questions": {"n": NOUL, "c": CHOICE}}, LIMITS),
        (CLASSIFY, {"input": ["a", "b"]}, HEAD),
    ],
)
def test_values_that_are_not_finite_are_never_calibrated(
    tokenizer: Tokenizer, task: Task[Any, Any], body: Any, limits: Limits
) -> None:
    parsed = parse(task, body, tokenizer, limits)
    outputs = outputs_of(parsed)
    for output in outputs:
        output.logits[0, 0] = np.nan
    identity = getattr(parsed, "identity", None) or parsed.asked.questions[0].identity
    check: Callable[[], Any] = lambda: task.finish(parsed, outputs, Calibrations(MODEL, (entry(identity),)))  # noqa: E731
    if task is SCORE:  # whose route checks what it encodes
        assert np.isnan(check().scores[0]).all()
    else:
        with pytest.raises(FloatingPointError):
            check()
