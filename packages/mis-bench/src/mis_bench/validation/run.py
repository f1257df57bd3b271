"""All gates of one model, in the runbook's order."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from mis_bench.artifacts.validation import (
    Difference,
    Gate,
    Isolation,
    ModelValidation,
    Sensitivity,
    judged,
    waived,
)
from mis_bench.targets.base import About, BlockingTarget, TargetUnavailable
from mis_bench.validation.ask import ask
from mis_bench.validation.cases import Cases, with_items
from mis_bench.validation.equivalence import (
    Answers,
    answers,
    compare,
    difference_gates,
    order_agreement,
    swapped,
)
from mis_bench.validation.isolation import KINDS, isolation_gates
from mis_bench.validation.speed import speed_gates
from mis_bench.validation.subject import Subject
from mis_bench.validation.thresholds import EQUIVALENCE, PARITY, Dtype
from mis_bench.workload import Workload

_SERIAL = "equivalence_serial.{}"
_DELIMITER = "equivalence_query_plus_delimiter.{}"
_TORCH = {"serial": "{}_jax_serial_vs_torch_serial", "multi": "{}_jax_multi_vs_torch_serial"}


def validate(
    model: str,
    subject: Subject,
    *,
    reference: Callable[[], BlockingTarget] | str,
    dtype: Dtype,
    cases: Cases,
    counts: Sequence[int],
    vocab_size: int | None = None,
    on_gate: Callable[[str], None] = lambda _: None,
) -> ModelValidation:
    """Measure and judge every gate.

    Args:
        model: What it is called in the artifact.
        subject: What is validated.
        reference: Makes PyTorch's target, or the reason why the user wants none.
        dtype: `bfloat16` or `float32`: what the model computes in, which decides the thresholds.
        cases: What is asked.
        counts: Numbers of items for the speed-up.
        vocab_size: Tokens are folded into so many ids.
        on_gate: Told what is measured next, `steps` times.
    """
    gates = list(isolation_gates(subject.multi, cases.isolated, on_gate))

    on_gate("equivalence_serial")
    names = [case.name for case in cases.compared]
    multi = answers(lambda case: ask(subject.multi, case), cases.compared, with_softmax=True)
    serial = answers(subject.serial.scores, cases.compared)
    gates.append(_blindness(serial, dtype, names))
    gates += difference_gates(_SERIAL, compare(serial, multi, names), EQUIVALENCE[dtype])

    on_gate("equivalence_query_plus_delimiter")
    pointwise = answers(lambda case: subject.serial.scores(_behind(case, cases.free_token)), cases.compared)
    delimited = _delimited(subject, cases)
    gates += difference_gates(_DELIMITER, compare(pointwise, delimited, names), EQUIVALENCE[dtype])

    on_gate("torch_serial")
    about, torch_gates = _parity(reference, {"serial": serial, "multi": multi}, cases.compared, dtype)
    gates += torch_gates

    performance = {}
    for count, found, gate in speed_gates(subject.multi, subject.serial, counts, vocab_size, on_gate):
        performance |= {count: found} if found else {}
        gates += [gate] if gate else []

    measured = {gate.name: gate.measured for gate in gates}

    def part(prefix: str) -> dict[str, float | None]:
        return {name.removeprefix(prefix): value for name, value in measured.items() if name.startswith(prefix)}

    return ModelValidation(
        model=model,
        dtype=dtype,
        about=subject.multi.about,
        reference=about,
        isolation=Isolation.model_validate(part("isolation.")),
        sensitivity=Sensitivity.model_validate(part("sensitivity.")),
        equivalence_serial=Difference.model_validate(part("equivalence_serial.")),
        equivalence_query_plus_delimiter=Difference.model_validate(part("equivalence_query_plus_delimiter.")),
        speedup_items=list(counts),
        performance=performance,
        gates=gates,
        **{name: value for name, value in measured.items() if name.endswith("_vs_torch_serial")},
    )


def steps(counts: Sequence[int]) -> int:
    """Return how often `on_gate` is called."""
    return len(KINDS) + 1 + 3 + len(counts)


def _blindness(serial: Answers, dtype: str, names: Sequence[str]) -> Gate:
    """Items swapped on purpose must be noticed: on nearly flat scores, every comparison passes."""
    found, detail = compare(serial, swapped(serial), names)
    limit = EQUIVALENCE[dtype].mean_abs_diff
    return judged("sensitivity.swapped_items_mean_abs_diff", found.mean_abs_diff, "above", limit, detail)


def _behind(case: Workload, token: int) -> Workload:
    return with_items(case, [np.insert(item, 0, token) for item in case.items])


def _delimited(subject: Subject, cases: Cases) -> Answers:
    token = cases.free_token
    if subject.delimited is None:
        return answers(
            lambda case: ask(subject.multi, replace(case, query=np.append(case.query, token))),
            cases.compared,
            with_softmax=True,
        )
    try:
        target = subject.delimited(token)
    except TargetUnavailable as error:
        return Answers(failure=str(error))
    with closing(target):
        return answers(lambda case: ask(target, case), cases.compared, with_softmax=True)


def _parity(
    reference: Callable[[], BlockingTarget] | str, found: dict[str, Answers], cases: Sequence[Workload], dtype: str
) -> tuple[About | None, list[Gate]]:
    about, gates = None, []
    if isinstance(reference, str):
        expected = Answers(failure=reference)
    else:
        try:
            target = reference()
        except TargetUnavailable as error:
            expected = Answers(failure=str(error))
        else:
            with closing(target):
                about = target.about
                expected = answers(lambda case: ask(target, case), cases)
    for side, actual in found.items():
        difference, detail = compare(expected, actual, [case.name for case in cases])
        if difference.max_abs_diff is not None:
            detail += f"; {order_agreement(expected, actual):.1%} of pairs in the same order"
        gates += difference_gates(_TORCH[side], (difference, detail), PARITY[dtype])
    if isinstance(reference, str):
        gates = [waived(gate, reference) for gate in gates]
    return about, gates
