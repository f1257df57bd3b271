"""Carrying an evaluation out: data and targets looked at before anything is asked, then one target after another."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import mis_bench
from mis_bench.evaluate.asking import ask, check_answers
from mis_bench.evaluate.figures import ALWAYS
from mis_bench.evaluate.gates import FigureGate
from mis_bench.evaluate.measured import Rows, Told, by_slice, measure, slice_names
from mis_bench.evaluate.paired import pair
from mis_bench.evaluate.results import Evaluated, Evaluation
from mis_bench.evaluate.targets import EvaluatedTarget
from mis_bench.targets.target import TargetUnavailable
from mis_core.labelled import read_labelled

Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it is over, and how much there is."""


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """What is evaluated, and on what.

    Attributes:
        targets: By whom rows are answered.
        rows: The data.
        gates: What figures must be.
        about: What a reader of the report must know.
    """

    targets: Sequence[EvaluatedTarget]
    rows: Rows
    gates: Sequence[FigureGate]
    about: Sequence[tuple[str, str]]

    @classmethod
    def of(
        cls, targets: Sequence[str], data: Path, labels: Sequence[str], model: str | None, gates: Sequence[FigureGate]
    ) -> "EvaluationPlan":
        """Look whether it can be done, before anything is loaded or asked.

        Raises:
            ConfigError: the data cannot be read, or is of no use.
            GateError: a gate names a slice that no row has.
            TargetUnavailable: a target cannot be.
        """
        found = read_labelled(data, labels)
        check_answers(found)
        rows = Rows.of(found)
        for gate in gates:
            gate.check(slice_names(rows))
        made = [EvaluatedTarget.of(text, model, found.kind) for text in targets]
        names = [each.name for each in made]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise TargetUnavailable(f"The target {twice} is named twice; tell them apart: ALIAS={twice}.")
        about = [
            ("data", f"{data.name}, {len(found.rows):,} rows of kind {found.kind}"),
            ("sha256 of the data", hashlib.sha256(data.read_bytes()).hexdigest()),
            ("targets", ", ".join(names)),
            ("model", model or "-"),
            ("mis-bench", mis_bench.__version__),
        ]
        return cls(made, rows, gates, about)

    @property
    def names(self) -> tuple[str, ...]:
        """Figures with a number of their own: those that are always computed, and those of gates."""
        numbered = (gate.figure for gate in self.gates if "@" in gate.figure)
        return tuple(dict.fromkeys([*ALWAYS, *numbered]))


async def run(plan: EvaluationPlan, callers: int, timeout_s: float, show: Progress) -> Evaluation:
    """Ask all targets, one after another, and compute what they come to; raises `TargetUnavailable`.

    Args:
        plan: What is asked of whom.
        callers: Requests under way at once.
        timeout_s: A request may take.
        show: Called as rows are answered.
    """
    targets = [await _evaluate(plan, target, callers, timeout_s, show) for target in plan.targets]
    first = targets[0]
    pairs = [pair((first.target, each.target), first.told, each.told, plan.names) for each in targets[1:]]
    missed = [
        why if len(targets) == 1 else f"{each.target}: {why}"
        for each in targets
        for gate in plan.gates
        if (why := gate.why_not(each.values(gate.slice))) is not None
    ]
    return Evaluation(targets, pairs, missed)


async def _evaluate(
    plan: EvaluationPlan, target: EvaluatedTarget, callers: int, timeout_s: float, show: Progress
) -> Evaluated:
    data = plan.rows.data
    over = 0

    def answered(rows: int) -> None:
        nonlocal over
        over += rows
        show(target.name, over, len(data.rows))

    opened = await target.open(timeout_s, callers)
    try:
        found = await ask(opened, target.dialect, data, callers, answered)
    finally:
        await opened.close()
    told = Told.of(found, plan.rows)
    failures = [(data.rows[row].id, why) for row, why in sorted(found.failures.items())]
    figures = measure(told, plan.names).figures
    return Evaluated(target.name, len(data.rows), failures, told, figures, by_slice(told, plan.names))
