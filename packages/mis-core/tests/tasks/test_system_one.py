"""System One on the host: what a request may hold, what the model reads, and what its values become."""

import copy
import itertools
import json
import pickle
import string
from typing import Any

import msgspec
import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from scipy.special import softmax

from mis_core.errors import RequestError
from mis_core.requests import EngineOutput
from mis_core.tasks.decide.asked_question import AskedQuestion
from mis_core.tasks.decide.system_one.answers import SystemOneChoice, SystemOneNoul, SystemOneResult, SystemOneScore
from mis_core.tasks.decide.system_one.task import ParsedSystemOne, finish_system_one, parse_system_one
from mis_core.tasks.decide.task import parse_decision
from mis_core.tasks.limits import Limits
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.chat_template import ChatTemplate
from mis_core.tokenization.decision_contract import DecisionContract

LIMITS = Limits(context_length=4000, vocab_size=5000)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NOUL = {"type": "noul", "instructions": "Is it wet?"}
CHOICE = {"type": "choice", "instructions": "Which?", "criteria": {"cat": "a pet", "dog": None, "": ["x", 1]}}
SCORE = {"type": "score", "instructions": {"scale": "wetness"}, "criteria": ["dry", {"label": "wet"}, "drowned"]}
QUESTIONS = {"n": NOUL, "c 🙂": CHOICE, "s.1": SCORE}


@pytest.fixture(scope="module")
def tokenizer(small_tokenizer: Any) -> Tokenizer:
    return Tokenizer(small_tokenizer("qwen"), ChatTemplate(CHATML))


def parse(tokenizer: Tokenizer, limits: Limits = LIMITS, **fields: Any) -> ParsedSystemOne:
    fields = {"state": "Rain falls.", "questions": QUESTIONS} | fields
    return parse_system_one(fields, tokenizer, limits, ("m",))


def refusal(tokenizer: Tokenizer, limits: Limits = LIMITS, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as refused:
        parse(tokenizer, limits, **fields)
    assert len(refused.value.message) < 500
    return refused.value


def texts(parsed: ParsedSystemOne) -> list[str]:
    """What the model reads of each question."""
    return [text for each in parsed.asked.questions if isinstance(each, AskedQuestion) for text in each.texts]


def words(parsed: ParsedSystemOne) -> list[str]:
    """The words for yes and no."""
    first = parsed.asked.questions[0]
    assert isinstance(first, AskedQuestion)
    return first.labels[0]


def prompts(tokenizer: Tokenizer, parsed: ParsedSystemOne) -> list[str]:
    (request,) = parsed.requests
    starts = request.item_starts
    return [
        tokenizer.decode(np.concatenate([request.query[:context], request.item_tokens[starts[row] : starts[row + 1]]]))
        for row, context in enumerate(request.context_lens)
    ]


def finish(parsed: ParsedSystemOne, logits: Any, log_sum_exp: float = 9.0) -> SystemOneResult:
    (request,) = parsed.requests
    values = np.zeros(request.label_ids.shape, np.float32)
    for row, each in enumerate(logits):
        values[row, : len(each)] = each
    output = EngineOutput(values, np.full(len(values), log_sum_exp, np.float32), cached_tokens=3)
    return finish_system_one(pickle.loads(pickle.dumps(parsed)), (output,))


def test_a_state_and_its_questions_are_read_as_decisions_are(tokenizer: Tokenizer) -> None:
    given = {
        "type": "choice",
        "instructions": "Which?",
        "choices": [{"value": "cat", "description": "a pet"}, {"value": "dog"}],
    }
    theirs = parse_decision(
        {"input": "Rain falls.", "questions": [{"type": "predicate", "instructions": "Is it wet?"}, given]},
        tokenizer,
        LIMITS,
    )
    ours = parse(
        tokenizer,
        questions={
            "a": NOUL,
            "b": {"type": "choice", "instructions": "Which?", "criteria": {"cat": "a pet", "dog": None}},
        },
    )
    for left, right in zip(ours.requests, theirs.requests, strict=True):
        np.testing.assert_array_equal(left.query, right.query)
        np.testing.assert_array_equal(left.item_tokens, right.item_tokens)
        np.testing.assert_array_equal(left.label_ids, right.label_ids)


@pytest.mark.parametrize("state", ["", {}, [], {"a": ["ü", None, 1.5, {"b": True}]}, ["x", "y"]])
def test_a_state_that_is_no_text_is_read_as_compact_json(tokenizer: Tokenizer, state: Any) -> None:
    read = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False, separators=(",", ":"))
    for prompt in prompts(tokenizer, parse(tokenizer, state=state)):
        assert prompt.startswith(f"<|im_start|>user\n{read}<|im_end|>\n<|im_start|>user\nAbout all of the above:")


def test_structured_contents_are_read_as_compact_json(tokenizer: Tokenizer) -> None:
    _, choice, score = texts(parse(tokenizer))
    assert 'Which?\n\nOptions:\nA. cat: a pet\nB. dog\nC. : ["x",1]\n\n' in choice
    assert '{"scale":"wetness"}\n\nLevels, from the lowest to the highest:\nA. dry\nB. {"label":"wet"}\n' in score


@pytest.mark.parametrize(
    ("criteria", "said"),
    [
        (None, ""),
        ({}, ""),
        ({"true": None}, ""),
        ({"true": "rain"}, "\n\nYES means: rain"),
        ({"false": ["sun"]}, '\n\nNO means: ["sun"]'),
        ({"false": "sun", "true": "rain"}, "\n\nYES means: rain\n\nNO means: sun"),
    ],
)
def test_sides_of_a_noul_are_read_with_their_words(tokenizer: Tokenizer, criteria: Any, said: str) -> None:
    parsed = parse(tokenizer, questions={"n": NOUL | {"criteria": criteria}})
    (text,) = texts(parsed)
    yes, no = words(parsed)
    said = said.replace("YES", yes).replace("NO", no)
    assert text.endswith(f"Is it wet?{said}\n\nIs that true? Answer {yes} or {no}, and with nothing else.")


def test_instructions_may_be_left_out(tokenizer: Tokenizer) -> None:
    questions = {
        "n": {"type": "noul", "criteria": {"true": "rain"}},
        "c": {"type": "choice", "criteria": {"a": None, "b": None}},
        "s": {"type": "score", "criteria": ["a", "b"], "instructions": None},
    }
    parsed = parse(tokenizer, questions=questions)
    noul, choice, score = texts(parsed)
    assert f"Decide between yes and no.\n\n{words(parsed)[0]} means: rain" in noul
    assert "Which of the options fits best?" in choice
    assert "Which of the levels fits best?" in score


@pytest.mark.parametrize("count", [2, 26, 100])
def test_many_questions_and_options(tokenizer: Tokenizer, count: int) -> None:
    choice = {"type": "choice", "criteria": {f"option {number}": None for number in range(2)}}
    parsed = parse(tokenizer, questions={f"q{number}": choice for number in range(10 * count)})
    assert parsed.requests[0].num_items == 10 * count


def test_ids_never_reach_the_model(tokenizer: Tokenizer) -> None:
    renamed = parse(tokenizer, questions={f"wombat {name}": each for name, each in QUESTIONS.items()})
    assert texts(renamed) == texts(parse(tokenizer))


def test_values_become_answers(tokenizer: Tokenizer) -> None:
    logits = [[1.0, 3.0], [2.0, -1.0, 0.5], [0.0, 1.0, 2.0]]
    result = finish(parse(tokenizer), logits)
    assert list(result.answers) == ["n", "c 🙂", "s.1"]
    noul, choice, score = result.answers.values()
    assert isinstance(noul, SystemOneNoul)
    np.testing.assert_allclose(noul.noul, softmax(logits[0])[0], rtol=1e-6)
    np.testing.assert_allclose(noul.x_label_mass, np.exp(np.array(logits[0]) - 9).sum(), rtol=1e-6)
    assert isinstance(choice, SystemOneChoice)
    chosen = softmax(logits[1])
    assert list(choice.probabilities) == ["cat", "dog", ""]
    np.testing.assert_allclose(list(choice.probabilities.values()), chosen, rtol=1e-6)
    assert choice.choice == "cat"
    np.testing.assert_allclose(choice.confidence, (chosen[0] - 1 / 3) / (2 / 3), rtol=1e-6)
    assert isinstance(score, SystemOneScore)
    levels = softmax(logits[2])
    assert score.legend == {"0": "dry", "1": {"label": "wet"}, "2": "drowned"}
    assert list(score.probabilities) == ["0", "1", "2"]
    np.testing.assert_allclose(score.score, levels @ [0, 1, 2], rtol=1e-6)
    np.testing.assert_allclose(score.confidence, 1 - levels @ [2, 1, 0] / (2 / 3), rtol=1e-5, atol=1e-6)
    assert (result.usage.x_cached_tokens, result.usage.output_tokens) == (3, 0)
    assert result.usage.input_tokens == parse(tokenizer).requests[0].prompt_tokens
    assert (result.x_abstained, result.x_errors) == (UNSET, UNSET)


@settings(deadline=None)
@given(logits=st.lists(st.floats(-50, 50, width=32), min_size=3, max_size=3))
def test_confidence_is_between_0_and_1(tokenizer: Tokenizer, logits: list[float]) -> None:
    result = finish(parse(tokenizer), [logits[:2], logits, logits])
    for answer in result.answers.values():
        assert 0 <= answer.certainty <= 1


@pytest.mark.parametrize(("logits", "certainty"), [([9e3, 0, 0], 1), ([0, 0, 0], 0), ([0, 9e3, 0], 1)])
def test_confidence_of_equal_and_of_certain_options(
    tokenizer: Tokenizer, logits: list[float], certainty: float
) -> None:
    result = finish(parse(tokenizer), [logits[:2], logits, logits], 9e3)
    for name in ("n", "c 🙂"):
        np.testing.assert_allclose(result.answers[name].certainty, certainty, atol=1e-6)
    if certainty:
        np.testing.assert_allclose(result.answers["s.1"].certainty, 1, atol=1e-6)


@settings(deadline=None)
@given(
    rows=st.lists(
        st.lists(st.sampled_from([0.0, 1.0, 1.5, 3.0, -20.0]), min_size=3, max_size=3), min_size=2, max_size=2
    )
)
def test_a_score_of_reversed_levels_is_the_mirrored_one(tokenizer: Tokenizer, rows: list[list[float]]) -> None:
    def ask(levels: list[Any], rows: list[list[float]]) -> SystemOneScore:
        parsed = parse(tokenizer, questions={"s": {"type": "score", "criteria": levels}}, x_choice_order="reversed")
        (made,) = finish(parsed, rows).answers.values()
        assert isinstance(made, SystemOneScore)
        return made

    there, back = ask(SCORE["criteria"], rows), ask(SCORE["criteria"][::-1], rows[::-1])
    assert list(there.probabilities.values()) == list(back.probabilities.values())[::-1]
    np.testing.assert_allclose(there.score, 2 - back.score, rtol=0, atol=1e-12)
    np.testing.assert_allclose(there.confidence, back.confidence, rtol=0, atol=1e-12)


def test_what_is_not_certain_enough_is_named(tokenizer: Tokenizer) -> None:
    logits = [[0.0, 0.1], [9.0, 0.0, 0.0], [0.0, 0.1, 0.0]]
    assert finish(parse(tokenizer, x_abstain_below=0), logits).x_abstained == ()
    result = finish(parse(tokenizer, x_abstain_below=0.5), logits)
    assert result.x_abstained == ("n", "s.1")
    assert list(result.answers) == list(QUESTIONS)
    own = QUESTIONS | {"n": NOUL | {"x_abstain_below": 0.01}, "c 🙂": CHOICE | {"x_abstain_below": 1}}
    assert finish(parse(tokenizer, questions=own), logits).x_abstained == ("c 🙂",)
    assert finish(parse(tokenizer, questions=own, x_abstain_below=0.5), logits).x_abstained == ("c 🙂", "s.1")


def test_a_wrong_question_refuses_the_request_or_is_left_out(tokenizer: Tokenizer) -> None:
    questions = {"bad": {"type": "boolean"}} | QUESTIONS
    error = refusal(tokenizer, questions=questions)
    assert (error.code, error.param) == ("invalid_questions", 'questions["bad"].type')
    parsed = parse(tokenizer, questions=questions, x_on_error="item")
    result = finish(parsed, [[0.0, 1.0], [0.0] * 3, [0.0] * 3])
    assert list(result.answers) == list(QUESTIONS)
    assert isinstance(result.x_errors, dict)
    assert result.x_errors["bad"].code == "invalid_questions"
    none = parse(tokenizer, questions={"bad": {}}, x_on_error="item")
    assert none.requests == ()
    assert finish_system_one(none, ()).answers == {}


ID = r'questions["a \"b\""]'


def question(**fields: Any) -> dict[str, Any]:
    return {"questions": {'a "b"': fields}}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"state": None}, "missing_state", "state"),
        ({"state": 5}, "invalid_state", "state"),
        ({"state": True}, "invalid_state", "state"),
        ({"state": "\ud800"}, "invalid_state", "state"),
        ({"state": ["\ud800"]}, "invalid_state", "state"),
        ({"questions": None}, "missing_questions", "questions"),
        ({"questions": {}}, "empty_questions", "questions"),
        ({"questions": [NOUL]}, "invalid_questions", "questions"),
        ({"questions": {"\ud800": NOUL}}, "invalid_questions", "questions"),
        ({"questions": {"q": 5}}, "invalid_questions", 'questions["q"]'),
        (question(type="box", instructions="Where?"), "unsupported_parameter", ID),
        (question(type="noul"), "invalid_questions", ID),
        (question(type="noul", criteria={"true": None}), "invalid_questions", ID),
        (question(type="noul", instructions=5), "invalid_questions", ID + ".instructions"),
        (
            question(type="noul", instructions="a", criteria=["b"]),
            "invalid_questions",
            ID + ".criteria",
        ),
        (question(type="noul", instruction="a"), "unknown_parameter", ID + ".instruction"),
        (question(type="choice"), "invalid_questions", ID),
        (question(type="choice", criteria={}), "invalid_questions", ID + ".criteria"),
        (question(type="choice", criteria={"a": None}), "invalid_questions", ID + ".criteria"),
        (
            question(type="choice", criteria={"a": 1, "b": 2}),
            "invalid_questions",
            ID + '.criteria["a"]',
        ),
        (question(type="score", criteria={"0": "a", "1": "b"}), "invalid_questions", ID + ".criteria"),
        (question(type="score", criteria=["a"]), "invalid_questions", ID + ".criteria"),
        (question(type="score", criteria=["a", None]), "invalid_questions", ID + ".criteria[1]"),
        (
            question(type="noul", instructions="a", x_abstain_below=True),
            "invalid_questions",
            ID + ".x_abstain_below",
        ),
        (
            question(type="noul", instructions="a", x_abstain_below=1.5),
            "invalid_questions",
            ID + ".x_abstain_below",
        ),
        ({"model": "other"}, "model_not_found", "model"),
        ({"assets": {"a": {"type": "image"}}}, "unsupported_parameter", "assets"),
        ({"x_on_error": "skip"}, "invalid_x_on_error", "x_on_error"),
        ({"x_choice_order": "any"}, "invalid_x_choice_order", "x_choice_order"),
        ({"x_cache_salt": 5}, "invalid_x_cache_salt_type", "x_cache_salt"),
        ({"x_abstain_below": 2}, "invalid_x_abstain_below", "x_abstain_below"),
    ],
)
def test_what_is_wrong_is_named(tokenizer: Tokenizer, fields: Any, code: str, param: str) -> None:
    error = refusal(tokenizer, **fields)
    assert (error.code, error.param) == (code, param)


def test_unknown_fields_are_ignored(tokenizer: Tokenizer) -> None:
    questions = {"n": NOUL | {"x_note": 1}}
    assert texts(parse(tokenizer, questions=questions, x_trace_id="a", seed=7, provider={})) == texts(
        parse(tokenizer, questions={"n": NOUL})
    )


def test_deep_json_is_refused(tokenizer: Tokenizer) -> None:
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    assert refusal(tokenizer, state=deep).code == "invalid_state"
    assert len(prompts(tokenizer, parse(tokenizer, state=[0] * 1500, questions={"n": NOUL}))) == 1


@pytest.mark.parametrize(
    ("limits", "fields", "code", "param"),
    [
        (Limits(context_length=4000, vocab_size=5000, max_items=2), {}, "too_many_items", "questions"),
        (Limits(context_length=4000, vocab_size=5000, max_labels=2), {}, "too_many_labels", "questions"),
        (Limits(context_length=40, vocab_size=5000), {}, "context_length_exceeded", "questions"),
        (Limits(context_length=40, vocab_size=5000), {"state": "a b " * 50}, "context_length_exceeded", "state"),
        (Limits(context_length=4000, vocab_size=5000, max_request_tokens=20), {}, "too_many_tokens", "questions"),
        (
            Limits(context_length=4000, vocab_size=5000, max_text_characters=50),
            {"state": "a" * 99, "questions": {"n": NOUL}},
            "too_many_tokens",
            "state",
        ),
    ],
)
def test_limits_are_those_of_decisions(
    tokenizer: Tokenizer, limits: Limits, fields: Any, code: str, param: str
) -> None:
    error = refusal(tokenizer, limits, **fields)
    assert (error.code, error.param) == (code, param)


@pytest.mark.full
def test_400_questions_of_255_options_are_asked_or_refused(tokenizer: Tokenizer) -> None:
    backend = tokenizers.Tokenizer.from_str(tokenizer._backend.to_str())
    backend.add_tokens(["".join(pair) for pair in itertools.product(string.ascii_uppercase, repeat=2)])
    with_codes = Tokenizer(backend, tokenizer.chat_template)
    state = " ".join(["rain"] * 32_000)
    criteria = {f"option {number}": None for number in range(255)}
    questions = {str(number): {"type": "choice", "criteria": criteria} for number in range(400)}
    limits = Limits(context_length=40_000, vocab_size=5000)
    (request,) = parse(with_codes, limits, state=state, questions=questions).requests
    assert len(request.query) >= 32_000
    assert request.label_ids.shape == (400, 255)
    assert len(request.query) + request.item_starts[-1] <= limits.max_request_tokens
    assert request.item_starts[-1] < 400 * 5000  # the state is in none of them
    many = refusal(with_codes, limits, state=state, questions=questions, x_choice_order="independent")
    assert (many.code, many.param) == ("too_many_tokens", "questions")
    short = refusal(with_codes, Limits(context_length=32_000, vocab_size=5000), state=state, questions=questions)
    assert short.code == "context_length_exceeded"


KIND_FIRST = (
    "[{{ question.type }}] {{ state }}\n{{ question.instructions }}\n"
    "{% for option in question.options %}{{ question.labels[loop.index0] }}) {{ option }}\n{% endfor %}<|mark|>"
)


def test_questions_of_a_kind_share_a_state_after_the_kind(tokenizer: Tokenizer) -> None:
    asked = copy.copy(tokenizer)
    asked.decision = DecisionContract(ChatTemplate(KIND_FIRST), in_chat=False, labels={"noul": ["A", "B"]})
    kinds = {"n": NOUL, "c": CHOICE, "s": SCORE}
    questions = {f"{kind}{number}": fields for number in range(3) for kind, fields in kinds.items()}
    state = "Rain falls on the plain. " * 20
    parsed = parse(asked, state=state, questions=questions)
    assert parsed.asked.members == ((0, 3, 6), (1, 4, 7), (2, 5, 8))
    assert all(request.context_lens.min() > 50 for request in parsed.requests)
    assert [request.num_items for request in parsed.requests] == [3, 3, 3]
    outputs = []
    for request in parsed.requests:  # a value that says which question it is of
        sizes = np.diff(request.item_starts) + request.context_lens
        values = np.where(request.label_ids >= 0, sizes[:, None] + request.label_ids % 7, 0).astype(np.float32)
        outputs.append(EngineOutput(values, np.full(len(values), 99, np.float32), cached_tokens=1))
    together = finish_system_one(parsed, tuple(outputs))
    assert list(together.answers) == list(questions)
    assert together.usage.x_cached_tokens == 3
    assert [answer.type for answer in together.answers.values()] == ["noul", "choice", "score"] * 3
    one = parse(asked, state=state, questions={"n0": NOUL})
    (request,) = one.requests
    assert parsed.requests[0].label_ids[0].tolist() == request.label_ids[0].tolist()


def test_groups_refuse_questions_by_themselves(tokenizer: Tokenizer) -> None:
    asked = copy.copy(tokenizer)
    asked.decision = DecisionContract(ChatTemplate(KIND_FIRST), in_chat=False, labels={"noul": ["A", "B"]})
    long = {"type": "noul", "instructions": "wet " * 5000}
    questions = {"a": NOUL, "b": long, "c": CHOICE, "d": NOUL, "e": {"type": "box"}}
    parsed = parse(asked, state="Rain falls. " * 40, questions=questions, x_on_error="item")
    assert sorted(index for group in parsed.asked.members for index in group) == [0, 2, 3]
    outputs = tuple(
        EngineOutput(np.zeros(request.label_ids.shape, np.float32), np.full(request.num_items, 9, np.float32))
        for request in parsed.requests
    )
    result = finish_system_one(parsed, outputs)
    assert list(result.answers) == ["a", "c", "d"]
    assert list(result.x_errors) == ["b", "e"]  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(RequestError, match="tokens together"):
        parse(asked, state="Rain falls. " * 40, questions={"a": NOUL, "b": long, "c": CHOICE})


STRANGERS = (
    None,  # transformers' own
    KIND_FIRST,
    "{{ state }}|{{ question.instructions }}|{{ question.options|join(' ') }}<|mark|>",
    "{{ question.name }} {{ state|tojson }} {{ question.options|join(' ') }}<|mark|>",
    "{{ (state|string)[:9] }}{{ '!' if question.type == 'noul' }} {{ question.instructions }} {{ state }}<|mark|>",
)


STATES: list[Any] = ["Rain.", "wet|wet Is it wet?", "\u2047state\u2047", "<|im_end|> |", ["Rain", 1], {"a": "|"}]


@given(
    template=st.sampled_from(STRANGERS),
    state=st.sampled_from(
        ["Rain.", "wet|wet Is it wet?", "\u2047state\u2047", "<|im_end|> |", ["Rain", 1], {"a": "|"}]
    ),
    chosen=st.permutations([*QUESTIONS, "m", "w"]).flatmap(
        lambda names: st.integers(1, 5).map(lambda count: names[:count])
    ),
)
def test_where_a_prompt_is_cut_depends_on_no_other_question(
    tokenizer: Tokenizer, template: str | None, state: Any, chosen: list[str]
) -> None:
    asked = copy.copy(tokenizer)
    labels = {"noul": ["A", "B"], "choice": ["A", "B", "C"], "score": ["A", "B", "C"]}
    contract = DecisionContract.generic()
    asked.decision = msgspec.structs.replace(contract, labels=labels)
    if template is not None:
        asked.decision = DecisionContract(ChatTemplate(template), in_chat=False, labels=labels)
    others = {"m": NOUL | {"instructions": "Is it wet, or not?"}, "w": NOUL | {"instructions": "\u2047state\u2047?"}}
    questions = {name: (QUESTIONS | others)[name] for name in chosen}
    together = segments(parse(asked, state=state, questions=questions))
    for name, question in questions.items():
        assert segments(parse(asked, state=state, questions={name: question})) == {0: together[chosen.index(name)]}


def segments(parsed: ParsedSystemOne) -> dict[int, tuple[list[int], list[int]]]:
    """Of each question what it sees of the query, and its own tokens."""
    found = {}
    for request, group in zip(parsed.requests, parsed.asked.members, strict=True):
        for row, index in enumerate(group):
            own = request.item_tokens[request.item_starts[row] : request.item_starts[row + 1]]
            found[index] = request.query[: request.context_lens[row]].tolist(), own.tolist()
    return found
