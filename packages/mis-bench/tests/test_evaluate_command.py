"""`mis-bench evaluate`, against servers whose replies are known."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from fake_server import FakeServer
from mis_bench.cli import main

YES, NO = " yes", " no"
QUERY = "Good? "
NOUL = {"type": "noul", "instructions": "Is it good?"}
LABELS = [NO, YES]


class Done(NamedTuple):
    status: int
    said: str
    found: Any

    @property
    def target(self) -> Any:
        return self.found["targets"][0]

    def value(self, name: str) -> float:
        return self.target["figures"][name]["value"]


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """`evaluate("mis=URL", rows, "--gate", "accuracy>=0.9")`: the command on rows, and its JSON."""
    for name in ("MIS_API_KEY", "VLLM_API_KEY", "OPENAI_API_KEY", "TYPESAFE_API_KEY", "CO_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, rows: list[Any]) -> Done:
        data, found = tmp_path / "rows.jsonl", tmp_path / "found.json"
        found.unlink(missing_ok=True)
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = CliRunner().invoke(main, ["evaluate", *arguments, "--data", str(data), "--json", str(found)])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        told = json.loads(found.read_text()) if found.exists() else None
        return Done(done.exit_code, " ".join(done.output.split()), told)

    return run


def probability(text: str) -> float:
    """What fakes say of a text that ends in a number: that, in hundredths."""
    return int(text.rpartition(" ")[2]) / 100


def score_rows(count: int = 40, **fields: Any) -> list[dict[str, Any]]:
    """Rows whose items end in 1, 3, 5 and so on; those from 50 are good."""
    numbers = [1 + 2 * (index * 49 // count) for index in range(count)]
    return [
        {"query": QUERY, "item": f"text {each}", "labels": LABELS, "label": YES if each >= 50 else NO, **fields}
        for each in numbers
    ]


def scored(body: dict[str, Any]) -> dict[str, Any]:
    """Our `/v1/score`; the labels are one half of everything that may follow."""
    rows = [
        [probability(item) if label == YES else 1 - probability(item) for label in body["labels"]]
        for item in body["items"]
    ]
    logprobs = [[math.log(each / 2) for each in row] for row in rows]
    return {"scores": rows, "token_logprobs": logprobs}


def completed(body: dict[str, Any]) -> dict[str, Any]:
    tops = [
        {YES: math.log(probability(text) / 2), NO: math.log((1 - probability(text)) / 2), "x": -9.0}
        for text in body["prompt"]
    ]
    choices = [{"index": index, "logprobs": {"top_logprobs": [top]}} for index, top in enumerate(tops)]
    return {"choices": choices[::-1]}


def generative(body: dict[str, Any]) -> dict[str, Any]:
    first = body["label_token_ids"][0]
    told = [probability(item) if first == 7 else 1 - probability(item) for item in body["items"]]
    return {"data": [{"index": index, "score": score} for index, score in enumerate(told)][::-1]}


def tokens_of(body: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": [{YES: 7, NO: 8}.get(body["prompt"], 9)] * (1 if body["prompt"] in LABELS else 2)}


SCORING = {
    "/v1/score": scored, "/v1/completions": completed, "/generative_scoring": generative, "/tokenize": tokens_of,
}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "route", "name"),
    [
        (score_rows(4), "/v1/score", "calibration"),
        ([{"state": "s", "questions": {"n": NOUL}, "answers": {"n": True}}], "/v1/systemone", "x_calibration"),
    ],
)
def test_our_server_may_be_asked_for_raw_probabilities(
    fake: FakeServer, evaluate: Callable[..., Done], rows: list[Any], route: str, name: str
) -> None:
    bodies: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        bodies.append(body)
        answers = {"n": {"type": "noul", "noul": 0.9, "x_label_mass": 0.9}}
        return {"answers": answers} if route == "/v1/systemone" else scored(body)

    fake.routes[route] = answer
    done = evaluate(f"raw=mis={fake.url},calibration=none", f"as_served=mis={fake.url}", rows=rows)
    assert done.status == 0, done.said
    assert sorted(body.get(name, "") for body in bodies) == ["", "none"]


@pytest.mark.parametrize(("kind", "mass"), [("mis", 0.5), ("openai", 0.5), ("vllm", None)])
def test_scores_of_each_kind_of_server(
    fake: FakeServer, evaluate: Callable[..., Done], kind: str, mass: float | None
) -> None:
    fake.routes |= SCORING
    rows = score_rows()
    done = evaluate(f"{kind}={fake.url}/v1", "--gate", "accuracy>=1", "--gate", "auc>=1", rows=rows)
    assert done.status == 0, done.said
    assert (done.target["rows"], done.target["failed"]) == (40, 0)
    right = [p if p >= 0.5 else 1 - p for p in (probability(row["item"]) for row in rows)]
    assert done.value("log_loss") == pytest.approx(-sum(map(math.log, right)) / 40)
    assert done.value("spearman") > 0.8
    interval = done.target["figures"]["log_loss"]
    assert interval["low"] < interval["value"] < interval["high"]
    assert ("label_mass" in done.target["figures"]) == (mass is not None)
    if mass:
        assert done.value("label_mass") == pytest.approx(mass)
    asked = [body for path, body in fake.bodies if path in SCORING and path != "/tokenize"]
    assert len(asked) == 1  # rows of a query are one request
    assert asked[0]["model"] == "fake"
    assert not any(name.startswith("x_") for name in asked[0])


def test_rows_with_equal_query_and_labels_share_a_request(
    fake: FakeServer, evaluate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mis_bench.evaluate.asking.MOST_ITEMS", 15)
    fake.routes |= SCORING
    rows = score_rows()
    rows[3]["labels"], rows[5]["query"] = LABELS[::-1], "Another: "
    done = evaluate(f"mis={fake.url}", rows=rows)
    assert done.value("accuracy") == 1
    assert done.value("macro_f1") == 1  # labels in another order are the same labels
    assert sorted(len(body["items"]) for body in fake.asked("/v1/score")) == [1, 1, 8, 15, 15]


def test_labels_may_come_from_the_command(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    fake.routes |= SCORING
    rows = [{name: value for name, value in row.items() if name != "labels"} for row in score_rows()]
    assert evaluate(f"mis={fake.url}", "--labels", NO, YES, rows=rows).value("accuracy") == 1
    assert evaluate(f"mis={fake.url}", "--labels", NO, "--labels", YES, rows=rows).value("accuracy") == 1
    assert "unless --labels gives them" in evaluate(f"mis={fake.url}", rows=rows).said


def test_failed_rows_are_counted_listed_and_fail_the_command(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    def partly(body: dict[str, Any]) -> dict[str, Any]:
        reply = scored(body)
        reply["scores"][2] = reply["token_logprobs"][2] = None
        return reply | {"errors": [{"index": 2, "code": "x", "message": "item 2 is too long"}]}

    fake.routes |= {"/v1/score": partly}
    rows = [row | {"id": f"r{index}"} for index, row in enumerate(score_rows())]
    done = evaluate(f"mis={fake.url}", "--gate", "accuracy>=0", rows=rows)
    assert done.status == 1
    assert done.target["failed"] == 1
    assert done.target["failures"] == [{"row": "r2", "reason": "item 2 is too long"}]
    assert "1 of 40 rows failed" in done.said
    assert done.value("accuracy") == 1


def test_a_request_that_is_refused_is_sent_again_row_by_row(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    fake.routes |= SCORING | {
        "/generative_scoring": lambda body: (400, "too long") if "text 1" in body["items"] else generative(body)
    }
    done = evaluate(f"vllm={fake.url}", rows=score_rows(12))
    assert done.target["failures"] == [{"row": "0", "reason": "/generative_scoring answered 400: too long"}]
    assert len(fake.asked("/generative_scoring")) == 13


def test_a_label_that_is_not_told_fails_its_row(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    fake.routes |= SCORING
    done = evaluate(
        f"openai={fake.url},logprobs=3", rows=[*score_rows(), score_rows(1)[0] | {"labels": [NO, "other"], "label": 0}]
    )
    (failure,) = done.target["failures"]
    assert "'other' is not among the 3 most probable tokens" in failure["reason"]
    assert {body["logprobs"] for body in fake.asked("/v1/completions")} == {3}
    done = evaluate(f"vllm={fake.url}", rows=[*score_rows(), score_rows(1)[0] | {"labels": [NO, "other"], "label": 0}])
    assert "'other' is 2 tokens; this target takes one" in done.target["failures"][0]["reason"]


def test_three_labels_take_a_call_each_of_vllm(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    shares = {1: 0.2, 2: 0.5, 3: 0.3}
    fake.routes["/tokenize"] = lambda body: {"tokens": [int(body["prompt"])]}
    fake.routes["/generative_scoring"] = lambda body: {
        "data": [{"index": index, "score": shares[body["label_token_ids"][0]]} for index in range(len(body["items"]))]
    }
    rows = [{"query": "q", "item": f"i{index}", "labels": ["1", "2", "3"], "label": "3"} for index in range(12)]
    done = evaluate(f"vllm={fake.url}", rows=rows)
    assert done.value("log_loss") == pytest.approx(-math.log(0.3))
    assert done.value("accuracy") == 0


# Decisions.

QUESTIONS = {
    "refund": {"type": "noul", "instructions": "Money back?"},
    "team": {"type": "choice", "criteria": {"billing": "invoices", "delivery": None}},
    "anger": {"type": "score", "instructions": {"how": "angry"}, "criteria": ["calm", "cross", "furious"]},
}


def decide_rows() -> list[dict[str, Any]]:
    return [
        {
            "state": {"ticket": f"number {number}"},
            "questions": QUESTIONS,
            "answers": {"refund": number >= 50, "team": "billing", "anger": 2 if number > 70 else "cross"},
        }
        for number in range(4, 100, 6)
    ]


def system_one(body: dict[str, Any]) -> dict[str, Any]:
    said = probability(body["state"]["ticket"])
    answers: dict[str, Any] = {
        "refund": {"type": "noul", "noul": said},
        "team": {"type": "choice", "probabilities": {"delivery": 0.25, "billing": 0.75}},
        "anger": {"type": "score", "probabilities": {"0": 0.1, "1": 0.5, "2": 0.4}},
    }
    return {"answers": {name: answers[name] for name in body["questions"]}}


def decisions(body: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's, in the order of the questions."""
    said = probability(json.loads(body["input"])["ticket"])
    anger = [
        {"label": name, "value": index, "probability": p}
        for index, (name, p) in enumerate([("calm", 0.1), ("cross", 0.5), ("furious", 0.4)])
    ]
    team = [{"value": "delivery", "probability": 0.25}, {"value": "billing", "probability": 0.75}]
    return {
        "answers": [
            {"type": "predicate", "probability": said, "label_mass": 0.8},
            {"type": "choice", "probabilities": team, "label_mass": 0.8},
            {"type": "score", "probabilities": anger, "label_mass": 0.8},
        ]
    }


@pytest.mark.parametrize("kind", ["mis", "systemone", "openai", "vllm"])
def test_decisions_of_each_kind_of_server(fake: FakeServer, evaluate: Callable[..., Done], kind: str) -> None:
    fake.routes |= {"/v1/systemone": system_one, "/v1/decisions": decisions}
    done = evaluate(
        f"{kind}={fake.url}",
        "--gate",
        "accuracy@question=refund>=1",
        "--gate",
        "accuracy@question=anger<=0.8",
        rows=decide_rows(),
    )
    assert done.status == 0, done.said
    assert done.target["slices"].keys() == {"question=refund", "question=team", "question=anger"}
    team = done.target["slices"]["question=team"]["figures"]
    assert team["log_loss"]["value"] == pytest.approx(-math.log(0.75))
    levels = [0.4 if row["answers"]["anger"] == 2 else 0.5 for row in decide_rows()]
    anger = done.target["slices"]["question=anger"]["figures"]
    assert anger["log_loss"]["value"] == pytest.approx(-sum(map(math.log, levels)) / len(levels))
    path = "/v1/decisions" if kind == "openai" else "/v1/systemone"
    asked = fake.asked(path)
    assert len(asked) == len(decide_rows())
    assert {name for body in asked for name in body if name.startswith("x_")} == (
        {"x_on_error"} if kind == "mis" else set()
    )
    assert ("label_mass" in done.target["figures"]) == (kind == "openai")


PUBLISHED = {"models": [{"name": "jev-1.13.0", "description": "", "release_date": "2026-09-24"}]}


@pytest.mark.parametrize(
    ("listed", "model"),
    [
        (PUBLISHED, "jev-1.13.0"),
        (PUBLISHED | {"data": [{"id": "ours"}]}, "ours"),
        ({"data": [{"id": "ours"}], "models": []}, "ours"),
        ({"status": "ok", "model": "a-nano"}, "jev-latest"),
        ({"data": []}, "jev-latest"),
        ((404, "no such route"), "jev-latest"),
        ((200, "no JSON"), "jev-latest"),
    ],
)
def test_the_model_of_system_one_is_listed_first_or_the_alias(
    fake: FakeServer, evaluate: Callable[..., Done], listed: Any, model: str | None
) -> None:
    fake.routes |= {"/v1/models": listed, "/v1/systemone": system_one}
    rows = decide_rows()[:1]
    assert evaluate(f"told=systemone={fake.url}", f"named=systemone={fake.url},model=named", rows=rows).status == 0
    assert [body.get("model") for body in fake.asked("/v1/systemone")] == [model, "named"]


def test_questions_are_put_into_openais_words(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    fake.routes["/v1/decisions"] = decisions
    rows = decide_rows()
    sides = {"type": "noul", "criteria": {"true": "wants money"}}
    assert (
        evaluate(f"openai={fake.url}", rows=[row | {"questions": QUESTIONS | {"refund": sides}} for row in rows]).status
        == 0
    )
    assert fake.asked("/v1/decisions")[0]["questions"] == [
        {"type": "predicate", "name": "refund", "instructions": "true means: wants money"},
        {
            "type": "choice", "name": "team", "instructions": "Which of these is it?",
            "choices": [{"value": "billing", "description": "invoices"}, {"value": "delivery"}],
        },
        {
            "type": "score", "name": "anger", "instructions": '{"how":"angry"}',
            "levels": [{"label": "calm"}, {"label": "cross"}, {"label": "furious"}],
        },
    ]  # fmt: skip


def test_a_question_that_fails_fails_its_row_alone(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    def partly(body: dict[str, Any]) -> dict[str, Any]:
        reply = system_one(body)
        if body["state"]["ticket"] == "number 10":
            del reply["answers"]["team"]
            reply["x_errors"] = {"team": {"code": "x", "message": "too many options"}}
        return reply

    fake.routes["/v1/systemone"] = partly
    done = evaluate(f"mis={fake.url}", rows=decide_rows())
    assert done.target["failures"] == [{"row": "1", "reason": "too many options"}]
    assert done.target["slices"]["question=refund"]["rows"] == len(decide_rows()) - 1


def test_an_answer_that_is_not_a_distribution_fails_its_row(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    nothing, no_class = "no answer to 'anger' as System One has it", "no probability for each class"
    told = [
        ({"0": 0.33, "1": 0.33, "2": 0.33}, None),
        ({"0": 0.3, "1": 0.4, "2": 0.1}, "probabilities of 'anger' sum up to 0.8, not to 1"),
        ({"0": 0.4, "1": 0.4, "2": 0.4}, "probabilities of 'anger' sum up to 1.2, not to 1"),
        ({"0": 1.5, "1": -0.5, "2": 0}, no_class),
        ({"0": math.nan, "1": 0.5, "2": 0.5}, no_class),
        ({"0": "much", "1": 0.5, "2": 0.5}, nothing),
        ({"1": 0.3, "2": 0.4, "3": 0.3}, nothing),
        (None, nothing),
    ]
    fake.routes["/v1/systemone"] = lambda body: {
        "answers": {"anger": {"type": "score", "probabilities": told[int(body["state"])][0]}}
    }
    rows = [
        {"state": str(number), "questions": {"anger": QUESTIONS["anger"]}, "answers": {"anger": 0}}
        for number in range(len(told))
    ]
    done = evaluate(f"systemone={fake.url}", rows=rows)
    assert done.status == 1
    reasons = {each["row"]: each["reason"] for each in done.target["failures"]}
    assert reasons.keys() == {str(number) for number, (_, reason) in enumerate(told) if reason}
    for number, reason in reasons.items():
        assert str(told[int(number)][1]) in reason


def test_a_choice_of_many_options_may_be_rounded(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    names = [f"option {number}" for number in range(200)]
    # Of each of the others 0.004, which is 0 in two decimals.
    rounded = dict.fromkeys(names, 0.0) | {names[0]: 0.2}
    fake.routes["/v1/systemone"] = lambda _: {"answers": {"which": {"type": "choice", "probabilities": rounded}}}
    question = {"type": "choice", "criteria": dict.fromkeys(names)}
    row = {"state": "s", "questions": {"which": question}, "answers": {"which": names[0]}}
    assert evaluate(f"systemone={fake.url}", rows=[row]).status == 0


@pytest.mark.parametrize(
    ("answers", "questions", "message"),
    [
        ({"refund": 1}, {}, "row 1: answers.refund must be true or false, not 1."),
        ({"team": "sales"}, {}, "row 1: answers.team must be one of billing, delivery, not 'sales'."),
        ({"anger": 3}, {}, "row 1: answers.anger must be a level from 0 to 2, not 3."),
        ({"anger": True}, {}, "row 1: answers.anger must be a level from 0 to 2, not True."),
        (
            {"box": 1},
            {"box": {"type": "box"}},
            "row 1: questions.box must be a noul, a choice with two options or more",
        ),
    ],
)
def test_an_answer_without_a_question_is_found_before_asking(
    fake: FakeServer, evaluate: Callable[..., Done], answers: Any, questions: Any, message: str
) -> None:
    done = evaluate(
        f"mis={fake.url}", rows=[decide_rows()[0] | {"answers": answers, "questions": QUESTIONS | questions}]
    )
    assert done.status == 2
    assert message in done.said
    assert fake.bodies == []


# Rankings.


def rank_rows() -> list[dict[str, Any]]:
    return [
        {"query": f"q{index}", "documents": ["a 90", "b 20", "c 60"], "relevance": [1, 0, index % 2]}
        for index in range(12)
    ]


def ranked(body: dict[str, Any]) -> dict[str, Any]:
    results = [{"index": index, "relevance_score": probability(text)} for index, text in enumerate(body["documents"])]
    return {"results": sorted(results, key=lambda each: -each["relevance_score"])[: body.get("top_n")]}


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("mis", "/v1/rerank"),
        ("vllm", "/v1/rerank"),
        ("cohere", "/v2/rerank"),
        ("cohere", "/v1/rerank"),
        ("cohere", "/rerank"),
    ],
)
def test_rankings_of_each_kind_of_server(fake: FakeServer, evaluate: Callable[..., Done], kind: str, path: str) -> None:
    fake.routes[path] = ranked
    done = evaluate(
        f"{kind}={fake.url}", "--gate", "ndcg@10>=1", "--gate", "mrr>=1", "--gate", "ndcg@2>=1", rows=rank_rows()
    )
    assert done.status == 0, done.said
    assert done.value("accuracy") == pytest.approx(5 / 6)  # of documents: c is irrelevant in every other row
    assert len(fake.asked(path)) == 12
    assert {"query", "documents", "model"} <= fake.asked(path)[0].keys() <= {"query", "documents", "model", "top_n"}


def test_an_address_may_have_the_path(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    fake.routes["/api/rerank"] = ranked
    assert evaluate(f"cohere={fake.url}/api/rerank", rows=rank_rows()).status == 0
    assert {path for path, _ in fake.bodies if "rerank" in path and "models" not in path} == {"/api/rerank"}


def test_a_server_without_rerank_says_so(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    done = evaluate(f"cohere={fake.url}", rows=rank_rows())
    assert done.status == 1
    assert done.target["failed"] == 12
    assert "/v2/rerank answered 404" in done.target["failures"][0]["reason"]
    assert done.target["figures"] == {}


def test_relevance_in_grades_has_figures_of_ranking_only(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    fake.routes["/v2/rerank"] = ranked
    done = evaluate(f"cohere={fake.url}", rows=[row | {"relevance": [2, 0, 1]} for row in rank_rows()])
    assert done.target["figures"].keys() == {"ndcg@10", "mrr", "spearman"}


# Classification.


@pytest.mark.parametrize("kind", ["mis", "vllm"])
def test_classes_are_known_by_what_replies_call_them(
    fake: FakeServer, evaluate: Callable[..., Done], kind: str
) -> None:
    names = ["bad", "good", "unseen"]

    def classified(body: dict[str, Any]) -> dict[str, Any]:
        rows = [[0.9 * (1 - probability(text)), 0.9 * probability(text), 0.1] for text in body["input"]]
        data = [{"index": index, "label": names[row.index(max(row))], "probs": row} for index, row in enumerate(rows)]
        return {"data": data[::-1]}

    fake.routes["/v1/classify"] = classified
    rows = [{"input": f"text {number}", "label": "good" if number > 50 else "bad"} for number in range(1, 80, 2)]
    done = evaluate(f"{kind}={fake.url}", rows=[*rows, {"input": "text 40", "label": "unseen"}])
    assert done.status == 0, done.said
    assert done.value("accuracy") == pytest.approx(40 / 41)
    assert sorted(len(body["input"]) for body in fake.asked("/v1/classify")) == [9, 32]
    two_unknown = [*rows, {"input": "text 40", "label": "unseen"}, {"input": "text 41", "label": "never"}]
    done = evaluate(f"{kind}={fake.url}", rows=two_unknown)
    assert done.target["failed"] == 2
    assert "no label 'unseen' that is known here" in done.target["failures"][0]["reason"]


def test_what_is_no_distribution_is_not_made_one(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    fake.routes["/v1/classify"] = lambda body: {
        "data": [{"index": index, "label": "a", "probs": [0.9, 0.8]} for index in range(len(body["input"]))]
    }
    done = evaluate(f"mis={fake.url}", rows=[{"input": "x", "label": "a"}])
    assert done.target["failures"][0]["reason"] == "The head tells no distribution over two labels or more."


# Keys, busy servers, errors.


@pytest.mark.parametrize(
    ("kind", "variable"),
    [("mis", "MIS_API_KEY"), ("openai", "OPENAI_API_KEY"), ("vllm", "VLLM_API_KEY")],
)
def test_keys_come_from_the_environment_and_are_not_shown(
    fake: FakeServer, evaluate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, kind: str, variable: str
) -> None:
    fake.routes |= dict.fromkeys(SCORING, (403, "no sesame here"))
    monkeypatch.setenv(variable, "sesame")
    done = evaluate(f"{kind}={fake.url}", rows=score_rows(2))
    assert {each.get("authorization") for each in fake.headers} == {"Bearer sesame"}
    assert "sesame" not in done.said
    assert "no *** here" in done.target["failures"][0]["reason"]
    done = evaluate(f"{kind}={fake.url},api_key=sesame", rows=score_rows(2))
    assert done.status == 2
    assert f"Set {variable} instead" in done.said
    assert "sesame" not in done.said


@pytest.mark.parametrize("status", [429, 503, 529])
def test_a_busy_server_is_asked_again_when_it_says(
    fake: FakeServer, evaluate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("mis_bench.evaluate.client.asyncio.sleep", sleep)
    replies = iter([(status, "later", {"retry-after": "17"}), (status, "later")])
    fake.routes["/v1/score"] = lambda body: next(replies, None) or scored(body)
    done = evaluate(f"mis={fake.url}", rows=score_rows())
    assert (done.status, done.target["failed"]) == (0, 0)
    assert [each for each in waits if each] == [17.0, 2.0]
    fake.routes["/v1/score"] = (status, "later", {"retry-after": "3600"})
    done = evaluate(f"mis={fake.url}", rows=score_rows())
    assert done.target["failed"] == 40
    assert f"answered {status}" in done.target["failures"][0]["reason"]


def test_a_date_is_a_time_to_wait_for(
    fake: FakeServer, evaluate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("mis_bench.evaluate.client.asyncio.sleep", sleep)
    monkeypatch.setattr("mis_bench.evaluate.client.time.time", lambda: 784111777.0 - 30)
    replies = iter([(429, "later", {"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"})])
    fake.routes["/v1/score"] = lambda body: next(replies, None) or scored(body)
    assert evaluate(f"mis={fake.url}", rows=score_rows()).status == 0
    assert [each for each in waits if each] == [30.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["engines"], "There is no target 'engines' to evaluate; did you mean engine?"),
        (["engine"], "name one with --model"),
        (["sglang=http://h"], "There is no target 'sglang=http://h' to evaluate; "),
        (["mis=ftp://h"], "The server's address is not valid"),
        (["mis=http://h,logprobs=3"], "Option 'logprobs' of mis"),
        (["cohere=http://h"], "score data is not supported by cohere."),
        (["systemone=http://h"], "score data is not supported by systemone."),
        (
            ["mis=http://h", "mis=http://h"],
            "The target mis=http://h is named twice; give one of them an alias: ALIAS=mis=http://h.",
        ),
        (["mis=http://127.0.0.1:9"], "http://127.0.0.1:9 does not answer"),
        (["mis=http://h", "--gate", "accuracy>0.9"], "'accuracy>0.9' is not a gate; write FIGURE>=LIMIT"),
        (["mis=http://h", "--gate", "precision>=0.9"], "'precision>=0.9' names no known figure; known are accuracy, "),
        (["mis=http://h", "--gate", "ece@films<=0.1"], "names a slice that the data does not have; known are books."),
        (["mis=http://h", "--report", "no/such/page.html"], "cannot be written: there is no folder no/such."),
        ([], "Missing argument 'TARGET...'"),
    ],
)
def test_errors_are_one_sentence_and_status_2(
    evaluate: Callable[..., Done], arguments: list[str], message: str
) -> None:
    done = evaluate(*arguments, rows=score_rows(2, slice="books"))
    assert done.status == 2, done.said
    assert message in done.said
    assert "Traceback" not in done.said


def test_data_that_cannot_be_read_is_an_error_too(evaluate: Callable[..., Done]) -> None:
    done = evaluate("mis=http://h", rows=[{"text": "x"}])
    assert done.status == 2
    assert "row 1: must have item, documents, state or input" in done.said


@pytest.mark.parametrize(("module", "package"), [("sklearn", "scikit-learn"), ("ir_measures", "ir-measures")])
def test_a_missing_package_is_one_sentence(
    evaluate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, module: str, package: str
) -> None:
    monkeypatch.setattr("mis_bench.evaluate.command.find_spec", lambda name: None if name == module else object())
    done = evaluate("mis=http://h", rows=score_rows(2))
    assert done.status == 2
    assert f"There is no package {package} here: pip install 'mis-bench[evaluate]'." in done.said


def test_a_gate_that_fails_says_by_how_much(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    fake.routes |= SCORING
    rows = [row | {"slice": "films" if index % 2 else "books"} for index, row in enumerate(score_rows())]
    gates = ("--gate", "log_loss@films<=0.1", "--gate", "coverage@0.9@books>=0.5", "--gate", "ndcg@3>=0")
    done = evaluate(f"mis={fake.url}", *gates, rows=rows)
    assert done.status == 1
    assert [each.partition(":")[0] for each in done.found["missed"]] == ["log_loss@films<=0.1", "ndcg@3>=0"]
    assert "Gate missed: log_loss@films<=0.1: it is 0.3" in done.said
    assert "ndcg@3>=0: there is no ndcg@3 of these rows" in done.said
    assert {name: part["rows"] for name, part in done.target["slices"].items()} == {"books": 20, "films": 20}


def test_weights_of_rows_count(fake: FakeServer, evaluate: Callable[..., Done]) -> None:
    fake.routes |= SCORING
    rows = score_rows()
    rows[0] |= {"label": YES, "weight": 10}
    assert evaluate(f"mis={fake.url}", rows=rows).value("accuracy") == pytest.approx(39 / 49)


def test_help_says_each_default() -> None:
    said = " ".join(CliRunner().invoke(main, ["evaluate", "--help"]).output.split())
    for option in main.commands["evaluate"].params:
        for flag in option.opts:
            assert not flag.startswith("--") or flag in said
    assert said.count("[default: ") == 9
    assert "[required]" in said
