"""A plan: what a run of `mis-bench` was to measure, written before anything is measured."""

from collections.abc import Iterable
from typing import Literal, Self

from pydantic import AwareDatetime, Field

from mis_bench.artifact import Artifact, Part
from mis_bench.environment import Environment
from mis_bench.traces import Trace
from mis_bench.workload import Workload

Phase = Literal["warmup", "timed", "confirm", "afterwards"]
"""Not counted; counted; counted again of a sweep's best; whether it still answers."""

Cache = Literal["cold", "warm"]
Preset = Literal["run", "callers", "stress", "trace", "matrix", "compare", "sweep", "perf", "decisions"]


class WorkloadPart(Part):
    """What is asked, by its checksum; of a trace, of all its requests together."""

    name: str = Field(min_length=1)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the first request, or of the trace.")
    num_items: int = Field(ge=1)
    num_tokens: int = Field(ge=1, description="Tokens of the query, counted once, and of every item. For texts, words.")
    num_labels: int = Field(ge=1)
    apply_softmax: bool = False
    vocab_size: int | None = Field(default=None, ge=2, description="Vocabulary that ids were folded into, if given.")

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Describe a workload."""
        return cls.model_validate(workload, from_attributes=True)

    @classmethod
    def of_trace(cls, trace: Trace) -> Self:
        """Describe a trace: its first request, with the items and tokens of all."""
        asked = [arrival.workload for arrival in trace.arrivals]
        whole = {
            "name": trace.name,
            "sha256": trace.sha256,
            "num_items": sum(workload.num_items for workload in asked),
            "num_tokens": sum(workload.num_tokens for workload in asked),
        }
        return cls.of(asked[0]).model_copy(update=whole)


class LoadLevel(Part):
    """How requests are sent in one window.

    Closed: `max_concurrency` callers, each waiting for its answer. Open: requests arrive at `rate` (Poisson), or when
    a trace says. Both: as open, with at most so many under way. Latency counts from when a request was due.

    The rate of an open load may be known only while it is measured: a share of what a closed load has reached by then.
    """

    requests: int | None = Field(
        default=1, ge=1, description="Requests of a window. Null: `seconds` or a trace decides."
    )
    seconds: float | None = Field(default=None, gt=0, description="Seconds after which no request is sent.")
    max_concurrency: int | None = Field(default=1, ge=1, description="Maximum requests under way. Null: no limit.")
    rate: float | None = Field(default=None, gt=0, description="Requests a second. Null for a closed load.")
    rate_share: float | None = Field(default=None, gt=0, description="Rate as a share of what callers reached.")
    rate_callers: int | None = Field(default=None, ge=1, description="Number of these callers, of the same target.")


class PlannedTarget(Part):
    """Whom to ask."""

    name: str = Field(min_length=1, description="Alias, or the target's spelling without secrets.")
    spec: str = Field(min_length=1, description="Spelling on the command line without alias, options and secrets.")
    options: dict[str, str] = Field(default={}, description="Options without secrets.")
    model: str | None = Field(default=None, description="Model, as given by --model.")
    model_sha256: str | None = Field(default=None, description="`model_sha256` of the checkpoint, if it is local.")
    group: int = Field(default=0, ge=0, description="Targets of a group are open together and take turns.")
    hardware: str | None = Field(default=None, description="Hardware, as given by --hardware.")
    hourly_cost_usd: float | None = Field(default=None, gt=0)


class Case(Part):
    """One thing to measure: a workload asked of a target under a load. Takes its turn once a round."""

    name: str = Field(min_length=1)
    target: str = Field(description="Name of a planned target.")
    workload: WorkloadPart
    load: LoadLevel = LoadLevel()
    cache: Cache = Field(default="cold", description="Whether requests share queries, which the target knows.")
    queries: int = Field(default=1, ge=1, description="Queries that the requests of a warm case share, in turn.")
    warmups: int = Field(default=1, ge=0, description="Minimum number of requests before the timed ones.")
    chunk_items: int = Field(default=0, ge=0, description="Items of a call; 0: a request is one call.")
    is_gated: bool = Field(default=True, description="Whether its scores are checked before its speed.")
    must_survive: bool = Field(default=False, description="Whether it must answer a small request after each window.")
    is_partial: bool = Field(default=False, description="Whether it has the first items only, and may not win.")
    tolerated: list[str] = Field(default=[], description="Error codes that do not count as failures here.")
    flops: float | None = Field(
        default=None, gt=0, description="Least operations of a request. Null: no limit is reported."
    )


class Tolerances(Part):
    """What scores must keep to, and a winner's latency."""

    max_abs: float = Field(default=0.02, gt=0, description="Largest allowed difference of scores.")
    mean_abs: float = Field(default=0.01, gt=0, description="Largest allowed mean difference of scores.")
    guardrail_ratio: float = Field(default=1.25, ge=1, description="Largest ratio of a p95 to the lowest eligible p95.")

    def allow(self, max_abs: float, mean_abs: float) -> bool:
        """Whether these differences pass."""
        return max_abs <= self.max_abs and mean_abs <= self.mean_abs


class Gates(Part):
    """Limits of every case's figures; null sets none."""

    max_p99_ms: float | None = Field(default=None, gt=0)
    max_p99_over_p50: float | None = Field(default=None, ge=1)
    min_items_per_second: float | None = Field(default=None, gt=0)


class Plan(Artifact, schema="mis-plan-v2", older=("mis-plan-v1",)):
    """`plan.json`: everything that was decided before anything was measured."""

    run_id: str = Field(min_length=1)
    preset: Preset
    command: str = Field(description="Command line, without secrets.")
    started: AwareDatetime
    environment: Environment
    targets: list[PlannedTarget] = Field(min_length=1)
    cases: list[Case] = Field(min_length=1)
    rounds: int = Field(ge=1, description="Rounds of each repetition. Every case has one window in each round.")
    repeat: int = Field(default=1, ge=1, description="Number of repetitions, with targets opened anew for each.")
    confirm_rounds: int = Field(default=0, ge=0, description="Rounds of the best cases after all others.")
    reference: str | None = Field(default=None, description="Target that the others are compared with.")
    limits: Tolerances = Tolerances()
    gates: Gates = Gates()
    slo_p99_ms: float | None = Field(default=None, gt=0, description="Objective of goodput.")
    timeout_s: float = Field(default=180.0, gt=0)
    notes: list[str] = Field(default=[])

    def case(self, name: str) -> Case:
        """Return a case by its name."""
        return next(case for case in self.cases if case.name == name)

    def reaching(self, case: Case) -> Case:
        """Return the case of a closed load whose rate a case has a share of."""
        alike = (each for each in self.cases if each.target == case.target and each.cache == case.cache)
        return next(
            each
            for each in alike
            if each.workload == case.workload
            and each.load.rate_share is None
            and each.load.max_concurrency == case.load.rate_callers
        )

    def target(self, name: str) -> PlannedTarget:
        """Return a target by its name."""
        return next(target for target in self.targets if target.name == name)

    def are_open_together(self, *names: str) -> bool:
        """Whether targets are open together."""
        return len({self.target(name).group for name in names}) == 1

    def reference_among(self, opened: Iterable[str]) -> str | None:
        """Return the target that others are held against: the reference, or the first other one that was opened."""
        if self.reference is None:
            return None
        partial, opened = {case.target for case in self.cases if case.is_partial}, set(opened)
        names = [target.name for target in self.targets if target.name in opened and target.name not in partial]
        return self.reference if self.reference in names else next(iter(names), None)
