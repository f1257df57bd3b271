"""From series and scores to a comparison."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mis_bench.artifacts.comparison import ComparedTarget, Comparison, Request, View
from mis_bench.artifacts.judging import Difference, Limits, difference
from mis_bench.artifacts.parts import WorkloadPart
from mis_bench.comparison.findings import findings, recommendations
from mis_bench.comparison.series import Series
from mis_bench.environment import Environment
from mis_bench.targets.base import Scores


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a comparison is made from.

    Attributes:
        workload: What was asked.
        targets: All targets, those that could not run among them.
        portable: Timings of calls that are the same for all targets.
        native: Timings of settings of the targets' own; for a target without any, its portable ones stand in.
        answers: Label softmaxes of every answer of each target, `[items, labels]`.
        measured_together: Whether rounds of the targets alternated.
        requests: Every request, where known.
        notes: What a reader must know, such as settings that differ between the targets.
    """

    workload: WorkloadPart
    targets: Sequence[ComparedTarget]
    portable: Sequence[Series]
    answers: Mapping[str, Sequence[Scores]]
    measured_together: bool
    native: Sequence[Series] = ()
    requests: Sequence[Request] = ()
    notes: Sequence[str] = field(default_factory=list)


def compare(
    evidence: Evidence, *, reference: str, limits: Limits, command: str, environment: Environment
) -> Comparison:
    """Apply the rules.

    Args:
        evidence: Timings and scores.
        reference: BlockingTarget that ratios and differences are relative to.
        limits: Thresholds of correctness and the guardrail.
        command: Command line that led here.
        environment: Where.
    """
    ran = [target.name for target in evidence.targets if target.unavailable is None]
    answers = evidence.answers if len(ran) > 1 else {}  # alone it would be held against itself
    truth = max(answers.get(reference, ()), key=len, default=None)
    items = {each.target: each.items for each in (*evidence.native, *evidence.portable)}
    correctness = [difference(name, answers.get(name, ()), truth, limits, items=items.get(name, 0)) for name in ran]
    portable, native = views(evidence, reference=reference, correctness=correctness, limits=limits)
    return Comparison(
        command=command,
        environment=environment,
        workload=evidence.workload,
        reference=reference,
        measured_together=evidence.measured_together,
        limits=limits,
        targets=list(evidence.targets),
        portable_view=portable,
        best_native_view=native,
        correctness=correctness,
        requests=list(evidence.requests),
        recommendations=recommendations(portable, native),
        findings=findings(portable, native, reference),
        notes=[*evidence.notes, *_warm(evidence.requests)],
    )


def views(
    evidence: Evidence, *, reference: str, correctness: Sequence[Difference], limits: Limits
) -> tuple[View, View]:
    """Return the portable and the best-native view.

    Ratios of the portable view are against the reference with the same calls, those of the best-native view against
    the reference at its best.

    Args:
        evidence: Timings.
        reference: As in `compare`.
        correctness: Difference of each target.
        limits: As in `compare`.
    """
    rules = _Rules(evidence, correctness, limits)
    names = dict.fromkeys(each.target for each in (*evidence.native, *evidence.portable))
    chosen = {name: _best(rules, name) for name in names}
    portable = rules.view(evidence.portable, lambda each: _beside(each, evidence.portable, reference))
    return portable, rules.view(list(chosen.values()), lambda _: chosen.get(reference))


@dataclass(frozen=True, slots=True)
class _Rules:
    evidence: Evidence
    correctness: Sequence[Difference]
    limits: Limits

    def view(self, series: Sequence[Series], beside: Callable[[Series], Series | None]) -> View:
        """Judge series; `beside` returns what the ratio of one is relative to."""
        cost = {target.name: target.hourly_cost_usd for target in self.evidence.targets}
        figures = [
            each.figures(beside(each), paired=self.evidence.measured_together, hourly_cost_usd=cost.get(each.target))
            for each in series
        ]
        return View.of(figures, self.correctness, self.limits, items=self.evidence.workload.num_items)


def _best(rules: _Rules, target: str) -> Series:
    """Return a target's best series: its winner by the rules, or its fastest if none may win."""
    mine = [each for each in rules.evidence.native if each.target == target]
    mine = mine or [each for each in rules.evidence.portable if each.target == target]
    winner = rules.view(mine, lambda _: None).winner
    return max(mine, key=lambda series: series.median_speed) if winner is None else mine[winner]


def _warm(requests: Sequence[Request]) -> Iterator[str]:
    """Yield a sentence for each target that answered from its cache, though it was told to forget."""
    most: dict[str, int] = {}
    for each in requests:
        if each.cached_tokens:
            most[each.target] = max(each.cached_tokens, most.get(each.target, 0))
    for name, tokens in most.items():
        yield f"{name} was not cold: it had kept up to {tokens} query tokens though it was told to forget them."


def _beside(series: Series, all_series: Sequence[Series], reference: str) -> Series | None:
    """Return the reference's fastest series with the same calls."""
    same = [each for each in all_series if each.target == reference and _calls(each) == _calls(series)]
    return max(same, key=lambda each: each.median_speed, default=None)


def _calls(series: Series) -> float:
    """Items of a call; infinite for requests sent whole, however many items a slow target takes."""
    return math.inf if series.chunk_items >= series.items else series.chunk_items
