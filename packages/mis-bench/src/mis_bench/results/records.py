"""Records: one for each thing that happened while a plan was measured. Every figure is computed from these."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import AwareDatetime, ConfigDict, Field, SkipValidation

from mis_bench.artifact import Part
from mis_bench.results.plan import Case, Phase, Plan
from mis_bench.targets.target import About


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
