"""Decisions are what transformers on PyTorch computes for the rendered prompt, alone and beside anything else."""

import asyncio
import itertools
import string
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from transformers import AutoTokenizer

from mis_core import Engine
from mis_core.tasks.decide.answers import ChoiceAnswer, PredicateAnswer, ScoreAnswer
from mis_core.tasks.decide.task import DECIDE
from mis_testing import tiny_checkpoint
from mis_testing.options import SMALL_ENGINE
from mis_testing.tolerances import TINY_PROBABILITIES

pytestmark = pytest.mark.parity

INPUT = "A cat sleeps on the warm mat. Rain falls, and nobody minds."
MESSAGES = [
    {"role": "developer", "content": "Judge texts."},
    {"role": "user", "content": [{"type": "input_text", "text": INPUT}, {"type": "input_json", "data": {"a": 1}}]},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "It does."},
]
VALUES = ["cat", "dog", True, "rain"]
PREDICATE = {"type": "predicate", "instructions": "It is about animals."}
CHOICE = {"type": "choice", "instructions": "Which?", "choices": [{"value": value} for value in VALUES]}
SCORE = {"type": "score", "instructions": "How wet?", "levels": [{"label": label} for label in ("dry", "damp", "wet")]}
MANY = {"type": "choice", "instructions": "Which?", "choices": [{"value": f"number {n}"} for n in range(255)]}

TEXTS = [
    "About all of the above:\n\nIt is about animals.\n\nIs that true? Answer Yes or No, and with nothing else.",
    "About all of the above:\n\nWhich?\n\nOptions:\nA. cat\nB. dog\nC. true\nD. rain\n\n"
    "Answer with the code of exactly one of them, and with nothing else.",
    "About all of the above:\n\nHow wet?\n\nLevels, from the lowest to the highest:\nA. dry\nB. damp\nC. wet\n\n"
    "Answer with the code of exactly one of them, and with nothing else.",
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose vocabulary has every code of two capital letters."""
    path = tiny_checkpoint(tmp_path_factory.mktemp("decisions"), "qwen3", vocab_size=2048)
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    tokenizer.add_tokens(["".join(pair) for pair in itertools.product(string.ascii_uppercase, repeat=2)])
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def decider(path: Path) -> Iterator[Engine]:
    with Engine.from_pretrained(path, progress=False, **SMALL_ENGINE) as engine:
        yield engine
        engine.check()


@pytest.fixture(scope="module")
def label_logprobs(path: Path, oracle_factory: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """`label_logprobs(messages, question, labels)`: of the whole prompt, by transformers."""
    oracle, theirs = oracle_factory(path, "float32"), AutoTokenizer.from_pretrained(path)

    def compute(messages: list[dict[str, str]], question: str, labels: list[str]) -> np.ndarray:
        asked = [*messages, {"role": "user", "content": question}]
        ids = theirs.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)["input_ids"]
        return oracle.label_logprobs([ids], theirs.convert_tokens_to_ids(labels))[0].astype(np.float64)

    return compute


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        (INPUT, [{"role": "user", "content": INPUT}]),
        (
            MESSAGES,
            [
                {"role": "system", "content": "Judge texts."},
                {"role": "user", "content": f'{INPUT}\n{{"a":1}}'},
                {"role": "assistant", "content": "Call c of look:\n{}"},
                {"role": "user", "content": "Output c of look:\nIt does."},
            ],
        ),
    ],
)
def test_answers_are_the_probabilities_of_the_rendered_prompt(
    decider: Engine, label_logprobs: Any, given: Any, messages: Any
) -> None:
    predicate, choice, score = decider.decide(given, [PREDICATE, CHOICE, SCORE]).answers
    assert isinstance(predicate, PredicateAnswer)
    assert isinstance(choice, ChoiceAnswer)
    assert isinstance(score, ScoreAnswer)
    probabilities = [
        [predicate.probability, 1 - predicate.probability],
        [each.probability for each in choice.probabilities],
        [each.probability for each in score.probabilities],
    ]
    labels = [["Yes", "No"], list("ABCD"), list("ABC")]
    masses = [predicate.label_mass, choice.label_mass, score.label_mass]
    for text, names, ours, mass in zip(TEXTS, labels, probabilities, masses, strict=True):
        theirs = label_logprobs(messages, text, names)
        np.testing.assert_allclose(ours, softmax(theirs), atol=TINY_PROBABILITIES)
        np.testing.assert_allclose(mass, np.exp(theirs).sum(), atol=TINY_PROBABILITIES)
    assert choice.choice == VALUES[int(np.argmax(probabilities[1]))]
    np.testing.assert_allclose(score.score, np.dot(probabilities[2], [0, 1, 2]), rtol=1e-6)


def test_255_choices_are_answered(decider: Engine, label_logprobs: Any) -> None:
    (answer,) = decider.decide(INPUT, [MANY]).answers
    assert isinstance(answer, ChoiceAnswer)
    pairs = map("".join, itertools.product(string.ascii_uppercase, repeat=2))
    codes = [*string.ascii_uppercase, *itertools.islice(pairs, 255 - 26)]
    options = "\n".join(f"{code}. number {n}" for n, code in enumerate(codes))
    text = TEXTS[1].replace("A. cat\nB. dog\nC. true\nD. rain", options)
    theirs = label_logprobs([{"role": "user", "content": INPUT}], text, codes)
    np.testing.assert_allclose(
        [each.probability for each in answer.probabilities], softmax(theirs), atol=TINY_PROBABILITIES
    )


def test_a_probability_is_the_score_with_softmax_over_the_labels(decider: Engine) -> None:
    parsed = DECIDE.parse({"input": INPUT, "questions": [CHOICE]}, decider.tokenizer, decider.limits, None)
    (request,) = parsed.requests
    scored = decider.score(
        request.query[: request.context_lens[0]].tolist(),
        [request.item_tokens.tolist()],
        request.label_ids[0].tolist(),
        apply_softmax=True,
    )
    (answer,) = decider.decide(INPUT, [CHOICE]).answers
    assert isinstance(answer, ChoiceAnswer)
    assert [each.probability for each in answer.probabilities] == scored.scores[0].tolist()


def test_answers_have_the_same_bits_alone_and_among_others(decider: Engine) -> None:
    asked = {"input": MESSAGES, "questions": [PREDICATE, CHOICE, SCORE], "choice_order": "independent"}
    alone = decider.decide(**asked)

    def disturb(number: int) -> Any:
        if number % 2:
            return decider.score([1, 2, number], [[number] * 40] * 9, [5, 9])
        return decider.decide(INPUT * (number % 4) + INPUT, [PREDICATE, CHOICE] * (number // 2) + [SCORE])

    with ThreadPoolExecutor(17) as threads:
        others = [threads.submit(disturb, number) for number in range(16)]
        among = [threads.submit(decider.decide, **asked) for _ in range(2)]
        assert [each.result().answers for each in among] == [alone.answers] * 2
        for each in others:
            each.result()
    upside_down = SCORE | {"levels": SCORE["levels"][::-1]}
    (there,), (back,) = (decider.decide(**asked | {"questions": [each]}).answers for each in (SCORE, upside_down))
    assert isinstance(there, ScoreAnswer)
    assert isinstance(back, ScoreAnswer)
    assert [each.probability for each in there.probabilities] == [each.probability for each in back.probabilities][::-1]
    subset = decider.decide(**asked | {"questions": [SCORE, PREDICATE]})
    assert subset.answers == alone.answers[::-2]
    reordered = CHOICE | {"choices": CHOICE["choices"][::-1]}
    (answer,) = decider.decide(**asked | {"questions": [reordered]}).answers
    assert isinstance(answer, ChoiceAnswer)
    assert isinstance(alone.answers[1], ChoiceAnswer)
    assert answer.probabilities[::-1] == alone.answers[1].probabilities
    assert asyncio.run(decider.decide_async(**asked)).answers == alone.answers


def test_a_repeated_input_is_found_in_the_cache_of_its_key(decider: Engine) -> None:
    def cached(**options: Any) -> int:
        return decider.decide(INPUT * 8, [PREDICATE], **options).usage.input_tokens_details.cached_tokens

    assert cached(prompt_cache_key="one") == 0
    assert cached(prompt_cache_key="one") > 0
    assert cached(prompt_cache_key="two") == 0
    assert cached(prompt_cache_key="one", cache_salt="other") == 0
