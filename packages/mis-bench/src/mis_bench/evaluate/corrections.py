"""Corrections of probabilities that need no labels: a distribution is divided by what the model says of nothing.

Both take a bias for one answer out, whatever the state. They change logits by a constant for each answer, as the biases
of a calibration do, which are fitted to labels instead.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64
from scipy.special import softmax

from mis_bench.evaluate.dialects import Dialect, Distribution, Scored, Send
from mis_bench.targets.target import CallFailed

Correction = Literal["content-free", "permutation"]

MOST_OPTIONS = 64
"""Options of a question whose order is corrected, at most."""

_SAMPLES = 32  # states that a prior is estimated from, at most
_ASKED = 256  # questions asked for that, about
_LEAST_SAMPLES = 4
_NOTHING = ""
_TINY = 1e-12

Sample = tuple[Any, Mapping[str, Any]]
"""A state, and choices about it."""


def without_prior(
    probabilities: Float64[np.ndarray, "*rows classes"], prior: Float64[np.ndarray, "*rows classes"]
) -> Float64[np.ndarray, "*rows classes"]:
    """Return probabilities divided by those that a class has anyway, made to sum to 1.

    Source: contextual calibration, Zhao et al., Calibrate Before Use, arXiv 2102.09690, section 5, with W = diag(p)^-1.
    """
    logits = np.log(np.maximum(probabilities, _TINY)) - np.log(np.maximum(prior, _TINY))
    return softmax(logits, axis=-1)


def permutation_prior(told: Float64[np.ndarray, "rows classes classes"]) -> Float64[np.ndarray, " classes"]:
    """Return how probable each place is, whichever option stands there.

    Source: PriDe, Zheng et al., Large Language Models Are Not Robust Multiple Choice Selectors, arXiv 2309.03882,
    section 4.1: the softmax of the mean log probability of a place over all rotations, averaged over samples.

    Args:
        told: Probabilities of places; in rotation r the option r places on stands at each.
    """
    return softmax(np.log(np.maximum(told, _TINY)).mean(axis=1), axis=-1).mean(axis=0)


def content_free(dialect: Dialect) -> Dialect:
    """Return a dialect that asks the same with nothing in the place of the item or state, and divides by the answer."""
    return Dialect(
        score=None if dialect.score is None else _scoring(dialect.score),
        decide=None if dialect.decide is None else _deciding(dialect.decide),
    )


def permuted(dialect: Dialect, samples: Sequence[Sample]) -> Dialect:
    """Return a dialect that divides answers to a choice by the prior of the place where each option stands.

    Args:
        dialect: How a target is asked.
        samples: States with their choices, which the prior is estimated from; some are enough.
    """
    assert dialect.decide is not None, "only choices have an order"
    return Dialect(decide=_Permuted(dialect.decide, samples).ask)


def _scoring(score: Callable[..., Awaitable[Sequence[Scored]]]) -> Callable[..., Awaitable[Sequence[Scored]]]:
    async def ask(send: Send, query: str, items: Sequence[str], labels: Sequence[str]) -> Sequence[Scored]:
        told, (nothing,) = await asyncio.gather(
            score(send, query, items, labels), score(send, query, [_NOTHING], labels)
        )
        return [_divided(each, nothing) for each in told]

    return ask


def _deciding(decide: Callable[..., Awaitable[Mapping[str, Scored]]]) -> Callable[..., Awaitable[Mapping[str, Scored]]]:
    async def ask(send: Send, state: Any, questions: Mapping[str, Any]) -> Mapping[str, Scored]:
        told, nothing = await asyncio.gather(decide(send, state, questions), decide(send, _NOTHING, questions))
        return {name: _divided(each, nothing[name]) for name, each in told.items()}

    return ask


def _divided(said: Scored, prior: Scored) -> Scored:
    for each in (said, prior):
        if isinstance(each, CallFailed):
            return each
    assert isinstance(said, Distribution)
    assert isinstance(prior, Distribution)
    values, anyway = (np.asarray(each.probabilities, np.float64) for each in (said, prior))
    return _corrected(values, anyway, said.mass)


def _corrected(
    values: Float64[np.ndarray, " classes"], prior: Float64[np.ndarray, " classes"], mass: float | None
) -> Scored:
    if len(values) != len(prior) or not (values >= 0).all() or not (prior >= 0).all():
        return CallFailed("missing_scores", "The reply has no probability for each class.")
    return Distribution(without_prior(values, prior).tolist(), mass)


class _Permuted:
    """Answers to choices without the prior of places, which is estimated once for each id and number of options."""

    def __init__(self, decide: Callable[..., Awaitable[Mapping[str, Scored]]], samples: Sequence[Sample]) -> None:
        self._decide = decide
        self._samples: dict[tuple[str, int], list[tuple[Any, Any]]] = defaultdict(list)
        for state, questions in samples:
            for name, question in questions.items():
                self._samples[name, len(question["criteria"])].append((state, question))
        self._priors: dict[tuple[str, int], asyncio.Task[Float64[np.ndarray, " classes"]]] = {}

    async def ask(self, send: Send, state: Any, questions: Mapping[str, Any]) -> Mapping[str, Scored]:
        """Ask questions about a state."""
        told = dict(await self._decide(send, state, questions))
        for name, question in questions.items():
            said = told[name]
            if question["type"] == "choice" and isinstance(said, Distribution):
                prior = await self._prior(send, name, len(question["criteria"]))
                told[name] = _corrected(np.asarray(said.probabilities, np.float64), prior, said.mass)
        return told

    async def _prior(self, send: Send, name: str, count: int) -> Float64[np.ndarray, " classes"]:
        if count > MOST_OPTIONS:
            raise CallFailed(
                "rejected", f"A choice of {count} options is not corrected for order; at most {MOST_OPTIONS} are."
            )
        key = name, count
        task = self._priors.get(key)
        if task is None or (task.done() and task.exception() is not None):
            task = self._priors[key] = asyncio.create_task(self._estimated(send, name, count))
        return await asyncio.shield(task)

    async def _estimated(self, send: Send, name: str, count: int) -> Float64[np.ndarray, " classes"]:
        samples = self._samples[name, count]
        wanted = min(len(samples), max(_LEAST_SAMPLES, min(_SAMPLES, _ASKED // count)))
        chosen = [samples[index * len(samples) // wanted] for index in range(wanted)]  # from all of the data
        told = await asyncio.gather(*(self._rotated(send, name, *each) for each in chosen), return_exceptions=True)
        rows: list[Float64[np.ndarray, "classes classes"]] = []
        for each in told:
            if isinstance(each, CallFailed):  # a state that is too long, say; others are enough
                continue
            if isinstance(each, BaseException):
                raise each
            rows.append(each)
        if not rows:
            raise CallFailed("rejected", "No sampled state could be asked with its options in another order.")
        return permutation_prior(np.stack(rows))

    async def _rotated(
        self, send: Send, name: str, state: Any, question: Mapping[str, Any]
    ) -> Float64[np.ndarray, "classes classes"]:
        """Ask in all rotations of the options; raises `CallFailed`."""
        options = list(question["criteria"].items())
        rotations = [dict(options[by:] + options[:by]) for by in range(len(options))]
        replies = await asyncio.gather(
            *(self._decide(send, state, {name: dict(question) | {"criteria": each}}) for each in rotations),
            return_exceptions=True,  # all are awaited
        )
        rows: list[Sequence[float]] = []
        for reply in replies:
            said = reply if isinstance(reply, BaseException) else reply[name]
            if isinstance(said, BaseException):
                raise said
            if len(said.probabilities) != len(options):
                raise CallFailed("missing_scores", "The reply has no probability for each class.")
            rows.append(said.probabilities)
        return np.asarray(rows, np.float64)
