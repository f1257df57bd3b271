"""Who may win, and who wins: the rules of matrices and comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from mis_bench.artifacts.base import Part
from mis_bench.targets.base import Scores


class Limits(Part):
    """What a row must keep to."""

    max_abs: float = Field(default=0.02, gt=0, description="Largest difference of label softmaxes.")
    mean_abs: float = Field(default=0.01, gt=0, description="Mean difference of label softmaxes.")
    guardrail_ratio: float = Field(default=1.25, ge=1, description="p95 over the lowest eligible p95.")

    def allow(self, max_abs: float | None, mean_abs: float | None) -> bool:
        """Whether these differences pass; what is not known does not."""
        known = max_abs is not None and mean_abs is not None
        return known and max_abs <= self.max_abs and mean_abs <= self.mean_abs


LIMITS = Limits()
"""What holds unless told otherwise."""


class Difference(Part):
    """How far a target's label softmaxes are from the reference's.

    Attributes:
        status: `missing_scores` if one of the two has none, `shape_mismatch` if they cannot be compared.
        items: Items compared.
        max_abs: Largest absolute difference; None unless the status is `ok`.
        mean_abs: Mean absolute difference, likewise.
        passed: Whether both are within the limits.
    """

    target: str
    status: Literal["ok", "missing_scores", "shape_mismatch"]
    items: int = Field(default=0, ge=0)
    max_abs: float | None = Field(default=None, ge=0)
    mean_abs: float | None = Field(default=None, ge=0)
    passed: bool

    @model_validator(mode="after")
    def _figures_belong_to_ok(self) -> "Difference":
        if (self.status == "ok") != (self.max_abs is not None and self.mean_abs is not None):
            raise ValueError("max_abs and mean_abs belong to status ok, and to it alone")
        if self.passed and self.status != "ok":
            raise ValueError("only status ok can pass")
        return self


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
    if truth is None or not answers or not all(np.isfinite(scores).all() for scores in (truth, *answers)):
        return Difference(target=target, status="missing_scores", passed=False)
    if any(scores.shape != (items, truth.shape[-1]) for scores in answers):
        return Difference(target=target, status="shape_mismatch", passed=False)
    both = min(items, len(truth))
    apart = np.abs(np.stack([scores[:both] for scores in answers]) - truth[:both])
    largest, mean = float(apart.max()), float(apart.mean())
    passed = limits.allow(largest, mean)
    return Difference(target=target, status="ok", items=both, max_abs=largest, mean_abs=mean, passed=passed)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row, as far as the rules look at it.

    Attributes:
        speed: Items per second; None if no run succeeded.
        p95_ms: Of whole requests, likewise.
        success_rate: Of its runs.
        difference: Of its scores from the reference's; None if there are none to check.
        items: Items of the workload; so many must have been compared.
        size: Decides between rows of equal speed: the smallest wins.
        objections: Why it may not win for reasons of its own.
    """

    speed: float | None
    p95_ms: float | None
    success_rate: float
    difference: Difference | None
    items: int
    size: tuple[int, ...]
    objections: tuple[str, ...] = ()

    @property
    def reasons(self) -> list[str]:
        """Why it may not win, in words; nothing if it may."""
        return [*self._timings(), *self._scores(), *self.objections]

    def _timings(self) -> list[str]:
        reasons = [f"success rate {self.success_rate:.0%}"] if self.success_rate < 1 else []
        return reasons if self.speed and self.p95_ms else [*reasons, "no timings"]

    def _scores(self) -> list[str]:
        found = self.difference
        if found is None:
            return ["no scores to check"]
        if found.status != "ok":
            return [found.status]
        if not found.passed:
            return [f"scores differ by up to {found.max_abs:.4f}, {found.mean_abs:.4f} on average"]
        if found.items < self.items:
            return [f"scores compared on {found.items} of {self.items} items"]
        return []


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rules say of a candidate: why it may not win, else whether it is within the guardrail."""

    reasons: list[str]
    within_guardrail: bool | None


def judged(candidates: Sequence[Candidate], limits: Limits) -> tuple[list[Verdict], int | None]:
    """Decide who may win, who keeps to the guardrail, and who wins.

    A candidate may win if every run succeeded and its scores agree with the reference's on the whole workload. The
    guardrail is the lowest p95 of those times `limits.guardrail_ratio`. Within it most items per second win; at equal
    speed, the smaller size.

    Returns:
        A verdict on each, and the winner's index, None if nobody may win.
    """
    reasons = [each.reasons for each in candidates]
    eligible = [each.p95_ms for each, why in zip(candidates, reasons, strict=True) if each.p95_ms and not why]
    guardrail = min(eligible, default=0.0) * limits.guardrail_ratio
    verdicts = [
        Verdict(why, None if why else (each.p95_ms or 0.0) <= guardrail)
        for each, why in zip(candidates, reasons, strict=True)
    ]
    running = [index for index, verdict in enumerate(verdicts) if verdict.within_guardrail]
    return verdicts, max(running, key=lambda index: _rank(candidates[index]), default=None)


def _rank(candidate: Candidate) -> tuple[float, ...]:
    return (candidate.speed or 0.0, *(-part for part in candidate.size))
