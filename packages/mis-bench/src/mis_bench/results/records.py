"""Results: a plan, and one raw record for each thing that happened. Every figure is computed from these.

A folder of results holds `plan.json`, written before anything is measured, and `records.jsonl`, to which a line is
added as things happen. Nothing in them is a summary, so nothing in them can contradict another part: throughput,
latencies, intervals and verdicts are in `summary.py`, which computes them anew from the records.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import AwareDatetime, ConfigDict, Field, SkipValidation, TypeAdapter, ValidationError

from mis_bench.artifact import Artifact, ArtifactError, Part, first_fault, naming, read_artifact
from mis_bench.environment import Environment
from mis_bench.targets.target import About
from mis_bench.traces import Trace
from mis_bench.workload import Workload

PLAN, RECORDS, SUMMARY = "plan.json", "records.jsonl", "summary.json"
"""Files of a folder of results."""

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


class Opened(Part):
    """A target was opened, or could not be."""

    kind: Literal["opened"] = "opened"
    target: str
    about: About | None = None
    unavailable: str | None = Field(default=None, description="Reason why the target could not be opened.")


class Gate(Part):
    """What a check of scores measured before speed; `Tolerances` judge it.

    `correctness`: against the reference's answer to the same request. `isolation`: the last item alone, against the
    same item among the others.
    """

    kind: Literal["gate"] = "gate"
    case: str
    name: Literal["correctness", "isolation"]
    max_abs: float | None = Field(default=None, ge=0)
    mean_abs: float | None = Field(default=None, ge=0)
    error: str | None = Field(default=None, description="Code of the error that prevented the check.")
    message: str = ""


class Sent(Part):
    """A request and what came of it. Times are seconds since its window began."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    number: int = Field(ge=0, description="Number of the request, the same for every target.")
    items: int = Field(ge=1)
    tokens: int = Field(ge=1)
    due_s: float | None = Field(default=None, ge=0, description="When it was to be sent, in an open load.")
    sent_s: float = Field(ge=0)
    done_s: float = Field(ge=0)
    cached_tokens: int | None = Field(default=None, ge=0, description="Query tokens that the target had kept.")
    error: str | None = Field(default=None, description="Error code. Null for an answered request.")
    message: str = ""
    stages_ms: dict[str, float] = Field(default={}, description="Time by stage, if the target reports it.")
    scores: SkipValidation[np.ndarray | None] = Field(default=None, exclude=True, description="Not written.")

    @property
    def latency_s(self) -> float:
        """From when it was due, or else sent, to its whole answer."""
        return self.done_s - (self.sent_s if self.due_s is None else self.due_s)


class Call(Sent):
    """One request of a case."""

    kind: Literal["call"] = "call"
    case: str
    phase: Phase
    round: int = Field(ge=0, description="Number of the round from 1, over all repetitions. 0 outside of rounds.")
    max_abs: float | None = Field(default=None, ge=0, description="Largest difference from the reference's scores.")
    mean_abs: float | None = Field(default=None, ge=0)


class Window(Part):
    """One turn of a case: all its requests of a round, written after them."""

    kind: Literal["window"] = "window"
    case: str
    phase: Phase
    round: int = Field(ge=0)
    began: AwareDatetime
    seconds: float = Field(ge=0)
    calls: int = Field(ge=0)
    forgot: bool = Field(default=False, description="Whether the target cleared its prefix cache before the window.")
    compilations: int | None = Field(
        default=None, ge=0, description="Compilations during the window, if the target reports them."
    )
    steps: int | None = Field(default=None, ge=0, description="Engine steps run during the window.")
    rate: float | None = Field(default=None, gt=0, description="Requests a second, if planned as a share.")


class ProductRate(Part):
    """How fast a target multiplied at the beginning of a round."""

    kind: Literal["product_rate"] = "product_rate"
    target: str
    round: int = Field(ge=1)
    flops_per_s: float = Field(gt=0, description="Floating-point operations a second.")


Record = Opened | Gate | Call | Window | ProductRate
"""A line of `records.jsonl`."""

_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


@dataclass(frozen=True, slots=True)
class Results:
    """A plan and what came of it, in the order in which it happened.

    Attributes:
        plan: What was decided.
        opened: Targets, as they were opened.
        gates: Checks of scores.
        calls: Requests.
        windows: Turns of cases.
        product_rates: How fast targets multiplied.
    """

    plan: Plan
    opened: list[Opened]
    gates: list[Gate]
    calls: list[Call]
    windows: list[Window]
    product_rates: list[ProductRate]

    @classmethod
    def of_records(cls, plan: Plan, records: Iterable[Record]) -> "Results":
        """Sort records by what they are."""
        records = list(records)
        return cls(
            plan,
            [record for record in records if isinstance(record, Opened)],
            [record for record in records if isinstance(record, Gate)],
            [record for record in records if isinstance(record, Call)],
            [record for record in records if isinstance(record, Window)],
            [record for record in records if isinstance(record, ProductRate)],
        )

    def of(self, case: Case) -> "Results":
        """Return the records of one case."""
        return Results(
            self.plan,
            [each for each in self.opened if each.target == case.target],
            [gate for gate in self.gates if gate.case == case.name],
            [call for call in self.calls if call.case == case.name],
            [window for window in self.windows if window.case == case.name],
            [rate for rate in self.product_rates if rate.target == case.target],
        )

    def asked(self, *phases: Phase) -> list[Call]:
        """Return the requests of some phases."""
        return [call for call in self.calls if call.phase in phases]


def begin(folder: Path, plan: Plan) -> None:
    """Write a plan into a folder, which is made if need be.

    Raises:
        ArtifactError: the folder holds results already.
        OSError: it cannot be written.
    """
    if (folder / PLAN).exists():
        raise ArtifactError(f"{folder} already holds results.")
    plan.write(folder / PLAN)
    (folder / RECORDS).touch()


def append(folder: Path, records: Iterable[Record]) -> None:
    """Add records to a folder; fields at their defaults are left out, so that lines stay short.

    Raises:
        OSError: they cannot be written.
    """
    fields = ({"kind": record.kind} | record.model_dump(mode="json", exclude_defaults=True) for record in records)
    lines = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in fields).encode()
    with naming(folder / RECORDS), (folder / RECORDS).open("ab", buffering=0) as file:
        before = file.tell()
        try:
            written = file.write(lines)
            while written < len(lines):  # a disk that fills up takes a part first
                written += file.write(lines[written:])
        except BaseException:
            with suppress(OSError):  # all lines or none, so that what was kept can be read
                file.truncate(before)
            raise


def read_plan(folder: Path) -> Plan:
    """Read the plan of a folder; raises `ArtifactError` if it has none."""
    plan = read_artifact(folder / PLAN)
    if not isinstance(plan, Plan):
        raise ArtifactError(f"{folder / PLAN} is not a {Plan.SCHEMA}.")
    return plan


def read_records(folder: Path, plan: Plan) -> list[Record]:
    """Read the records of a plan, one for each line of the file.

    Raises:
        ArtifactError: a line is no record of the plan; names the file and line.
    """
    path = folder / RECORDS
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: {error}") from None
    names = {case.name for case in plan.cases} | {target.name for target in plan.targets}
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        try:
            record = _RECORD.validate_json(line)
        except ValidationError as error:
            raise ArtifactError(f"{path}:{number}: {first_fault(error)}") from None
        name = record.target if isinstance(record, Opened | ProductRate) else record.case
        if name not in names:
            raise ArtifactError(f"{path}:{number}: {name} is not in the plan")
        records.append(record)
    return records


def read_results(folder: Path) -> Results:
    """Read a folder.

    Raises:
        ArtifactError: it is no folder of results, or a line is no record of its plan; names the file and line.
    """
    plan = read_plan(folder)
    return Results.of_records(plan, read_records(folder, plan))
