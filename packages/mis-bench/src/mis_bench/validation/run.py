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
from mis_bench.targets.spec import TargetSpec
from mis_bench.targets.target import About, CallFailed, Scores, Target, TargetUnavailable
from mis_bench.validation.cases import Cases, CaseScorer
from mis_bench.validation.gates import (
    FIGURES,
    SPEEDUP,
    SPEEDUP_ITEMS,
    TYPES,
    Dtype,
    GatedFigure,
    Limits,
    ModelValidation,
    Timing,
    thresholds,
)
from mis_bench.validation.isolation import KINDS, isolation
from mis_bench.workload import Workload

_WARM_UPS, ROUNDS = 1, 3
"""Requests before those that are timed, and timed ones, of each number of items."""

_COMPARISONS = ("torch_serial", "equivalence_serial", "equivalence_query_plus_delimiter")

Answers = list[Scores] | str
"""Scores of all cases, or why there are none. The first are full-vocabulary probabilities, none of them 0."""


@dataclass(frozen=True, slots=True)
class ValidatedTarget:
    """What is validated.

    Attributes:
        model: What it is called in the artifact.
        spec: Its target: `engine`, or a server.
        options: Of the target.
        directory: Of the checkpoint, for the engine and PyTorch.
        dtype: What it computes in, as the user says.
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
            TargetUnavailable: it cannot run here, or cannot clear its prefix cache.
        """
        found = registry.opener(TargetSpec(spec, spec, dict(options)), model=self.directory)
        await found.check()
        if not found.forgets:
            raise TargetUnavailable(f"{spec} cannot be validated: it cannot clear its prefix cache.")
        target = await found.open()
        try:
            yield target
        finally:
            await target.close()


def num_steps(counts: Sequence[int]) -> int:
    """Return how often `validate` tells what is measured next; `counts` are numbers of items for the speed-up."""
    return len(KINDS) + len(_COMPARISONS) + len(counts)


async def validate(
    subject: ValidatedTarget,
    cases: Cases,
    counts: Sequence[int],
    on_step: Callable[[str, ModelValidation], None] = lambda *_: None,
) -> ModelValidation:
    """Measure what every gate judges.

    Args:
        subject: What is validated.
        cases: What is asked.
        counts: Numbers of items for the speed-up.
        on_step: Told what is measured next, and all that was found until then.

    Raises:
        TargetUnavailable: the target cannot run here, or there are no thresholds for the type it computes in.
    """
    is_engine, compared, token = subject.spec == "engine", cases.compared, cases.free_token
    softmaxed = [*compared, *(replace(case, apply_softmax=True) for case in compared)]  # computed in another way
    rounding: list[float] | None = None
    timings: list[Timing] = []
    untimed: dict[int, str] = {}

    def found(gates: Sequence[GatedFigure], *, is_whole: bool = False) -> ModelValidation:
        return ModelValidation(
            model=subject.model, dtype=dtype, about=target.about, gates=list(gates), timings=list(timings),
            untimed=dict(untimed), rounding=rounding, waiver=subject.waiver, is_whole=is_whole,
        )  # fmt: skip

    async with subject.opened(subject.spec, subject.options) as target:
        dtype = _computed(target.about, subject.dtype)
        multi = CaseScorer(target, subject.timeout_s)
        serial = replace(multi, layout={"scoring_algorithm": "serial"}) if is_engine else replace(multi, splits=True)
        gates = await isolation(multi, cases.isolated, lambda name, gates: on_step(name, found(gates)))

        on_step(_COMPARISONS[0], found(gates))
        torch, rounding = await _pytorch(subject, dtype, compared)
        equivalence, parity = thresholds(dtype, rounding)

        on_step(_COMPARISONS[1], found(gates))
        one_by_one = await _answers(serial, compared)
        at_once = await _answers(multi, softmaxed)
        gates.append(_sensitivity(one_by_one, compared, equivalence))
        gates += _compare("equivalence_serial.{}", equivalence, one_by_one, at_once, compared)

        on_step(_COMPARISONS[2], found(gates))
        before_items = [
            replace(case, items=tuple(np.insert(item, 0, token) for item in case.items)) for case in compared
        ]
        expected = await _answers(serial, before_items)
        if is_engine:  # few of its shapes are needed
            delimited = {**subject.options, "multi_item_scoring_delimiter": str(token), "skip_warmup": "true"}
            actual = await _answers_of(subject, subject.spec, delimited, softmaxed)
        else:  # a server's delimiter is a matter of its command line
            actual = await _answers(multi, [replace(case, query=np.append(case.query, token)) for case in softmaxed])
        gates += _compare("equivalence_query_plus_delimiter.{}", equivalence, expected, actual, compared)

        for name, answers in (("serial", one_by_one), ("multi", at_once)):
            beside_torch = _compare(f"{{}}_jax_{name}_vs_torch_serial", parity, torch, answers, compared)
            gates += [gate.model_copy(update={"is_waived": bool(subject.waiver)}) for gate in beside_torch]

        for count in counts:
            on_step(name := f"performance.{count}.speedup_vs_serial_p50", found(gates))
            try:
                timings.append(await _timed(multi, serial, cases, count))
                speedup, why = timings[-1].speedup, ""
            except CallFailed as error:
                speedup, why = None, str(error)
                untimed[count] = why
            if count >= SPEEDUP_ITEMS:
                gates.append(GatedFigure(name=name, rule="at least", threshold=SPEEDUP, measured=speedup, detail=why))
        return found(gates, is_whole=True)


def _computed(about: About, given: Dtype | None) -> Dtype:
    """Return what a target makes products in: what it says itself, else what the user says."""
    computed = (given or "bfloat16") if about.dtype in (None, "auto") else about.dtype
    if computed not in TYPES:
        known = " and ".join(TYPES)
        raise TargetUnavailable(f"{about.name} computes in {computed}; there are thresholds for {known}.")
    if given not in (None, computed):
        raise TargetUnavailable(f"{about.name} computes in {computed}, not in {given}; leave --dtype out.")
    return "int8" if about.options.get("quantization") == "int8" else cast("Dtype", computed)


async def _answers(scorer: CaseScorer, cases: Sequence[Workload]) -> Answers:
    try:
        found = [(await scorer.ask(case)).scores for case in cases]
    except CallFailed as error:
        return str(error)
    return found if min(each.min() for each in found) > 0 else "a probability is 0, and has no logarithm"


async def _answers_of(
    subject: ValidatedTarget, spec: str, options: Mapping[str, str], cases: Sequence[Workload]
) -> Answers:
    """Ask another target, which is open only for that."""
    try:
        async with subject.opened(spec, options) as target:
            return await _answers(CaseScorer(target, timeout_s=3600.0), cases)
    except TargetUnavailable as error:
        return str(error)


async def _pytorch(
    subject: ValidatedTarget, dtype: Dtype, cases: Sequence[Workload]
) -> tuple[Answers, list[float] | None]:
    """Return PyTorch's scores in float32, and how far its own rounding takes it from them, for other types."""
    if subject.waiver:
        return subject.waiver, None
    adapter = {name: value for name, value in subject.options.items() if name == "merge_lora"}
    exact = await _answers_of(subject, "transformers-serial", {"dtype": "float32"} | adapter, cases)
    if dtype == "float32" or isinstance(exact, str):
        return exact, None
    rounded = await _answers_of(subject, "transformers-serial", {"dtype": "bfloat16"} | adapter, cases)
    own = _difference(exact, rounded, cases)
    return (exact, list(own.figures)) if own.figures else (own.detail, None)


@dataclass(frozen=True, slots=True)
class Difference:
    """How far apart two computations are: `FIGURES` in their order, none if one failed; the worst item, or why none."""

    figures: Sequence[float]
    detail: str


def _difference(expected: Answers, actual: Answers, cases: Sequence[Workload]) -> Difference:
    """Compare scores; `actual` may go on with label softmaxes of the same cases."""
    if isinstance(expected, str) or isinstance(actual, str):
        return Difference((), next(each for each in (expected, actual) if isinstance(each, str)))
    logprobs = [np.abs(np.log(mine) - np.log(theirs)) for mine, theirs in zip(actual, expected, strict=False)]
    wanted = [each / each.sum(axis=1, keepdims=True) for each in expected]
    found = [each / each.sum(axis=1, keepdims=True) for each in actual[: len(cases)]] + actual[len(cases) :]
    softmaxes = [np.abs(mine - theirs) for mine, theirs in zip(found, wanted + wanted, strict=False)]
    worst = int(np.argmax([each.max() for each in softmaxes]))
    item = int(np.argmax(softmaxes[worst].max(axis=1)))
    in_order = f"{_order_agreement(wanted, found[: len(cases)]):.1%} of pairs in order"
    figures = softmaxes[worst].max(), np.concatenate(softmaxes).mean(), np.concatenate(logprobs).max()
    return Difference(
        [float(figure) for figure in figures], f"{cases[worst % len(cases)].name}, item {item}; {in_order}"
    )


def _compare(
    name: str, limits: Limits, expected: Answers, actual: Answers, cases: Sequence[Workload]
) -> list[GatedFigure]:
    """Return a gate for each figure; `name` has `{}` for the figure's own name."""
    found = _difference(expected, actual, cases)
    return [
        GatedFigure(name=name.format(figure), threshold=limit, measured=value, detail=found.detail)
        for figure, limit, value in zip(FIGURES, limits, found.figures or [None] * len(FIGURES), strict=True)
    ]


def _sensitivity(found: Answers, cases: Sequence[Workload], limits: Limits) -> GatedFigure:
    """Give every item the scores of the one before it, which must be noticed: flat scores pass every comparison."""
    swapped = found if isinstance(found, str) else [np.roll(each, 1, axis=0) for each in found]
    (_, mean, _) = _compare("sensitivity.swapped_items_{}", limits, found, swapped, cases)
    return mean.model_copy(update={"rule": "above"})


def _order_agreement(expected: Sequence[Scores], actual: Sequence[Scores]) -> float:
    """Return the share of pairs of items, within a case, that both computations put in the same order."""
    mine, wanted = (
        [np.sign(np.subtract.outer(each[:, 0], each[:, 0]))[np.triu_indices(len(each), 1)] for each in softmaxes]
        for softmaxes in (actual, expected)
    )
    return float((np.concatenate(mine) == np.concatenate(wanted)).mean())


async def _timed(multi: CaseScorer, serial: CaseScorer, cases: Cases, count: int) -> Timing:
    """Time items at once and one at a time, with requests that are new in every round."""
    times = []
    for number in range(_WARM_UPS + ROUNDS):
        case = cases.to_time(count, number)
        times.append([(await scorer.ask(case, anew=True)).ms for scorer in (multi, serial)])
    multi_ms, serial_ms = map(list, zip(*times[_WARM_UPS:], strict=True))
    return Timing(items=count, multi_ms=multi_ms, serial_ms=serial_ms)
