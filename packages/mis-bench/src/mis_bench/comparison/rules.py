"""The rules of a comparison: which scores agree, which rows count, which one wins, and how ratios are taken."""

from collections.abc import Sequence

import numpy as np

from mis_bench.artifacts.comparison import Difference, Figures, Limits, Row, View
from mis_bench.statistics import Interval, interval
from mis_bench.targets.base import Scores

_RESAMPLES = 2000


def difference(
    target: str, answers: Sequence[Scores], truth: Scores | None, limits: Limits, *, items: int
) -> Difference:
    """Compare label softmaxes with the reference's.

    Args:
        target: Whose answers.
        answers: Label softmaxes of every answer, `[items, labels]`.
        truth: The reference's, if it answered; the items that both scored, which are the first ones, are compared.
        limits: What passes.
        items: Items that every answer must have.
    """
    if truth is None or not answers or not all(np.isfinite(scores).all() for scores in answers):
        return Difference(target=target, status="missing_scores", passed=False)
    if any(scores.shape != (items, truth.shape[-1]) for scores in answers):
        return Difference(target=target, status="shape_mismatch", passed=False)
    both = min(items, len(truth))
    apart = np.abs(np.stack([scores[:both] for scores in answers]) - truth[:both])
    largest, mean = float(apart.max()), float(apart.mean())
    passed = limits.allow(largest, mean)
    return Difference(target=target, status="ok", items=both, max_abs=largest, mean_abs=mean, passed=passed)


def reasons_against(figures: Figures, correctness: Difference | None, items: int) -> list[str]:
    """Return why a row may not win, in words; nothing if it may.

    Args:
        figures: What was measured.
        correctness: Its target's difference.
        items: Items of the workload.
    """
    reasons = []
    if figures.success_rate < 1:
        reasons.append(f"success rate {figures.success_rate:.0%}")
    if figures.items_per_second is None or figures.latency is None:
        reasons.append("no timings")
    if correctness is None:
        reasons.append("no scores to check")
    elif correctness.status != "ok":
        reasons.append(correctness.status)
    elif not correctness.passed:
        reasons.append(f"scores differ by up to {correctness.max_abs:.4f}, {correctness.mean_abs:.4f} on average")
    if figures.items < items:
        reasons.append(f"measured on {figures.items} of {items} items")
    return reasons


def judged(rows: Sequence[Figures], correctness: Sequence[Difference], limits: Limits, *, items: int) -> View:
    """Decide which rows count, which keep to the guardrail, and which wins.

    A row counts if every request succeeded, its target's scores agree with the reference's, and it was measured on the
    whole workload. The guardrail is the lowest p95 of those times `limits.guardrail_ratio`. Within it most items per
    second win; at equal speed, the smaller chunk.
    """
    differences = {each.target: each for each in correctness}
    reasons = [reasons_against(row, differences.get(row.target), items) for row in rows]
    p95s = [row.latency.p95_ms for row, why in zip(rows, reasons, strict=True) if row.latency is not None and not why]
    guardrail = min(p95s, default=0.0) * limits.guardrail_ratio
    final = [_ruled(row, why, guardrail) for row, why in zip(rows, reasons, strict=True)]
    running = [index for index, row in enumerate(final) if row.within_guardrail]
    return View(rows=final, winner=max(running, key=lambda index: _rank(final[index]), default=None))


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], *, paired: bool, confidence: float = 0.95
) -> Interval:
    """Return the ratio of two speeds with its percentile bootstrap interval.

    Args:
        numerators: Items per second of runs.
        denominators: Likewise, of the reference.
        paired: Whether runs of equal index were measured in one round: then the median of their ratios, which cancels
            what slows both; else the ratio of the medians.
        confidence: Of the interval.
    """
    above, below = np.asarray(numerators, float), np.asarray(denominators, float)
    if paired:
        return interval((above / below).tolist(), confidence=confidence)
    value = float(np.median(above) / np.median(below))
    if min(len(above), len(below)) < 2:
        return Interval(value=value, low=value, high=value, confidence=confidence)
    from scipy import stats  # late: it takes a second

    found = stats.bootstrap(
        (above, below),
        lambda a, b, axis: np.median(a, axis) / np.median(b, axis),
        n_resamples=_RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Interval(value=value, low=float(found.low), high=float(found.high), confidence=confidence)


def items_per_usd(items_per_second: float | None, hourly_cost_usd: float | None) -> float | None:
    """Return items scored for one dollar, if both are known."""
    if items_per_second is None or hourly_cost_usd is None:
        return None
    return items_per_second * 3600 / hourly_cost_usd


def _ruled(figures: Figures, reasons: list[str], guardrail_ms: float) -> Row:
    within = None if reasons or figures.latency is None else figures.latency.p95_ms <= guardrail_ms
    fields = {name: getattr(figures, name) for name in Figures.model_fields}
    return Row(**fields, eligible=not reasons, reasons=reasons, within_guardrail=within)


def _rank(row: Row) -> tuple[float, int, int]:
    speed = row.items_per_second.value if row.items_per_second else 0.0
    return (speed, -row.chunk_items, -row.server_chunk_items)
