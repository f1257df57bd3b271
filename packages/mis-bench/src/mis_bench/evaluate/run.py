"""Carrying an evaluation out: data and targets looked at before anything is asked, then one target after another."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import mis_bench
from mis_bench.evaluate.asking import Found, ask, check_answers
from mis_bench.evaluate.corrections import Correction, Sample, content_free, permuted
from mis_bench.evaluate.dialects import Dialect
from mis_bench.evaluate.figures import ALWAYS
from mis_bench.evaluate.gates import FigureGate
from mis_bench.evaluate.measured import Rows, Told, by_slice, measure, slice_names
from mis_bench.evaluate.paired import pair
from mis_bench.evaluate.results import Evaluated, Evaluation
from mis_bench.evaluate.targets import EvaluatedTarget
from mis_bench.evaluate.wordings import Wording, read_wordings
from mis_bench.targets.target import TargetUnavailable
from mis_core.errors import ConfigError
from mis_core.labelled import DecideRow, Labelled, read_labelled

Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it is over, and how much there is."""


class Way(NamedTuple):
    """How targets are asked.

    Attributes:
        wording: None asks as the data does.
        correction: What is made of the answers, if anything.
        samples: States with questions in this wording, which a correction may estimate from.
    """

    wording: Wording | None = None
    correction: Correction | None = None
    samples: Sequence[Sample] = ()

    @property
    def name(self) -> str:
        """What it is called beside others of a target; empty if it is as the data is."""
        wording = "" if self.wording is None else self.wording.name
        return ", ".join(filter(None, [wording, self.correction]))

    def over(self, dialect: Dialect) -> Dialect:
        """Return a dialect that asks in this way."""
        if self.correction == "permutation":
            dialect = permuted(dialect, self.samples)
        if self.wording is not None:
            dialect = self.wording.over(dialect)
        return content_free(dialect) if self.correction == "content-free" else dialect


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """What is evaluated, and on what.

    Attributes:
        targets: By whom rows are answered.
        rows: The data.
        ways: How each of them asks.
        gates: What figures must be.
        about: What a reader of the report must know.
    """

    targets: Sequence[EvaluatedTarget]
    rows: Rows
    ways: Sequence[Way]
    gates: Sequence[FigureGate]
    about: Sequence[tuple[str, str]]

    @classmethod
    def of(
        cls,
        targets: Sequence[str],
        data: Path,
        labels: Sequence[str],
        model: str | None,
        gates: Sequence[FigureGate],
        wordings: Path | None = None,
        corrections: Sequence[Correction] = (),
    ) -> "EvaluationPlan":
        """Look whether it can be done, before anything is loaded or asked.

        Args:
            targets: As the command takes them.
            data: File of labelled rows.
            labels: Of rows of scores that have none.
            model: Checkpoint of `engine`.
            gates: What figures must be.
            wordings: File of other ways to ask.
            corrections: Each is applied to every way as well.

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
            raise TargetUnavailable(f"The target {twice} is named twice; give one of them an alias: ALIAS={twice}.")
        ways = _ways(found, wordings, corrections)
        about = [
            ("data", f"{data.name}, {len(found.rows):,} rows of kind {found.kind}"),
            ("sha256 of the data", hashlib.sha256(data.read_bytes()).hexdigest()),
            ("targets", ", ".join(names)),
            ("model", model or "-"),
            ("mis-bench", mis_bench.__version__),
        ]
        if wordings is not None:
            about.append(("sha256 of the wordings", hashlib.sha256(wordings.read_bytes()).hexdigest()))
        return cls(made, rows, ways, gates, about)

    def name(self, target: EvaluatedTarget, way: Way) -> str:
        """Return what a way to ask a target is called."""
        parts = [*([target.name] if len(self.targets) > 1 or way.wording is None else []), way.name]
        return ", ".join(filter(None, parts))

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
    targets = [each for target in plan.targets for each in await _evaluate(plan, target, callers, timeout_s, show)]
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
) -> list[Evaluated]:
    data = plan.rows.data
    over = 0

    def answered(rows: int) -> None:
        nonlocal over
        over += rows
        show(target.name, over, len(data.rows) * len(plan.ways))

    opened = await target.open(timeout_s, callers)
    try:
        found = await ask(opened, [way.over(target.dialect) for way in plan.ways], data, callers, answered)
    finally:
        await opened.close()
    return [_measured(plan, plan.name(target, way), each) for way, each in zip(plan.ways, found, strict=True)]


def _measured(plan: EvaluationPlan, name: str, found: Found) -> Evaluated:
    data = plan.rows.data
    told = Told.of(found, plan.rows)
    failures = [(data.rows[row].id, why) for row, why in sorted(found.failures.items())]
    return Evaluated(
        name, len(data.rows), failures, told, measure(told, plan.names).figures, by_slice(told, plan.names)
    )


def _ways(data: Labelled, wordings: Path | None, corrections: Sequence[Correction]) -> list[Way]:
    """Return all ways to ask: each wording as it is, then corrected."""
    if corrections and data.kind not in ("score", "decide"):
        raise ConfigError(f"Corrections are for score and decide rows; the data is of kind {data.kind}.", "correction")
    ways: list[Way] = []
    for wording in (None,) if wordings is None else read_wordings(wordings, data):
        ways.append(Way(wording))
        for each in dict.fromkeys(corrections):
            samples = _samples(data, wording or Wording("", "")) if each == "permutation" else ()
            if samples or each == "content-free":
                ways.append(Way(wording, each, samples))
    if "permutation" in corrections and all(way.correction != "permutation" for way in ways):
        raise ConfigError("The correction permutation is for choices, and the data asks none.", "correction")
    return ways


def _samples(data: Labelled, wording: Wording) -> list[Sample]:
    """Return all states with their choices."""
    samples: list[Sample] = []
    for row in data.rows:
        if isinstance(row, DecideRow):
            asked = wording.asked({name: row.questions[name] for name in row.answers})
            choices = {own: each.question for own, (_, each) in asked.items() if each.question["type"] == "choice"}
            samples += [(row.state, choices)] if choices else []
    return samples
