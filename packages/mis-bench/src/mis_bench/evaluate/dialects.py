"""How each kind of target is asked about rows, and what its replies say."""

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mis_bench.evaluate.questions import NO_YES, as_openai, classes_of
from mis_bench.targets.asking import Json, in_order, reading
from mis_bench.targets.target import CallFailed

_SUM, _ROUNDED = 0.05, 0.005  # how far from 1 a sum may be: that, or two decimals each, as jevcompat allows

Send = Callable[[str, Json], Awaitable[Json]]
"""Sends a body to a path and returns the reply; raises `CallFailed`."""


class Distribution(NamedTuple):
    """Probabilities of classes in their order.

    Attributes:
        probabilities: Above 0 in sum.
        mass: Of all classes together over everything, or None if it was not told.
    """

    probabilities: Sequence[float]
    mass: float | None


class Classified(NamedTuple):
    """Probabilities of the rows of a classification head, and the name of the most probable one."""

    probabilities: Sequence[float]
    label: str


Scored = Distribution | CallFailed
"""Of an item, or why it has none."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a target is asked; None where it cannot be.

    Attributes:
        score: Asks for items behind a query: the distribution over labels of each.
        rerank: Asks for the relevance of documents to a query.
        decide: Asks questions about a state: the distribution over its classes of each, by id.
        classify: Asks for the labels of inputs.
    """

    score: Callable[[Send, str, Sequence[str], Sequence[str]], Awaitable[Sequence[Scored]]] | None = None
    rerank: Callable[[Send, str, Sequence[str]], Awaitable[Sequence[float]]] | None = None
    decide: Callable[[Send, Any, Mapping[str, Any]], Awaitable[Mapping[str, Scored]]] | None = None
    classify: Callable[[Send, Sequence[str]], Awaitable[Sequence[Classified]]] | None = None


async def score(send: Send, query: str, items: Sequence[str], labels: Sequence[str]) -> Sequence[Scored]:
    """Ask our `/v1/score`: one request, in which an item that cannot be scored spoils no other."""
    body = {
        "query": query, "items": list(items), "labels": list(labels), "apply_softmax": True,
        "return_token_logprobs": True,
        "on_error": "item",
    }  # fmt: skip
    reply = await send("/v1/score", body)
    with reading("`scores` and `token_logprobs` for each item"):
        wrong = {each["index"]: CallFailed("rejected", str(each["message"])) for each in reply.get("errors") or ()}
        rows = zip(reply["scores"], reply["token_logprobs"], strict=True)
        found = [
            wrong[index] if index in wrong else Distribution(_floats(scores), sum(map(math.exp, logprobs)))
            for index, (scores, logprobs) in enumerate(rows)
        ]
    return _all(found, items)


async def score_by_vllm(send: Send, query: str, items: Sequence[str], labels: Sequence[str]) -> Sequence[Scored]:
    """Ask vLLM's `/generative_scoring`, which tells the share of the first label.

    Two labels take one call; more take one each, with that label in front. Labels are one token each, as the server's
    `/tokenize` says.
    """
    ids = [await _token_of(send, label) for label in labels]
    columns: list[list[float]] = []
    for index in range(1 if len(ids) == 2 else len(ids)):
        order = [ids[index], *ids[:index], *ids[index + 1 :]]
        body = {"query": query, "items": list(items), "label_token_ids": order, "apply_softmax": True}
        reply = await send("/generative_scoring", body)
        with reading("`data` with an index and a score each"):
            entries = {int(each["index"]): each["score"] for each in reply["data"]}
        columns.append(_floats(in_order(entries, len(items))))
    if len(ids) == 2:
        columns.append([1 - each for each in columns[0]])
    return [Distribution(row, None) for row in zip(*columns, strict=True)]


def score_by_completions(
    logprobs: int,
) -> Callable[[Send, str, Sequence[str], Sequence[str]], Awaitable[Sequence[Scored]]]:
    """Return how `/v1/completions` is asked: for a token after each item, and the most probable ones in its place."""

    async def ask(send: Send, query: str, items: Sequence[str], labels: Sequence[str]) -> Sequence[Scored]:
        prompts = [query + item for item in items]
        reply = await send(
            "/v1/completions", {"prompt": prompts, "max_tokens": 1, "temperature": 0, "logprobs": logprobs}
        )
        with reading("`top_logprobs` for each choice"):
            entries = {int(each["index"]): each["logprobs"]["top_logprobs"][0] for each in reply["choices"]}
            tops = [dict[str, float](top) for top in in_order(entries, len(items))]
        return [_among(top, labels) for top in tops]

    return ask


async def rerank(send: Send, query: str, documents: Sequence[str]) -> Sequence[float]:
    """Ask `/v1/rerank`."""
    return _ranked(await send("/v1/rerank", {"query": query, "documents": list(documents)}), documents)


async def rerank_by_cohere(send: Send, query: str, documents: Sequence[str]) -> Sequence[float]:
    """Ask the path that a server of Cohere's kind has, for all documents; `cohere` finds it."""
    body = {"query": query, "documents": list(documents), "top_n": len(documents)}
    return _ranked(await send("", body), documents)


async def decide(send: Send, state: Any, questions: Mapping[str, Any]) -> Mapping[str, Scored]:
    """Ask `/v1/systemone` as it was published."""
    return _decided(await send("/v1/systemone", {"state": state, "questions": dict(questions)}), questions)


async def decide_by_ours(send: Send, state: Any, questions: Mapping[str, Any]) -> Mapping[str, Scored]:
    """Ask our `/v1/systemone`, where a question that cannot be answered spoils no other."""
    body = {"state": state, "questions": dict(questions), "x_on_error": "item"}
    return _decided(await send("/v1/systemone", body), questions)


async def decide_by_openai(send: Send, state: Any, questions: Mapping[str, Any]) -> Mapping[str, Scored]:
    """Ask OpenAI's `/v1/decisions`; what is no text is compact JSON there."""
    asked = [as_openai(name, question, _text) for name, question in questions.items()]
    reply = await send("/v1/decisions", {"input": _text(state), "questions": asked})
    found: dict[str, Scored] = {}
    with reading("an answer with probabilities for each question"):
        for (name, question), answer in zip(questions.items(), reply["answers"], strict=True):
            mass = answer.get("label_mass")
            if question["type"] == "noul":
                found[name] = _yes(answer["probability"], mass)
            elif question["type"] == "score":
                found[name] = _distribution(name, [each["probability"] for each in answer["probabilities"]], mass)
            else:
                by_name = {each["value"]: each["probability"] for each in answer["probabilities"]}
                found[name] = _distribution(name, [by_name[option] for option in question["criteria"]], mass)
    return found


async def classify(send: Send, inputs: Sequence[str]) -> Sequence[Classified]:
    """Ask `/v1/classify`."""
    reply = await send("/v1/classify", {"input": list(inputs)})
    with reading("`data` with an index, a label and probs each"):
        entries = {int(each["index"]): Classified(_floats(each["probs"]), str(each["label"])) for each in reply["data"]}
    return in_order(entries, len(inputs))


def _decided(reply: Json, questions: Mapping[str, Any]) -> Mapping[str, Scored]:
    errors = reply.get("x_errors") or {}
    found: dict[str, Scored] = {}
    for name, question in questions.items():
        with reading(f"answer to {name!r} as System One has it"):
            if name in errors:
                found[name] = CallFailed("rejected", str(errors[name]["message"]))
                continue
            answer = reply["answers"][name]
            mass = answer.get("x_label_mass")
            if question["type"] == "noul":
                found[name] = _yes(answer["noul"], mass)
                continue
            classes = classes_of(question)
            assert classes is not None, "the data was looked at"
            found[name] = _distribution(name, [answer["probabilities"][each] for each in classes.names], mass)
    return found


def _distribution(name: str, told: Sequence[Any], mass: float | None) -> Scored:
    """Return probabilities of the answers to a question, which servers may round."""
    probabilities = _floats(told)
    total = math.fsum(probabilities)
    if abs(total - 1) > max(_SUM, _ROUNDED * len(told)):
        return CallFailed("missing_scores", f"The probabilities of {name!r} sum up to {total:.3g}, not to 1.")
    return Distribution(probabilities, mass)


def _yes(probability: float, mass: float | None) -> Distribution:
    return Distribution([1 - float(probability), float(probability)][: len(NO_YES)], mass)


def _among(top: Mapping[str, float], labels: Sequence[str]) -> Scored:
    """Return the distribution over labels that are among the most probable tokens."""
    if missing := [label for label in labels if label not in top]:
        return CallFailed(
            "missing_scores",
            f"The label {missing[0]!r} is not among the {len(top)} most probable tokens; this target cannot tell its "
            "probability.",
        )
    probabilities = [math.exp(top[label]) for label in labels]
    return Distribution(probabilities, sum(probabilities))


async def _token_of(send: Send, label: str) -> int:
    reply = await send("/tokenize", {"prompt": label, "add_special_tokens": False})
    with reading("`tokens`"):
        tokens = [int(each) for each in reply["tokens"]]
    if len(tokens) != 1:
        raise CallFailed("rejected", f"The label {label!r} is {len(tokens)} tokens; this target takes one.")
    return tokens[0]


def _ranked(reply: Json, documents: Sequence[str]) -> Sequence[float]:
    with reading("`results` with an index and a relevance_score each"):
        entries = {int(each["index"]): float(each["relevance_score"]) for each in reply["results"]}
    return in_order(entries, len(documents))


def _floats(values: Any) -> list[float]:
    return [float(each) for each in values]


def _all(found: list[Scored], items: Sequence[str]) -> list[Scored]:
    if len(found) != len(items):
        raise CallFailed("shape_mismatch", f"The reply has {len(found)} scores for {len(items)} items.")
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


OURS = Dialect(score, rerank, decide_by_ours, classify)
VLLM = Dialect(score_by_vllm, rerank, decide, classify)
SYSTEM_ONE = Dialect(decide=decide)
COHERE = Dialect(rerank=rerank_by_cohere)
