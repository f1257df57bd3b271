"""All gates of one model, in the runbook's order."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np

from mis_bench.targets.base import About, CallFailed, Target, TargetUnavailable
from mis_bench.validation.ask import Scorer
from mis_bench.validation.cases import Cases, with_items
from mis_bench.validation.equivalence import Answers, answers, compare, swapped
from mis_bench.validation.gates import (
    DELIMITER,
    KINDS,
    SERIAL,
    SWAPPED,
    TORCH_MULTI,
    TORCH_SERIAL,
    ModelValidation,
    Timing,
    speedup_gate,
)
from mis_bench.validation.isolation import isolation
from mis_bench.validation.thresholds import Dtype
from mis_bench.workload import Workload, build_workload

_WARM_UPS, _ROUNDS = 1, 3

Opening = Callable[[], Awaitable[Target]]
"""Opens a target; raises `TargetUnavailable`."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is validated: a target and its variants.

    Attributes:
        multi: The target, asked for all items at once.
        serial: The same model, item by item.
        delimited: Opens the target with a delimiter token between query and item; None where that is decided
            elsewhere, by a server's command line. The gate then puts the token at the end of the query.
        reference: Opens PyTorch's target, or the reason why the user wants none.
    """

    multi: Scorer
    serial: Scorer
    delimited: Callable[[int], Awaitable[Target]] | None
    reference: Opening | str


async def validate(
    model: str,
    subject: Subject,
    *,
    dtype: Dtype,
    cases: Cases,
    counts: Sequence[int],
    vocab_size: int | None = None,
    on_gate: Callable[[str], None] = lambda _: None,
) -> ModelValidation:
    """Measure what every gate judges.

    Args:
        model: What it is called in the artifact.
        subject: What is validated.
        dtype: `bfloat16` or `float32`: what the model computes in, which decides the thresholds.
        cases: What is asked.
        counts: Numbers of items for the speed-up.
        vocab_size: Tokens are folded into so many ids.
        on_gate: Told what is measured next, `steps` times.
    """
    figures = await isolation(subject.multi, cases.isolated, on_gate)
    names = [case.name for case in cases.compared]

    on_gate("equivalence_serial")
    multi = await answers(subject.multi.scores, cases.compared, with_softmax=True)
    serial = await answers(subject.serial.scores, cases.compared)
    # Items swapped on purpose must be noticed: on nearly flat scores, every comparison passes.
    (_, blindness, _) = compare("{}", serial, swapped(serial), names)
    figures.append(blindness.model_copy(update={"name": SWAPPED}))
    figures += compare(SERIAL, serial, multi, names)

    on_gate("equivalence_query_plus_delimiter")
    pointwise = await answers(
        subject.serial.scores,
        [with_items(case, [np.insert(item, 0, cases.free_token) for item in case.items]) for case in cases.compared],
    )
    figures += compare(DELIMITER, pointwise, await _delimited(subject, cases), names)

    on_gate("torch_serial")
    about, torch = await _reference(subject.reference, cases.compared)
    figures += compare(TORCH_SERIAL, torch, serial, names) + compare(TORCH_MULTI, torch, multi, names)

    timings = []
    for count in counts:
        on_gate(speedup_gate(count))
        timings.append(await _timed(subject, count, vocab_size))
    return ModelValidation(
        model=model,
        dtype=dtype,
        about=subject.multi.target.about,
        reference=about,
        waiver=subject.reference if isinstance(subject.reference, str) else None,
        figures=figures,
        timings=timings,
    )


def steps(counts: Sequence[int]) -> int:
    """Return how often `on_gate` is called."""
    return len(KINDS) + 3 + len(counts)


@asynccontextmanager
async def closing(target: Target) -> AsyncIterator[Target]:
    """Close a target at the end."""
    try:
        yield target
    finally:
        await target.close()


async def _delimited(subject: Subject, cases: Cases) -> Answers:
    token = cases.free_token
    if subject.delimited is None:
        behind = [replace(case, query=np.append(case.query, token)) for case in cases.compared]
        return await answers(subject.multi.scores, behind, with_softmax=True)
    try:
        target = await subject.delimited(token)
    except TargetUnavailable as error:
        return Answers(failure=str(error))
    async with closing(target):
        return await answers(replace(subject.multi, target=target).scores, cases.compared, with_softmax=True)


async def _reference(reference: Opening | str, cases: Sequence[Workload]) -> tuple[About | None, Answers]:
    if isinstance(reference, str):
        return None, Answers(failure=reference)
    try:
        target = await reference()
    except TargetUnavailable as error:
        return None, Answers(failure=str(error))
    async with closing(target):
        return target.about, await answers(Scorer(target, timeout_s=3600.0).scores, cases)


async def _timed(subject: Subject, count: int, vocab_size: int | None) -> Timing:
    """Time items at once and one at a time, with queries of 300 tokens and items of 20, new in every round."""
    base = build_workload(f"speed-300-{count}-20")
    multi_ms, serial_ms = [], []
    try:
        for number in range(_WARM_UPS + _ROUNDS):
            workload = base.another(number)
            workload = workload if vocab_size is None else workload.within(vocab_size)
            multi_ms.append(await subject.multi.milliseconds(workload))
            serial_ms.append(await subject.serial.milliseconds(workload))
    except CallFailed as error:
        return Timing(items=count, failure=str(error))
    return Timing(items=count, multi_ms=multi_ms[_WARM_UPS:], serial_ms=serial_ms[_WARM_UPS:])
