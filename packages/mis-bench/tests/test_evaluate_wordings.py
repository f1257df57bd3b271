"""Several ways to ask the same rows, and corrections without labels."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax

from fake_server import FakeServer
from mis_bench.cli import main
from mis_bench.evaluate.corrections import permutation_prior, without_prior

TONES = ("calm", "cross", "furious")
TONE = {"type": "choice", "instructions": "What is the tone?", "criteria": dict.fromkeys(TONES)}
REFUND = {"type": "noul", "instructions": "Does the customer want money back?"}


class Done(NamedTuple):
    status: int
    said: str
    found: Any

    def value(self, target: str, name: str) -> float:
        (figures,) = [each["figures"] for each in self.found["targets"] if each["target"] == target]
        return figures[name]["value"]

    @property
    def names(self) -> list[str]:
        return [each["target"] for each in self.found["targets"]]


Evaluate = Callable[..., Done]


@pytest.fixture
def evaluate(tmp_path: Path) -> Evaluate:
    """`evaluate("mis=URL", rows=rows, wordings={...})`: the command, and its JSON."""

    def run(*arguments: str, rows: list[Any], wordings: Any = None) -> Done:
        data, found, asked = (tmp_path / name for name in ("rows.jsonl", "found.json", "wordings.json"))
        found.unlink(missing_ok=True)
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        if wordings is not None:
            asked.write_text(json.dumps(wordings))
            arguments = (*arguments, "--wordings", str(asked))
        done = CliRunner().invoke(main, ["evaluate", *arguments, "--data", str(data), "--json", str(found)])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        told = json.loads(found.read_text()) if found.exists() else None
        return Done(done.exit_code, " ".join(done.output.split()), told)

    return run


class Simulated:
    """A model that knows what it is asked, behind a bias for some answers, and for places of options.

    A state is a name of one of `TONES` and a number: of nothing at all the model knows nothing.
    """

    def __init__(self, *, bias: Mapping[str, float] = {}, places: tuple[float, ...] = ()) -> None:
        self._bias = bias
        self._places = places

    def truth(self, state: str) -> np.ndarray:
        """Return the probability of each tone."""
        if not state:
            return np.ones(3) / 3
        tone, seed = state.split()
        weak = np.random.default_rng(int(seed)).uniform(0.5, 3)
        return softmax(weak * np.array([each == tone for each in TONES]))

    def row(self, seed: int) -> dict[str, Any]:
        """Return a row whose answer is drawn as the model believes."""
        state = f"{TONES[seed % 3]} {seed}"
        drawn = np.random.default_rng(1000 + seed).choice(3, p=self.truth(state))
        return {"state": state, "questions": {"tone": TONE}, "answers": {"tone": TONES[drawn]}}

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer `/v1/systemone`."""
        known = dict(zip(TONES, self.truth(body["state"]), strict=True))
        return {"answers": {name: self._answer(each, known) for name, each in body["questions"].items()}}

    def _answer(self, question: Any, known: Mapping[str, float]) -> dict[str, Any]:
        if question["type"] == "noul":  # whether the state is of a tone that the question names
            said = sum(known[tone] for tone in TONES if tone in question["instructions"])
            return {"type": "noul", "noul": said}
        names = list(question["criteria"])
        logits = np.log([known[name.lower()] for name in names]) + [self._bias.get(name, 0) for name in names]
        values = softmax(logits + np.array(self._places[: len(names)] or 0.0))
        if question["type"] == "score":
            names = list(map(str, range(len(names))))
        return {"type": question["type"], "probabilities": dict(zip(names, values.tolist(), strict=True))}


@pytest.mark.parametrize(
    ("bias", "places", "correction"),
    [({"furious": 2.0, "calm": -1.0}, (), "content-free"), ({}, (1.5, 0.0, -1.0), "permutation")],
)
def test_a_correction_removes_a_planted_bias(
    fake: FakeServer, evaluate: Evaluate, bias: dict[str, float], places: tuple[float, ...], correction: str
) -> None:
    model = Simulated(bias=bias, places=places)
    rows = [model.row(seed) for seed in range(200)]
    fake.routes["/v1/systemone"] = Simulated().answer
    unbiased = evaluate(f"model=systemone={fake.url}", rows=rows).value("model", "log_loss")
    fake.routes["/v1/systemone"] = model.answer
    done = evaluate(f"model=systemone={fake.url}", "--correction", correction, rows=rows)
    assert done.status == 0, done.said
    assert done.names == ["model", f"model, {correction}"]
    assert done.value("model", "log_loss") > unbiased + 0.1
    assert done.value(f"model, {correction}", "log_loss") == pytest.approx(unbiased, abs=0.01)
    assert done.value(f"model, {correction}", "ece_width") < done.value("model", "ece_width")


def test_the_empty_state_is_asked_once_for_equal_questions(
    fake: FakeServer, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mis_bench.evaluate.asking._KEPT", 32)  # ways of a row are asked together, or it would not do
    model = Simulated()
    fake.routes["/v1/systemone"] = model.answer
    rows = [model.row(seed) for seed in range(300)]
    evaluate(f"systemone={fake.url}", "--correction", "content-free", rows=rows)
    states = [body["state"] for body in fake.asked("/v1/systemone")]
    assert sorted(states) == sorted(["", *(row["state"] for row in rows)])


def test_ways_to_ask_answer_the_same_question(fake: FakeServer, evaluate: Evaluate) -> None:
    model = Simulated()
    fake.routes["/v1/systemone"] = model.answer
    wordings = {
        "as the data asks": {},
        "renamed": {"tone": TONE | {"criteria": dict.fromkeys(map(str.upper, TONES))}},
        "other order": {"tone": TONE | {"criteria": dict.fromkeys(reversed(TONES))}},
        "one by one": {"tone": {tone: {"type": "noul", "instructions": f"Is it {tone}?"} for tone in TONES}},
        "levels": {"tone": {"type": "score", "criteria": list(TONES), "means": list(TONES)}},
    }
    rows = [model.row(seed) for seed in range(40)]
    done = evaluate(f"systemone={fake.url}", rows=rows, wordings=wordings)
    assert done.status == 0, done.said
    assert done.names == list(wordings)
    for name in wordings:
        assert done.value(name, "log_loss") == pytest.approx(done.value("as the data asks", "log_loss"), rel=1e-6)
        assert done.value(name, "accuracy") == done.value("as the data asks", "accuracy")
    assert [each["targets"][1] for each in done.found["paired"]] == list(wordings)[1:]
    assert not any(each["flips"] for each in done.found["paired"])
    assert "Less as the data asks" in done.said


def test_options_that_mean_the_same_are_added(fake: FakeServer, evaluate: Evaluate) -> None:
    model = Simulated()
    fake.routes["/v1/systemone"] = model.answer
    rows = [
        {"state": f"{tone} {seed}", "questions": {"angry": ANGRY}, "answers": {"angry": tone != "calm"}}
        for seed, tone in enumerate(TONES * 5)
    ]
    asked = TONE | {"means": {"calm": False, "cross": True, "furious": True}}
    done = evaluate(f"systemone={fake.url}", rows=rows, wordings={"one": {}, "choice": {"angry": asked}})
    assert done.value("choice", "log_loss") == pytest.approx(done.value("one", "log_loss"), rel=1e-6)


ANGRY = {"type": "noul", "instructions": "Is it cross or furious?"}


def test_texts_and_labels_of_scores_are_worded(fake: FakeServer, evaluate: Evaluate) -> None:
    def scored(body: dict[str, Any]) -> dict[str, Any]:
        told = [0.25 if each.startswith("Review: ") else 0.5 for each in body["items"]]
        return {
            "scores": [[1 - each, each] for each in told],
            "token_logprobs": [[float(np.log(1 - each)), float(np.log(each))] for each in told],
        }

    fake.routes["/v1/score"] = scored
    rows = [{"query": "Q", "item": f"i{index}", "labels": ["n", "y"], "label": "n"} for index in range(12)]
    framed = {"query": "Is it good? {{ query }}", "item": "Review: {{ item }}\n", "labels": [" no", " yes"]}
    done = evaluate(
        f"mis={fake.url}", "--correction", "content-free", rows=rows, wordings={"bare": {}, "framed": framed}
    )
    assert done.names == ["bare", "bare, content-free", "framed", "framed, content-free"]
    assert done.value("framed", "log_loss") == pytest.approx(-np.log(0.75))
    assert done.value("framed, content-free", "log_loss") == pytest.approx(np.log(2))
    asked = {(body["query"], tuple(body["items"][:1]), *body["labels"]) for body in fake.asked("/v1/score")}
    assert asked == {
        ("Q", ("i0",), "n", "y"),
        ("Q", ("",), "n", "y"),
        ("Is it good? Q", ("Review: i0\n",), " no", " yes"),
        ("Is it good? Q", ("Review: \n",), " no", " yes"),
    }


DECIDED = {"state": "s", "questions": {"tone": TONE, "refund": REFUND}, "answers": {"tone": "calm", "refund": True}}
SCORED = {"query": "q", "item": "i", "labels": ["a", "b"], "label": 0}
RANKED = {"query": "q", "documents": ["d"], "relevance": [1]}
LEVELS = {"type": "score", "criteria": ["bad", "ok", "good"]}
LEVELLED = {"state": "s", "questions": {"level": LEVELS}, "answers": {"level": "ok"}}


def faults() -> Iterator[tuple[dict[str, Any], Any, str]]:
    yield DECIDED, {"w": {"other": REFUND}}, "w.other: no row has an answer to a question with this id"
    yield DECIDED, {"w": {"tone": REFUND}}, "w.tone.means: must say which answer of the data each of false, true means"
    yield DECIDED, {"w": {"tone": {"type": "choice"}}}, "w.tone: must be a noul, a choice"
    yield DECIDED, {"w": {"tone": TONE | {"means": {"calm": "calm"}}}}, "w.tone.means: must have an answer for each of"
    means = dict.fromkeys(TONES, "calm")
    yield DECIDED, {"w": {"tone": TONE | {"means": means}}}, "w.tone.means: no answer means cross"
    yield DECIDED, {"w": {"tone": TONE | {"means": means | {"calm": 7}}}}, "w.tone.means: 7 is not an answer"
    yield DECIDED, {"w": {"tone": {"calm": REFUND}}}, "w.tone: has no question for cross"
    yield DECIDED, {"w": {"tone": dict.fromkeys(TONES, TONE)}}, "w.tone.calm: must be a noul question"
    yield DECIDED, {"w": {"tone": {"angry": REFUND}}}, "w.tone.angry: is neither an answer to the data's question"
    moved = TONE | {"criteria": dict.fromkeys(["cross", "calm", "angry"])}
    yield DECIDED, {"w": {"tone": moved}}, "w.tone.means: must say which answer of the data each of cross, calm, angry"
    shifted = LEVELS | {"criteria": ["ok", "good", "best"]}
    yield LEVELLED, {"w": {"level": shifted}}, "w.level.means: must say which answer of the data each of ok, good, best"
    yield LEVELLED, {"w": {"level": {"ok": REFUND, "1": REFUND}}}, "w.level.1: is the same answer as ok"
    yield LEVELLED, {"w": {"level": {"9" * 5000: REFUND}}}, "is neither an answer to the data's question"
    yield DECIDED, {"": {}}, "a wording must have a name"
    yield DECIDED, {"w": {"tone": 3}}, "w.tone: must be a question, or a noul question for each answer"
    yield DECIDED, [], "must be an object of 1 to 64 wordings"
    yield SCORED, {"w": {"labels": ["a"]}}, "w.labels: must be 2"
    yield SCORED, {"w": {"labels": ["a", "a"]}}, "w.labels: must be different texts"
    yield SCORED, {"w": {"query": "{{ other }}"}}, "rows.jsonl, row 1: 'other' is undefined"
    yield SCORED, {"w": {"item": "{{ item"}}, "rows.jsonl, row 1: unexpected end of template"
    yield SCORED, {"w": {"item": "{{ item + 1 }}"}}, "rows.jsonl, row 1: "
    yield SCORED, {"w": {"item": "{{ 1 // 0 }}"}}, "rows.jsonl, row 1: "
    yield SCORED, {"w": {"text": ""}}, "w: Object contains unknown field `text`"
    yield RANKED, {"w": {}}, "wordings are for score and decide rows"


@pytest.mark.parametrize(("row", "wordings", "said"), [*faults()])
def test_a_useless_wording_is_refused_before_any_request(
    fake: FakeServer, evaluate: Evaluate, row: Any, wordings: Any, said: str
) -> None:
    done = evaluate(f"mis={fake.url}", rows=[row], wordings=wordings)
    assert done.status == 2
    assert said in done.said
    assert not fake.bodies


def test_every_row_is_looked_at_before_anything_is_asked(fake: FakeServer, evaluate: Evaluate) -> None:
    rows = [SCORED | {"item": "a: b"}, SCORED]
    done = evaluate(f"mis={fake.url}", rows=rows, wordings={"w": {"item": "{{ item.split(': ')[1] }}"}})
    assert (done.status, "row 2: list object has no element 1" in done.said) == (2, True)
    rows = [SCORED, SCORED | {"labels": ["b", "a"]}]
    done = evaluate(f"mis={fake.url}", rows=rows, wordings={"w": {"labels": ["A", "B"]}})
    assert "row 2 has them in another order" in done.said
    assert not fake.bodies


def test_levels_in_another_order_mean_what_they_say(fake: FakeServer, evaluate: Evaluate) -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        (levels,) = (each["criteria"] for each in body["questions"].values())
        told = {str(place): {"bad": 0.1, "ok": 0.7, "good": 0.2}[level] for place, level in enumerate(levels)}
        return {"answers": {"level": {"type": "score", "probabilities": told}}}

    fake.routes["/v1/systemone"] = answer
    wordings = {"given": {}, "turned": {"level": LEVELS | {"criteria": ["good", "ok", "bad"]}}}
    rows = [LEVELLED | {"state": str(number), "answers": {"level": "good"}} for number in range(12)]
    done = evaluate(f"systemone={fake.url}", rows=rows, wordings=wordings)
    for name in wordings:
        assert done.value(name, "log_loss") == pytest.approx(-np.log(0.2))


@pytest.mark.parametrize("correction", ["content-free", "permutation"])
def test_one_failure_of_what_is_shared_fails_few_rows(fake: FakeServer, evaluate: Evaluate, correction: str) -> None:
    model, failures = Simulated(), iter([500])

    def answer(body: dict[str, Any]) -> Any:
        is_shared = not body["state"] or next(iter(body["questions"]["tone"]["criteria"])) != TONES[0]
        if is_shared and (status := next(failures, None)):
            return status, "once"
        return model.answer(body)

    fake.routes["/v1/systemone"] = answer
    rows = [model.row(seed) for seed in range(40)]
    done = evaluate(f"model=systemone={fake.url}", "--correction", correction, "--callers", "2", rows=rows)
    raw, corrected = done.found["targets"]
    assert (raw["failed"], corrected["failed"] <= 2) == (0, True)
    assert next(failures, None) is None


@pytest.mark.parametrize(
    ("row", "correction", "said"),
    [
        (RANKED, "content-free", "Corrections are for score and decide rows"),
        (SCORED, "permutation", "The correction permutation is for choices, and the data asks none"),
    ],
)
def test_a_correction_of_what_has_none_is_refused(
    fake: FakeServer, evaluate: Evaluate, row: Any, correction: str, said: str
) -> None:
    done = evaluate(f"mis={fake.url}", "--correction", correction, rows=[row])
    assert done.status == 2
    assert said in done.said


probabilities = arrays(np.float64, (5, 4), elements=st.floats(0.01, 1)).map(lambda a: a / a.sum(1, keepdims=True))


@given(probabilities, arrays(np.float64, 4, elements=st.floats(-2, 2)))
def test_a_bias_comes_out_as_it_went_in(true: np.ndarray, bias: np.ndarray) -> None:
    biased = softmax(np.log(true) + bias, axis=1)
    np.testing.assert_allclose(without_prior(biased, softmax(bias)), true, rtol=1e-9)
    options = true[0]
    places = np.stack([np.roll(options, -by) for by in range(4)])  # what stands at each place in each rotation
    told = softmax(np.log(places) + bias, axis=1)
    np.testing.assert_allclose(permutation_prior(told[None]), softmax(bias), rtol=1e-9)
