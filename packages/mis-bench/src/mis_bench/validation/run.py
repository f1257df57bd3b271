"""All gates of one model, in the runbook's order.

Equivalence and parity: two computations of the same scores, compared as label softmaxes and log-probabilities.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from mis_bench.targets import registry
from mis_bench.targets.base import About, CallFailed, Scores, Target, TargetUnavailable
from mis_bench.targets.spec import TargetSpec
from mis_bench.validation.cases import Cases, Scorer
from mis_bench.validation.gates import (
    EQUIVALENCE,
    FIGURES,
    PARITY,
    SPEEDUP,
    SPEEDUP_ITEMS,
    Dtype,
    Gate,
    ModelValidation,
    Timing,
)
from mis_bench.validation.isolation import isolation
from mis_bench.workload import Workload

_WARM_UPS, _ROUNDS = 1, 3


@dataclass(frozen=True, slots=True)
class Subject:
    """What is validated.

    Attributes:
        model: What it is called in the artifact.
        spec: Its target: `engine`, or a server.
        options: Of the target.
        directory: Of the checkpoint, for the engine and PyTorch.
        dtype: What it computes in, by the user's word.
        waiver: Why the user wants no comparison with PyTorch, or None.
        timeout_s: Seconds that a request may take.
    """

    model: str
    spec: str
    options: Mapping[str, str]
    directory: Path | None
    dtype: Dtype | None = None
    waiver: str | None = None
    timeout_s: float = 180.0

    @asynccontextmanager
    async def opened(self, spec: str, options: Mapping[str, str]) -> AsyncIterator[Target]:
        """Open a target of its checkpoint for a while.

        Raises:
            TargetUnavailable: it cannot run here, or knows no way to forget a query.
        """
        found = registry.opener(TargetSpec(spec, spec, dict(options)), model=self.directory, timeout_s=self.timeout_s)
        await found.check()
        if not found.capabilities.forgets:
            raise TargetUnavailable(f"{spec} cannot be validated: it knows no way to forget a query.")
        target = await found.open()
        try:
            yield target
        finally:
            await target.close()


@dataclass(frozen=True, slots=True)
class Answers:
    """One computation's scores of all cases, or why there are none.

    Attributes:
        probabilities: Of each label over the full vocabulary, for each case.
        softmaxes: Label softmaxes as the computation itself returned them; empty if they follow from the
            probabilities.
        failure: One sentence, if it failed.
    """

    probabilities: Sequence[Scores] = ()
    softmaxes: Sequence[Scores] = ()
    failure: str = ""

    @property
    def label_softmaxes(self) -> list[Scores]:
        """Probabilities of the labels among themselves, by case."""
        return [each / each.sum(axis=1, keepdims=True) for each in self.probabilities]


async def validate(
    subject: Subject, cases: Cases, counts: Sequence[int], on_gate: Callable[[str], None] = lambda _: None
) -> ModelValidation:
    """Measure what every gate judges.

    Args:
        subject: What is validated.
        cases: What is asked.
        counts: Numbers of items for the speed-up.
        on_gate: Told what is measured next.

    Raises:
        TargetUnavailable: the target cannot run here, or there are no thresholds for the type it computes in.
    """
    is_engine, compared, token = subject.spec == "engine", cases.compared, cases.free_token
    timings: list[Timing] = []
    async with subject.opened(subject.spec, subject.options) as target:
        dtype = _computed(target.about, subject.dtype)
        multi = Scorer(target, subject.timeout_s)
        serial = replace(multi, layout={"scoring_algorithm": "serial"}) if is_engine else replace(multi, splits=True)
        gates = await isolation(multi, cases.isolated, on_gate)

        on_gate("equivalence_serial")
        one_by_one = await _answers(serial, compared)
        at_once = await _answers(multi, compared, with_softmax=True)
        gates.append(_sensitivity(one_by_one, compared, EQUIVALENCE[dtype]))
        gates += _compare("equivalence_serial.{}", EQUIVALENCE[dtype], one_by_one, at_once, compared)

        on_gate("equivalence_query_plus_delimiter")
        before_items = [
            replace(case, items=tuple(np.insert(item, 0, token) for item in case.items)) for case in compared
        ]
        expected = await _answers(serial, before_items)
        if is_engine:  # few of its shapes are needed
            delimited = {**subject.options, "multi_item_scoring_delimiter": str(token), "skip_warmup": "true"}
            actual = await _answers_of(subject, subject.spec, delimited, compared, with_softmax=True)
        else:  # a server's delimiter is a matter of its command line
            behind_query = [replace(case, query=np.append(case.query, token)) for case in compared]
            actual = await _answers(multi, behind_query, with_softmax=True)
        gates += _compare("equivalence_query_plus_delimiter.{}", EQUIVALENCE[dtype], expected, actual, compared)

        on_gate("torch_serial")
        torch = Answers(failure=subject.waiver or "")
        if not subject.waiver:
            torch = await _answers_of(subject, "transformers-serial", {"dtype": "float32"}, compared)
        for name, answers in (("serial", one_by_one), ("multi", at_once)):
            parity = _compare(f"{{}}_jax_{name}_vs_torch_serial", PARITY[dtype], torch, answers, compared)
            gates += [gate.model_copy(update={"is_waived": bool(subject.waiver)}) for gate in parity]

        for count in counts:
            gate = Gate(name=f"performance.{count}.speedup_vs_serial_p50", rule="at least", threshold=SPEEDUP)
            on_gate(gate.name)
            try:
                timings.append(await _timed(multi, serial, cases, count))
                measured = {"measured": timings[-1].speedup}
            except CallFailed as error:
                measured = {"detail": str(error)}
            if count >= SPEEDUP_ITEMS:
                gates.append(gate.model_copy(update=measured))
    return ModelValidation(model=subject.model, dtype=dtype, about=target.about, gates=gates, timings=timings)


def _computed(about: About, given: Dtype | None) -> Dtype:
    """Return the type that a target computes in: what it says itself, else what the user says."""
    computed = (given or "bfloat16") if about.dtype in (None, "auto") else about.dtype
    if computed not in EQUIVALENCE:
        known = " and ".join(EQUIVALENCE)
        raise TargetUnavailable(f"{about.name} computes in {computed}; there are thresholds for {known}.")
    if given not in (None, computed):
        raise TargetUnavailable(f"{about.name} computes in {computed}, not in {given}; leave --dtype out.")
    return cast("Dtype", computed)


async def _answers(scorer: Scorer, cases: Sequence[Workload], *, with_softmax: bool = False) -> Answers:
    """Score all cases; `with_softmax` also with `apply_softmax`, which engines compute in another way."""
    softmaxed = [replace(case, apply_softmax=True) for case in cases if with_softmax]
    try:
        found = [(await scorer.ask(case)).scores for case in (*cases, *softmaxed)]
    except CallFailed as error:
        return Answers(failure=str(error))
    if min(each.min() for each in found) <= 0:
        return Answers(failure="a probability is 0, and has no logarithm")
    return Answers(found[: len(cases)], found[len(cases) :])


async def _answers_of(
    subject: Subject, spec: str, options: Mapping[str, str], cases: Sequence[Workload], *, with_softmax: bool = False
) -> Answers:
    """Return another target's answers; it is open only for them."""
    try:
        async with subject.opened(spec, options) as target:
            return await _answers(Scorer(target, timeout_s=3600.0), cases, with_softmax=with_softmax)
    except TargetUnavailable as error:
        return Answers(failure=str(error))


def _compare(
    name: str, limits: Sequence[float], expected: Answers, actual: Answers, cases: Sequence[Workload]
) -> list[Gate]:
    """Measure how far apart two computations are; the detail is the worst item, or why there is no figure.

    `name` has `{}` for the figure's own name.
    """
    gates = [Gate(name=name.format(figure), threshold=limit) for figure, limit in zip(FIGURES, limits, strict=True)]
    if failure := expected.failure or actual.failure:
        return [gate.model_copy(update={"detail": failure}) for gate in gates]
    wanted = [*expected.label_softmaxes, *expected.label_softmaxes]
    found = [*actual.label_softmaxes, *actual.softmaxes]
    softmaxes = [np.abs(mine - theirs) for mine, theirs in zip(found, wanted, strict=False)]
    both = zip(actual.probabilities, expected.probabilities, strict=True)
    logprobs = [np.abs(np.log(mine) - np.log(theirs)) for mine, theirs in both]
    worst = int(np.argmax([each.max() for each in softmaxes]))
    item = int(np.argmax(softmaxes[worst].max(axis=1)))
    in_order = f"{_order_agreement(expected, actual):.1%} of pairs in order"
    detail = f"{cases[worst % len(cases)].name}, item {item}; {in_order}"
    measured = softmaxes[worst].max(), np.concatenate(softmaxes).mean(), np.concatenate(logprobs).max()
    return [
        gate.model_copy(update={"measured": float(value), "detail": detail})
        for gate, value in zip(gates, measured, strict=True)
    ]


def _sensitivity(found: Answers, cases: Sequence[Workload], limits: Sequence[float]) -> Gate:
    """Give every item the scores of the one before it, which must be noticed: flat scores pass every comparison."""
    swapped = replace(found, probabilities=[np.roll(each, 1, axis=0) for each in found.probabilities])
    (_, mean, _) = _compare("sensitivity.swapped_items_{}", limits, found, swapped, cases)
    return mean.model_copy(update={"rule": "above"})


def _order_agreement(expected: Answers, actual: Answers) -> float:
    """Return the share of pairs of items, within a case, that both computations put in the same order."""
    mine, wanted = (
        [np.sign(np.subtract.outer(each[:, 0], each[:, 0]))[np.triu_indices(len(each), 1)] for each in softmaxes]
        for softmaxes in (actual.label_softmaxes, expected.label_softmaxes)
    )
    return float((np.concatenate(mine) == np.concatenate(wanted)).mean())


async def _timed(multi: Scorer, serial: Scorer, cases: Cases, count: int) -> Timing:
    """Time items at once and one at a time, with requests that are new in every round."""
    times = []
    for number in range(_WARM_UPS + _ROUNDS):
        case = cases.to_time(count, number)
        times.append([(await scorer.ask(case, anew=True)).ms for scorer in (multi, serial)])
    multi_ms, serial_ms = map(list, zip(*times[_WARM_UPS:], strict=True))
    return Timing(items=count, multi_ms=multi_ms, serial_ms=serial_ms)
