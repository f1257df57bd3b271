"""Decisions on the host: which prompts and labels the engine is given, and what its values become."""

import dataclasses
import itertools
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from mis_core.config import ChoiceOrder
from mis_core.errors import RequestError
from mis_core.requests import EngineOutput, ScoreRequest
from mis_core.tasks.decide.answers import ChoiceAnswer, PredicateAnswer, RefusalAnswer, ScoreAnswer
from mis_core.tasks.decide.asked import AskedQuestion
from mis_core.tasks.decide.task import ParsedDecision, finish_decision, parse_decision
from mis_core.tasks.fields.item_errors import ItemError
from mis_core.tasks.limits import Limits
from mis_core.tokenization import Tokenizer
from mis_core.tokenization.chat_template import ChatTemplate

LIMITS = Limits(context_length=4000, vocab_size=5000)

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
TRIMMING = CHATML.replace("m.content", "m.content | trim")
SHOUTING = CHATML.replace("m.content", "m.content | upper")
LLAMA2 = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ ' ' + m.content + ' ' }}{% endif %}"
    "{% endfor %}"
)
QUESTION_ONLY = "{{ messages[-1].content }}"
TEMPLATES = {
    "verbatim": ("qwen", CHATML),
    "trimming": ("qwen", TRIMMING),
    "changing": ("qwen", SHOUTING),
    "alternating": ("llama2", LLAMA2),
    "question only": ("llama3", QUESTION_ONLY),
    "none": ("gemma", None),
}

PREDICATE = {"type": "predicate", "name": "animals", "instructions": "The text is about animals."}
CHOICE = {
    "type": "choice",
    "instructions": [{"type": "input_text", "text": "Which"}, {"type": "input_json", "data": {"animal": "?"}}],
    "choices": [{"value": "dog"}, {"value": True, "description": "yes"}, {"value": "true"}, {"value": "a\nb"}],
}
SCORE = {
    "type": "score",
    "name": None,
    "instructions": "How good is it?",
    "levels": [{"label": "bad"}, {"label": "ok", "description": "so so"}, {"label": "good"}],
}
QUESTIONS = [PREDICATE, CHOICE, SCORE]
MESSAGES = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": " The quick brown fox. "},
    {"role": "assistant", "content": "Yes."},
]

PREDICATE_TEXT = """About all of the above:

The text is about animals.

Is that true? Answer {} or {}, and with nothing else."""
CHOICE_TEXT = """About all of the above:

Which
{{"animal":"?"}}

Options:
{}. dog
{}. true: yes
{}. "true"
{}. a
b

Answer with the code of exactly one of them, and with nothing else."""
SCORE_TEXT = """About all of the above:

How good is it?

Levels, from the lowest to the highest:
{}. bad
{}. ok: so so
{}. good

Answer with the code of exactly one of them, and with nothing else."""


@pytest.fixture(scope="module", params=TEMPLATES)
def tokenizer(small_tokenizer, request) -> Tokenizer:
    return with_template(small_tokenizer, *TEMPLATES[request.param])


@pytest.fixture(scope="module")
def plain(small_tokenizer) -> Tokenizer:
    """The tokenizer with a usual template."""
    return with_template(small_tokenizer, "qwen", CHATML)


def with_template(small_tokenizer: Any, kind: str, template: str | None) -> Tokenizer:
    return Tokenizer(small_tokenizer(kind), None if template is None else ChatTemplate(template))


def parse(tokenizer: Tokenizer, limits: Limits = LIMITS, **fields: Any) -> ParsedDecision:
    return parse_decision({"input": "The quick brown fox.", "questions": QUESTIONS} | fields, tokenizer, limits, ("m",))


def refusal(tokenizer: Tokenizer, limits: Limits = LIMITS, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as refused:
        parse(tokenizer, limits, **fields)
    assert len(refused.value.message) < 500
    return refused.value


def request_of(parsed: ParsedDecision) -> ScoreRequest:
    (request,) = parsed.requests
    return request


def sequences(parsed: ParsedDecision) -> list[list[int]]:
    """Every prompt, context first."""
    request = request_of(parsed)
    segments = itertools.pairwise(request.item_starts)
    return [
        [*request.query[:context].tolist(), *request.item_tokens[begin:end].tolist()]
        for context, (begin, end) in zip(request.context_lens, segments, strict=True)
    ]


def prompt(tokenizer: Tokenizer, question: str, messages: list[dict[str, Any]]) -> str:
    """What a prompt must be, rendered whole."""
    template = tokenizer.chat_template
    single = len(messages) == 1
    above = "\n\n".join(m["content"] if single else f"{m['role'].capitalize()}: {m['content']}" for m in messages)
    if template is None:
        return f"{above}\n\n{question}\n\nAnswer:"
    try:
        return template.render([*messages, {"role": "user", "content": question}], enable_thinking=False)
    except RequestError:
        return template.render([{"role": "user", "content": f"{above}\n\n{question}"}], enable_thinking=False)


def prompts(tokenizer: Tokenizer, parsed: ParsedDecision, messages: list[dict[str, Any]]) -> list[str]:
    """What the prompts of `QUESTIONS` must be."""
    texts = (PREDICATE_TEXT, CHOICE_TEXT, SCORE_TEXT)
    labels = [asked.labels[0] for asked in parsed.asked.questions if isinstance(asked, AskedQuestion)]
    return [prompt(tokenizer, text.format(*own), messages) for text, own in zip(texts, labels, strict=True)]


FOX = [{"role": "user", "content": "The quick brown fox."}]


@pytest.mark.parametrize("messages", [FOX, MESSAGES])
def test_prompts_are_what_the_template_makes_of_each_question(tokenizer: Tokenizer, messages: Any) -> None:
    parsed = parse(tokenizer, input=messages)
    wanted = prompts(tokenizer, parsed, messages)
    assert sequences(parsed) == [tokenizer.encode(text, add_special_tokens=False).tolist() for text in wanted]
    if tokenizer.chat_template != ChatTemplate(QUESTION_ONLY):
        least = len(tokenizer.encode(messages[0]["content"], add_special_tokens=False))
        assert request_of(parsed).context_lens.min() >= least


def test_every_label_is_the_one_token_that_follows_the_prompt(tokenizer: Tokenizer) -> None:
    parsed = parse(tokenizer, input=FOX)
    lead = " " if tokenizer.chat_template in (None, ChatTemplate(LLAMA2)) else ""
    rows = zip(prompts(tokenizer, parsed, FOX), request_of(parsed).label_ids, parsed.asked.questions, strict=True)
    for before, ids, asked in rows:
        assert isinstance(asked, AskedQuestion)
        texts, tokens = asked.labels
        assert len(texts) == len(set(tokens.tolist())) == (len(asked.question.options) or 2)
        assert ids.tolist() == [*tokens, *[-1] * (4 - len(tokens))]
        for text, token in zip(texts, tokens, strict=True):
            behind = tokenizer.encode(before + lead + text, add_special_tokens=False)
            assert behind.tolist() == [*tokenizer.encode(before, add_special_tokens=False), token]


def test_many_questions_render_and_tokenise_the_input_few_times(plain: Tokenizer, monkeypatch: Any) -> None:
    sizes: list[int] = []
    render = ChatTemplate.render

    def counted(self: ChatTemplate, *arguments: Any, **options: Any) -> str:
        text = render(self, *arguments, **options)
        sizes.append(len(text))
        return text

    monkeypatch.setattr(ChatTemplate, "render", counted)
    text = "The quick brown fox. " * 400
    questions = [PREDICATE | {"instructions": f"It is number {number}."} for number in range(400)]
    limits = dataclasses.replace(LIMITS, context_length=100_000, max_text_characters=100_000)
    request = request_of(parse(plain, limits, input=text, questions=questions))
    assert request.num_items == 400
    assert sum(size > len(text) for size in sizes) <= 6
    assert request.context_lens.min() > 0.9 * len(request.query)
    changing = Tokenizer(plain._backend, ChatTemplate(SHOUTING))
    assert refusal(changing, limits, input=text, questions=questions).code == "too_many_tokens"


def output(parsed: ParsedDecision, seed: int = 0) -> EngineOutput:
    """Random values that depend on the prompt and the label only."""
    rows = []
    for sequence, ids in zip(sequences(parsed), request_of(parsed).label_ids, strict=True):
        values = np.random.default_rng([seed, *sequence]).normal(size=5000).astype(np.float32)
        rows.append(values[ids])
    return EngineOutput(np.array(rows), np.full(len(rows), 9.5, np.float32), cached_tokens=3)


def test_values_become_answers(plain: Tokenizer) -> None:
    parsed = parse(plain)
    values = output(parsed)
    decision = finish_decision(pickle.loads(pickle.dumps(parsed)), (values,))
    predicate, choice, score = decision.answers
    logits = values.logits.astype(float)
    assert isinstance(predicate, PredicateAnswer)
    assert predicate.name == "animals"
    np.testing.assert_allclose(predicate.probability, softmax(logits[0, :2])[0], rtol=1e-6)
    np.testing.assert_allclose(predicate.label_mass, np.exp(logits[0, :2] - 9.5).sum(), rtol=1e-6)
    assert isinstance(choice, ChoiceAnswer)
    chosen = softmax(logits[1])
    assert [each.value for each in choice.probabilities] == ["dog", True, "true", "a\nb"]
    np.testing.assert_allclose([each.probability for each in choice.probabilities], chosen, rtol=1e-6)
    assert choice.choice is choice.probabilities[int(chosen.argmax())].value
    assert choice.confidence == choice.probabilities[int(chosen.argmax())].probability
    assert choice.name is None
    assert isinstance(score, ScoreAnswer)
    levels = softmax(logits[2, :3])
    expected = float(levels @ [0, 1, 2])
    np.testing.assert_allclose(score.score, expected, rtol=1e-6)
    spread = np.sqrt(levels @ (np.arange(3) - expected) ** 2)
    np.testing.assert_allclose(score.confidence, 1 - spread / np.sqrt(2 / 3), rtol=1e-5)
    assert [(each.label, each.value) for each in score.probabilities] == [("bad", 0), ("ok", 1), ("good", 2)]
    usage = decision.usage
    assert usage.input_tokens == usage.total_tokens == request_of(parsed).prompt_tokens
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens) == (3, 0)


@pytest.mark.parametrize(
    ("logits", "expected", "confidence"), [([9e3, 0, 0], 0, 1), ([0, 0, 0], 1, 0), ([9e3, 0, 9e3], 1, 0)]
)
def test_confidence_of_a_score_follows_how_far_apart_levels_are(
    plain: Tokenizer, logits: list[float], expected: float, confidence: float
) -> None:
    parsed = parse(plain, questions=[SCORE])
    values = EngineOutput(np.array([logits], np.float32), np.array([9e3], np.float32))
    (answer,) = finish_decision(parsed, (values,)).answers
    assert isinstance(answer, ScoreAnswer)
    np.testing.assert_allclose([answer.score, answer.confidence], [expected, confidence], atol=1e-6)
    assert answer.label_mass <= 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_no_answers(plain: Tokenizer, bad: float) -> None:
    parsed = parse(plain)
    values = output(parsed)
    values.logits[1, 0] = bad
    with pytest.raises(FloatingPointError):
        finish_decision(parsed, (values,))


def choice_of(values: list[Any]) -> dict[str, Any]:
    return {"type": "choice", "instructions": "Which?", "choices": [{"value": value} for value in values]}


READINGS: dict[ChoiceOrder, Callable[[int], int]] = {
    "sorted": lambda count: 1,
    "reversed": lambda count: 2,
    "independent": lambda count: min(count, 8),
}
"""How often a choice of so many options is read where the order they are given in has no influence."""


@pytest.mark.parametrize("choice_order", READINGS)
@settings(max_examples=15, deadline=None)
@given(
    values=st.lists(
        st.booleans() | st.text("abc é", max_size=3), min_size=2, max_size=12, unique_by=lambda v: (type(v), v)
    ),
    order=st.randoms(use_true_random=False),
)
def test_an_answer_is_the_same_in_every_order(
    plain: Tokenizer, choice_order: ChoiceOrder, values: list[Any], order: Any
) -> None:
    def ask(values: list[Any]) -> tuple[ParsedDecision, ChoiceAnswer, dict[Any, float]]:
        parsed = parse(plain, questions=[choice_of(values)], choice_order=choice_order)
        (answer,) = finish_decision(parsed, (output(parsed),)).answers
        assert isinstance(answer, ChoiceAnswer)
        assert [each.value for each in answer.probabilities] == values
        return parsed, answer, {(type(p.value), p.value): p.probability for p in answer.probabilities}

    shuffled = order.sample(values, len(values))
    parsed, answer, probabilities = ask(values)
    other_parsed, other, others = ask(shuffled)
    assert sequences(parsed) == sequences(other_parsed)
    assert len(sequences(parsed)) == READINGS[choice_order](len(values))
    assert probabilities == others
    assert (answer.choice, type(answer.choice), answer.confidence) == (
        other.choice,
        type(other.choice),
        other.confidence,
    )
    np.testing.assert_allclose(sum(probabilities.values()), 1, rtol=1e-6)


@pytest.mark.parametrize("choice_order", READINGS)
@settings(max_examples=10, deadline=None)
@given(labels=st.lists(st.text("abc é", max_size=3), min_size=2, max_size=10))
def test_a_score_of_reversed_levels_is_the_mirrored_one(
    plain: Tokenizer, choice_order: ChoiceOrder, labels: list[str]
) -> None:
    def ask(labels: list[str]) -> tuple[ParsedDecision, ScoreAnswer]:
        question = {"type": "score", "instructions": "How?", "levels": [{"label": label} for label in labels]}
        parsed = parse(plain, questions=[question], choice_order=choice_order)
        (answer,) = finish_decision(parsed, (output(parsed),)).answers
        assert isinstance(answer, ScoreAnswer)
        return parsed, answer

    (parsed, there), (other_parsed, back) = ask(labels), ask(labels[::-1])
    assert sequences(parsed) == sequences(other_parsed)[::-1]
    assert all("lowest" not in text for each in parsed.asked.questions for text in each.texts)
    assert [each.probability for each in there.probabilities] == [each.probability for each in back.probabilities][::-1]
    assert there.label_mass == back.label_mass
    np.testing.assert_allclose(there.score, len(labels) - 1 - back.score, rtol=0, atol=1e-12)
    np.testing.assert_allclose(there.confidence, back.confidence, rtol=0, atol=1e-12)


def test_the_server_sets_the_order_unless_the_request_does(plain: Tokenizer) -> None:
    given = [choice_of(["c", "a"]), SCORE]
    limits = dataclasses.replace(LIMITS, choice_order="reversed")
    assert request_of(parse(plain, questions=given)).num_items == 2
    assert request_of(parse(plain, limits, questions=given)).num_items == 4
    assert request_of(parse(plain, limits, questions=given, choice_order=None)).num_items == 4
    assert request_of(parse(plain, limits, questions=given, choice_order="sorted")).num_items == 3
    assert request_of(parse(plain, limits, questions=given, choice_order="given")).num_items == 2


def test_an_independent_answer_is_the_mean_over_rotations(plain: Tokenizer) -> None:
    parsed = parse(plain, questions=[PREDICATE, choice_of(["c", "a", "b"]), SCORE], choice_order="independent")
    assert request_of(parsed).num_items == 1 + 3 + 2
    values = output(parsed)
    answer = finish_decision(parsed, (values,)).answers[1]
    assert isinstance(answer, ChoiceAnswer)
    rows = softmax(values.logits[1:4, :3].astype(float), axis=1)  # read as abc, bca, cab
    mean = {"a": rows[[0, 1, 2], [0, 2, 1]].mean(), "b": rows[[0, 1, 2], [1, 0, 2]].mean()}
    mean["c"] = rows[[0, 1, 2], [2, 1, 0]].mean()
    for each in answer.probabilities:
        np.testing.assert_allclose(each.probability, mean[str(each.value)], rtol=1e-6)
    np.testing.assert_allclose(answer.label_mass, np.exp(values.logits[1:4, :3] - 9.5).sum(1).mean(), rtol=1e-6)


def many_codes(tokenizer: Tokenizer, count: int) -> Tokenizer:
    """The tokenizer with so many two-letter codes more."""
    backend = tokenizers.Tokenizer.from_str(tokenizer._backend.to_str())
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    backend.add_tokens(["".join(pair) for pair in itertools.product(letters, letters)][:count])
    return Tokenizer(backend, tokenizer.chat_template)


def test_255_choices_have_a_code_each_if_the_vocabulary_has_them(plain: Tokenizer) -> None:
    values = [f"choice {number}" for number in range(255)]
    parsed = parse(many_codes(plain, 300), questions=[choice_of(values), choice_of(["a", "b"])])
    many, few = (asked.labels[0] for asked in parsed.asked.questions if isinstance(asked, AskedQuestion))
    assert (many[:28:9], few) == (["A", "J", "S", "AB"], ["A", "B"])
    ids = request_of(parsed).label_ids
    assert (len(set(ids[0].tolist())), ids[0].min() >= 0) == (255, True)
    assert set(ids[1, 2:].tolist()) == {-1}
    error = refusal(plain, questions=[PREDICATE, choice_of(values)])
    assert (error.code, error.param) == ("too_few_label_tokens", "questions")
    assert "questions[1]" in error.message
    with_few = dataclasses.replace(LIMITS, vocab_size=40)  # tokens of the tokenizer that the model has not
    assert refusal(plain, with_few, questions=[PREDICATE]).code == "too_few_label_tokens"


LONG = PREDICATE | {"name": "long", "instructions": "fox " * 5000}


def test_single_questions_may_be_refused(plain: Tokenizer) -> None:
    bad = {"type": "choice", "name": "bad", "instructions": "a", "choices": []}
    parsed = parse(plain, questions=[LONG, PREDICATE, bad, 7, SCORE], on_error="item")
    alone = parse(plain, questions=[PREDICATE, SCORE])
    assert sequences(parsed) == sequences(alone)
    decision = finish_decision(parsed, (output(parsed),))
    assert [answer.type for answer in decision.answers] == ["refusal", "predicate", "refusal", "refusal", "score"]
    refused = [answer for answer in decision.answers if isinstance(answer, RefusalAnswer)]
    assert [answer.name for answer in refused] == ["long", "bad", None]
    assert [answer.error.code for answer in refused] == [
        "context_length_exceeded",
        "invalid_questions",
        "invalid_questions",
    ]
    assert decision.answers[1::3] == finish_decision(alone, (output(alone),)).answers
    assert refusal(plain, questions=[LONG, PREDICATE]).code == "context_length_exceeded"


def test_where_all_questions_are_refused_nothing_is_computed(plain: Tokenizer) -> None:
    parsed = parse(plain, questions=[LONG, 7], on_error="item")
    assert parsed.requests == ()
    decision = finish_decision(parsed, ())
    assert [answer.type for answer in decision.answers] == ["refusal", "refusal"]
    assert decision.usage.total_tokens == 0


def test_caches_are_apart_by_salt_and_key(plain: Tokenizer) -> None:
    salts = [
        request_of(parse(plain, cache_salt=salt, prompt_cache_key=key)).cache_salt
        for salt, key in [(None, None), ("a", None), (None, "a"), ("a", "b"), ("b", "a"), ("ab", "")]
    ]
    assert salts[:2] == [None, "a"]
    assert len(set(salts)) == len(salts)
    assert request_of(parse(plain, cache_salt="a", prompt_cache_key="b")).cache_salt == salts[3]


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "m"},
        {"model": None, "cache_salt": None, "prompt_cache_key": None},
        {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}, "safety_identifier": "someone"},
        {"prompt_cache_options": None, "safety_identifier": None},
        {"on_error": "request", "choice_order": "given"},
    ],
)
def test_fields_without_effect_are_accepted(plain: Tokenizer, fields: dict[str, Any]) -> None:
    assert sequences(parse(plain, **fields)) == sequences(parse(plain))


CHOICES = "questions[0].choices"
SMALL = dataclasses.replace(LIMITS, max_items=2, max_labels=3, max_request_tokens=200, max_text_characters=2000)
NO_TEXT = dataclasses.replace(LIMITS, max_text_characters=10)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"temperature": 1}, "unknown_parameter", "temperature"),
        ({"model": "other"}, "model_not_found", "model"),
        ({"model": 7}, "invalid_model_type", "model"),
        ({"input": None}, "missing_input", "input"),
        ({"questions": None}, "missing_questions", "questions"),
        ({"questions": []}, "empty_questions", "questions"),
        ({"questions": PREDICATE}, "invalid_questions", "questions"),
        ({"questions": [PREDICATE] * 401}, "too_many_items", "questions"),
        ({"questions": [PREDICATE, 7]}, "invalid_questions", "questions[1]"),
        ({"questions": [{"type": "joint"}]}, "invalid_questions", "questions[0].type"),
        ({"questions": [{"type": "predicate"}]}, "invalid_questions", "questions[0]"),
        ({"questions": [PREDICATE | {"choices": []}]}, "unknown_parameter", "questions[0].choices"),
        ({"questions": [PREDICATE | {"name": 7}]}, "invalid_questions", "questions[0].name"),
        ({"questions": [PREDICATE | {"instructions": 7}]}, "invalid_questions", "questions[0].instructions"),
        (
            {"questions": [PREDICATE, PREDICATE | {"instructions": [{"type": "input_image", "image_url": "x"}]}]},
            "unsupported_parameter",
            "questions[1].instructions[0]",
        ),
        ({"questions": [choice_of(["a"])]}, "invalid_questions", CHOICES),
        ({"questions": [choice_of([str(n) for n in range(256)])]}, "invalid_questions", CHOICES),
        ({"questions": [choice_of(["a", "a"])]}, "invalid_questions", f"{CHOICES}[1].value"),
        ({"questions": [choice_of([True, True])]}, "invalid_questions", f"{CHOICES}[1].value"),
        ({"questions": [choice_of(["a", 7])]}, "invalid_questions", f"{CHOICES}[1].value"),
        ({"questions": [CHOICE | {"choices": ["a", "b"]}]}, "invalid_questions", f"{CHOICES}[0]"),
        ({"questions": [SCORE | {"levels": [{"label": "a"}]}]}, "invalid_questions", "questions[0].levels"),
        ({"questions": [SCORE | {"levels": [{"label": "a"}] * 11}]}, "invalid_questions", "questions[0].levels"),
        ({"choice_order": "any"}, "invalid_choice_order", "choice_order"),
        ({"on_error": "ignore"}, "invalid_on_error", "on_error"),
        ({"cache_salt": 7}, "invalid_cache_salt_type", "cache_salt"),
        ({"prompt_cache_key": 7}, "invalid_prompt_cache_key", "prompt_cache_key"),
        ({"prompt_cache_options": "x"}, "invalid_prompt_cache_options", "prompt_cache_options"),
        ({"safety_identifier": 7}, "invalid_safety_identifier", "safety_identifier"),
        ({"input": "fox " * 5000}, "context_length_exceeded", "input"),
        ({"input": "fox " * 5000, "on_error": "item"}, "context_length_exceeded", "input"),
        ({"questions": [PREDICATE, LONG]}, "context_length_exceeded", "questions"),
        ({"limits": SMALL, "questions": QUESTIONS}, "too_many_items", "questions"),
        ({"limits": SMALL, "questions": [CHOICE]}, "too_many_labels", "questions"),
        ({"limits": SMALL, "questions": [SCORE], "input": "fox " * 250}, "too_many_tokens", "questions"),
        ({"limits": dataclasses.replace(LIMITS, max_scores=11)}, "too_many_labels", "questions"),
        ({"limits": NO_TEXT}, "too_many_tokens", "questions"),
        ({"limits": NO_TEXT, "input": "fox " * 50}, "too_many_tokens", "input"),
    ],
)
def test_what_is_wrong_is_named(plain: Tokenizer, fields: dict[str, Any], code: str, param: str) -> None:
    error = refusal(plain, **fields)
    assert (error.code, error.param) == (code, param)
    assert pickle.loads(pickle.dumps(error)).code == code


def test_a_template_that_refuses_everything_is_an_input_error(small_tokenizer) -> None:
    broken = with_template(small_tokenizer, "qwen", "{{ raise_exception('Never.') }}")
    error = refusal(broken)
    assert (error.code, error.param) == ("invalid_input", "input")
    assert "Never." in error.message


def test_a_model_with_a_classification_head_decides_nothing(plain: Tokenizer) -> None:
    error = refusal(plain, dataclasses.replace(LIMITS, head_labels=("good", "bad")))
    assert (error.code, error.param) == ("task_not_supported", "model")
    assert "classification head" in error.message


def test_without_a_tokenizer_there_are_no_decisions() -> None:
    with pytest.raises(RequestError) as refused:
        parse_decision({"input": "a", "questions": [PREDICATE]}, None, LIMITS)
    assert refused.value.code == "task_not_supported"


words = st.text("aé \n<|", max_size=6)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "input_json", "input_image"]) | anything},
    optional={"text": words, "data": anything, "image_url": words},
)
contents = words | st.lists(parts, max_size=2) | anything
entries = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "function_call", "function_call_output"]) | anything,
        "role": st.sampled_from(["user", "assistant", "system", "developer"]) | anything,
        "content": contents,
        "call_id": words,
        "name": words,
        "arguments": words,
        "output": contents,
        "phase": anything,
    },
)
options = st.lists(
    st.fixed_dictionaries({}, optional={"value": words, "label": words, "description": words}), max_size=4
)
questions = st.fixed_dictionaries(
    {"type": st.sampled_from(["predicate", "choice", "score"])},
    optional={"instructions": contents, "choices": options, "levels": options, "name": words},
)
bodies = st.fixed_dictionaries(
    {
        "input": words | st.lists(entries, max_size=3) | anything,
        "questions": st.lists(questions | anything, max_size=3),
    },
    optional={
        "choice_order": st.sampled_from(["given", "independent"]) | anything,
        "on_error": st.sampled_from(["request", "item"]) | anything,
        "prompt_cache_key": words | anything,
        "cache_salt": words | anything,
        "other": anything,
    },
)


@settings(max_examples=150, deadline=None)
@given(body=bodies)
def test_any_body_is_a_request_or_an_error_of_the_contract(plain: Tokenizer, body: dict[str, Any]) -> None:
    try:
        parsed = parse_decision(json.loads(json.dumps(body)), plain, LIMITS)
    except RequestError as error:
        refused = error
    else:
        check_request(parsed)
        outputs = (output(parsed),) if parsed.requests else ()
        assert len(finish_decision(parsed, outputs).answers) == len(body["questions"])
        return
    assert refused.code
    assert refused.param
    assert 0 < len(refused.message) < 600


def check_request(parsed: ParsedDecision) -> None:
    if not parsed.requests:
        assert all(isinstance(each, ItemError) for each in parsed.asked.questions)
        return
    request = request_of(parsed)
    assert request.item_starts[-1] == len(request.item_tokens)
    assert (np.diff(request.item_starts) > 0).all()
    assert ((request.context_lens >= 0) & (request.context_lens <= len(request.query))).all()
