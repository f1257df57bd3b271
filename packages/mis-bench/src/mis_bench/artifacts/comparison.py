"""Artifact of `mis-bench compare`: targets side by side, which of them count, and which wins."""

from collections.abc import Iterator, Sequence
from typing import Self

from pydantic import Field, model_validator

from mis_bench.artifacts.base import Artifact, Part
from mis_bench.artifacts.judging import Candidate, Difference, Limits, judged
from mis_bench.artifacts.parts import WorkloadPart, repeated
from mis_bench.statistics import Interval, Latency


class ComparedTarget(Part):
    """A target, as far as it is known, or why it did not run.

    Attributes:
        hourly_cost_usd: What an hour of its hardware costs.
        source: File that its figures come from; None if they were measured for this artifact.
        unavailable: One sentence, if it could not run.
    """

    name: str
    backend: str | None = None
    hardware: str | None = None
    model: str | None = None
    model_sha256: str | None = None
    dtype: str | None = None
    options: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    hourly_cost_usd: float | None = Field(default=None, gt=0)
    source: str | None = None
    unavailable: str | None = None


class Figures(Part):
    """Figures of a target at one chunk size and setting.

    Attributes:
        chunk_items: Items that the client sends in one call.
        server_chunk_items: Items that the server computes in one step, where it was told; 0 if it decides.
        setting: The target's setting in words, where several were measured.
        items: Items of the request; fewer than the workload's for a slow target.
        items_per_second: Median, with its bootstrap interval; None if no run succeeded.
        latency: Of whole requests.
        ratio: Items per second over the reference's at the same chunk size, with its bootstrap interval.
        first_run_penalty: Time of the first request over the median of the timed ones.
        items_per_usd: Where the hourly cost is known.
    """

    target: str
    chunk_items: int = Field(ge=1)
    server_chunk_items: int = Field(default=0, ge=0)
    setting: str = ""
    items: int = Field(ge=1)
    success_rate: float = Field(ge=0, le=1)
    failures: dict[str, int] = Field(default_factory=dict)
    items_per_second: Interval | None = None
    latency: Latency | None = None
    ratio: Interval | None = None
    first_run_penalty: float | None = Field(default=None, gt=0)
    items_per_usd: float | None = Field(default=None, gt=0)

    @property
    def label(self) -> str:
        """The target, its setting, and the chunk size if it is not the whole request."""
        chunks = [] if self.chunk_items >= self.items else [f"chunks of {self.chunk_items}"]
        return ", ".join([self.target, *([self.setting] if self.setting else []), *chunks])


class Row(Figures):
    """Figures, judged.

    Attributes:
        eligible: Whether it may win; `reasons` says why not.
        within_guardrail: Whether its p95 is small enough; None of rows that are not eligible.
    """

    eligible: bool
    reasons: list[str] = Field(default_factory=list)
    within_guardrail: bool | None = None

    @model_validator(mode="after")
    def _has_reasons_or_is_eligible(self) -> "Row":
        if self.eligible == bool(self.reasons):
            raise ValueError("a row is eligible or has reasons why not")
        if self.eligible and (self.items_per_second is None or self.latency is None or self.success_rate < 1):
            raise ValueError("an eligible row has figures and no failure")
        if self.eligible == (self.within_guardrail is None):
            raise ValueError("the guardrail is for eligible rows, and for all of them")
        return self


class View(Part):
    """Rows that compete with each other.

    Attributes:
        winner: Index of the row with most items per second within the guardrail; None if no row is eligible.
    """

    rows: list[Row]
    winner: int | None = None

    @classmethod
    def of(cls, rows: Sequence[Figures], correctness: Sequence[Difference], limits: Limits, *, items: int) -> Self:
        """Judge rows.

        Args:
            rows: What was measured.
            correctness: Difference of each target.
            limits: What a row must keep to.
            items: Items of the workload; a row that was measured on fewer may not win.
        """
        differences = {each.target: each for each in correctness}
        verdicts, winner = judged([_candidate(row, differences.get(row.target), items) for row in rows], limits)
        return cls(
            rows=[
                Row(
                    **{name: getattr(row, name) for name in Figures.model_fields},
                    eligible=not verdict.reasons,
                    reasons=verdict.reasons,
                    within_guardrail=verdict.within_guardrail,
                )
                for row, verdict in zip(rows, verdicts, strict=True)
            ],
            winner=winner,
        )

    @model_validator(mode="after")
    def _winner_may_win(self) -> "View":
        if self.winner is None:
            if any(row.within_guardrail for row in self.rows):
                raise ValueError("a row within the guardrail, and no winner")
        elif not 0 <= self.winner < len(self.rows) or not self.rows[self.winner].within_guardrail:
            raise ValueError("the winner is no row within the guardrail")
        return self

    @property
    def best(self) -> Row | None:
        """The row that wins."""
        return None if self.winner is None else self.rows[self.winner]


class Request(Part):
    """One timed request: which round it was in, and when it failed, why."""

    target: str
    chunk_items: int = Field(ge=1)
    round: int = Field(ge=0, description="0 is the warm-up.")
    seconds: float = Field(ge=0)
    failure: str | None = None
    message: str = ""
    cached_tokens: int | None = Field(
        default=None, ge=0, description="Query tokens that its first call found kept, though they were forgotten."
    )


class Comparison(Artifact, schema="mis-comparison-v1"):
    """What `mis-bench compare` found.

    Attributes:
        reference: BlockingTarget that ratios and differences are relative to.
        measured_together: Whether the targets took turns in one run; else their figures come from separate runs.
        portable_view: Every target at every chunk size: the same calls for all.
        best_native_view: Every target at its own best chunk size.
        requests: All timed requests, where they were measured here.
        recommendations: Sentences: the winner, and the best setting of each target.
        findings: Sentences: what is better or worse than the reference, where, and by how much.
    """

    command: str
    workload: WorkloadPart
    reference: str
    measured_together: bool
    limits: Limits
    targets: list[ComparedTarget] = Field(min_length=1)
    portable_view: View
    best_native_view: View
    correctness: list[Difference]
    requests: list[Request] = Field(default_factory=list)
    recommendations: list[str]
    findings: list[str]
    notes: list[str] = Field(default_factory=list)

    def inconsistencies(self) -> Iterator[str]:
        """Yield every contradiction between the parts; those within a part are refused when it is read."""
        yield from (f"workload.{fault}" for fault in self.workload.inconsistencies())
        names = [target.name for target in self.targets]
        for name in repeated(names):
            yield f"targets: {name} occurs twice"
        for field, view in (("portable_view", self.portable_view), ("best_native_view", self.best_native_view)):
            for number, row in enumerate(view.rows):
                if row.target not in names:
                    yield f"{field}.rows.{number}.target is {row.target}, which is not in targets"
                if row.items > self.workload.num_items:
                    yield f"{field}.rows.{number}.items is {row.items}, but the workload has {self.workload.num_items}"
        ran = [target.name for target in self.targets if target.unavailable is None]
        if [each.target for each in self.correctness] != ran:
            yield f"correctness is not of the targets that ran: {', '.join(ran) or 'none'}"
        for number, each in enumerate(self.correctness):
            if each.status == "ok" and each.passed != self.limits.allow(each.max_abs, each.mean_abs):
                yield f"correctness.{number}.passed is {each.passed}, but the limits make it {not each.passed}"
        for field, view in (("portable_view", self.portable_view), ("best_native_view", self.best_native_view)):
            anew = View.of(view.rows, self.correctness, self.limits, items=self.workload.num_items)
            for number, (row, again) in enumerate(zip(view.rows, anew.rows, strict=True)):
                if row != again:
                    yield f"{field}.rows.{number} is not judged by the rules"
            if view.winner != anew.winner:
                yield f"{field}.winner is {view.winner}, but the rows make it {anew.winner}"

    @property
    def passed(self) -> bool:
        """Whether all targets ran, at least two, all are correct, and a row is eligible."""
        correct = [each.passed for each in self.correctness]
        return not self.absent and self.best_native_view.winner is not None and len(correct) >= 2 and all(correct)

    @property
    def absent(self) -> list[str]:
        """Targets that could not run."""
        return [target.name for target in self.targets if target.unavailable is not None]


def _candidate(row: Figures, found: Difference | None, items: int) -> Candidate:
    is_part = row.items < items
    return Candidate(
        speed=row.items_per_second.value if row.items_per_second else None,
        p95_ms=row.latency.p95_ms if row.latency else None,
        success_rate=row.success_rate,
        difference=found,
        items=min(items, row.items),
        size=(row.chunk_items, row.server_chunk_items),
        objections=(f"measured on {row.items} of {items} items",) if is_part else (),
    )
