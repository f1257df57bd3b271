"""How a server is asked for a task: where, with which bodies, and how its answers are read."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mis_bench.system_one import first_probability
from mis_bench.targets.target import CallFailed, Reply, fitting
from mis_bench.workload import Task, Workload

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asking:
    """How a server is asked for a task.

    Attributes:
        path: Of requests.
        bodies: Returns the bodies that ask for a workload, without `model`; they are sent one after another.
        reply: Reads the answers to them; raises `CallFailed`, `missing_scores` or `shape_mismatch`.
        answer_type: What a reply is, as JSON: an object, or with some servers a list.
        salt_field: Where a body has the cache salt, of a server that forgets by one.
    """

    path: str
    bodies: Callable[[Workload], list[Json]]
    reply: Callable[[Sequence[Any], Workload], Reply]
    answer_type: type[dict[str, Any]] | type[list[Any]] = dict
    salt_field: str = "cache_salt"


Tasks = Mapping[Task, Asking | str]
"""How a server is asked for each task, or why it cannot be."""


def whole(workload: Workload) -> list[Json]:
    """Return one body: the request as ours takes it."""
    return [workload.request]


def drawing(workload: Workload) -> list[Json]:
    """Return a completion's body that asks for one new token, for servers that want one."""
    return [workload.request | {"max_tokens": 1, "temperature": 0}]


def scored(answers: Sequence[Json], workload: Workload) -> Reply:
    """Read scores, and the cached tokens where the usage has them."""
    (answer,) = answers
    if answer.get("scores") is None:
        raise CallFailed("missing_scores", "The reply has no `scores`.")
    return Reply(fitting(answer["scores"], workload), cached_tokens=cached_tokens(answer))


def ranked(answers: Sequence[Json], workload: Workload) -> Reply:
    """Read the relevance of every document, in any order."""
    (answer,) = answers
    with reading("`results` with an index and a relevance_score each"):
        return _by_index([(each["index"], each["relevance_score"]) for each in answer["results"]], workload, answer)


def ranked_list(answers: Sequence[list[Json]], workload: Workload) -> Reply:
    """Read the relevance of every document from a bare list, as SGLang answers."""
    (answer,) = answers
    with reading("list of documents with an index and a score each"):
        return _by_index([(each["index"], each["score"]) for each in answer], workload, {})


def decided(answers: Sequence[Json], workload: Workload) -> Reply:
    """Read the probability that each statement is true."""
    (answer,) = answers
    with reading("`answers` with a probability each"):
        return _by_index(enumerate(each["probability"] for each in answer["answers"]), workload, answer)


def decided_by_system_one(answers: Sequence[Json], workload: Workload) -> Reply:
    """Read one number for each question: `system_one.first_probability`."""
    (answer,) = answers
    with reading("`answers` to all questions by their ids"):
        told = [
            first_probability(str(question), answer["answers"][f"q{index}"])
            for index, question in enumerate(workload.items)
        ]
        return _by_index(enumerate(told), workload, answer)


def completed(answers: Sequence[Json], workload: Workload) -> Reply:
    """Read the mean log-probability of the tokens of every item, each prompt's own behind the query."""
    (answer,) = answers
    with reading("log-probability for each token of each prompt; does the server echo?"):
        told = {int(each["index"]): each["logprobs"]["token_logprobs"] for each in answer["choices"]}
        means = [
            np.reshape(row[len(workload.query) :][: len(item)], len(item)).mean()
            for row, item in zip(in_order(told, workload.num_items), workload.items, strict=True)
        ]
        return _by_index(enumerate(means), workload, answer)


SCORE = Asking("/v1/score", whole, scored)
RERANK = Asking("/v1/rerank", whole, ranked)
DECISIONS = Asking("/v1/decisions", whole, decided)
SYSTEM_ONE = Asking("/v1/systemone", whole, decided_by_system_one, salt_field="x_cache_salt")
LOGLIKELIHOODS = Asking("/v1/completions", whole, completed)


def _by_index(entries: Iterable[tuple[Any, Any]], workload: Workload, answer: Json) -> Reply:
    """Return a number for each item, by their index."""
    values = in_order({int(index): value for index, value in entries}, workload.num_items)
    return Reply(fitting([[value] for value in values], workload), cached_tokens=cached_tokens(answer))


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Read a reply; where something is not there, raise `CallFailed`, `missing_scores`, that names what is wanted."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise CallFailed("missing_scores", f"The reply has no {what}.") from None


def in_order(entries: Mapping[int, Any], count: int) -> list[Any]:
    """Return one entry for each of `count` items, by their index; raises `CallFailed`, `shape_mismatch`."""
    if sorted(entries) != list(range(count)):
        raise CallFailed("shape_mismatch", f"The reply has {len(entries)} scores for {count} items.")
    return [entries[index] for index in range(count)]


def cached_tokens(answer: Json) -> int | None:
    """Return how many tokens the server had kept, where its usage tells."""
    usage = answer.get("usage") or {}
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return details.get("cached_tokens", usage.get("x_cached_tokens"))
