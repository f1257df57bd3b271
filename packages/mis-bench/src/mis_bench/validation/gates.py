"""What `validate` measured, and the gates that judge it: verdicts are computed, never stored."""

import operator
import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, PositiveFloat

from mis_bench.artifact import Artifact, Part
from mis_bench.environment import Environment
from mis_bench.table import Table
from mis_bench.targets.target import About

VALIDATION = "validation.json"

Dtype = Literal["bfloat16", "float32", "int8"]
"""What products are made in; `int8`: those of layers, whatever the type of the rest."""

TYPES: tuple[Dtype, ...] = ("bfloat16", "float32")
"""What a target may compute in where no product is in int8."""

FIGURES = ("max_abs_diff", "mean_abs_diff", "max_logprob_diff")
"""How far two computations of the same scores are apart: label softmaxes, and full-vocabulary log-probabilities of
labels. A softmax over the labels hides a fault that moves all labels alike; log-probabilities find it."""

# bfloat16 keeps 8 bits: logits between 16 and 32 come in steps of 0.125, and two steps may go wrong.
EQUIVALENCE: dict[Dtype, Sequence[float]] = {
    "bfloat16": (0.02, 0.01, 0.25),
    "float32": (1e-5, 1e-5, 1e-4),
    "int8": (0.08, 0.03, 1.0),
}
"""Largest figures by dtype: the target against its own pointwise scores; beside float32 where PyTorch's are unknown."""

PARITY: dict[Dtype, Sequence[float]] = EQUIVALENCE | {"float32": (1e-4, 1e-4, 1e-3)}
"""Largest figures by dtype: the target against transformers on PyTorch; beside float32, where PyTorch's are unknown."""

ROUNDING: dict[Dtype, float] = {"bfloat16": 2.0, "int8": 6.0}
"""Largest figures by dtype, in PyTorch's own rounding: its bfloat16 against its float32, on the same items.

How far rounding carries depends on the model: its depth, its weights, how flat its softmaxes are.
"""

Limits = Sequence[float]
"""Thresholds, one for each of `FIGURES`."""


def thresholds(dtype: Dtype, rounding: Limits | None) -> tuple[Limits, Limits]:
    """Return the thresholds of equivalence and of parity.

    Args:
        dtype: What products are made in.
        rounding: `FIGURES` of PyTorch's own rounding; None or empty: they are not known.
    """
    if rounding:
        own = [ROUNDING[dtype] * figure for figure in rounding]
        return own, own
    return EQUIVALENCE[dtype], PARITY[dtype]


ISOLATION = 0.0
"""Scores of items that were left alone keep their bits."""

SPEEDUP, SPEEDUP_ITEMS = 3.0, 32
"""Least speed-up over serial scoring, and the number of items from which on it is judged."""

_HOLDS = {"at most": operator.le, "at least": operator.ge, "above": operator.gt}


class GatedFigure(Part):
    """One figure against its threshold."""

    name: str
    rule: Literal["at most", "at least", "above"] = "at most"
    threshold: float
    measured: float | None = Field(
        default=None, description="The figure. Null if there is none; `detail` gives the reason."
    )
    detail: str = Field(default="", description="Source of the figure, or the reason for having none.")
    is_waived: bool = Field(default=False, description="Whether the user waived the gate.")

    @property
    def status(self) -> Literal["passed", "failed", "not run", "waived"]:
        """The verdict."""
        if self.measured is None:
            return "waived" if self.is_waived else "not run"
        return "passed" if _HOLDS[self.rule](self.measured, self.threshold) else "failed"


class Timing(Part):
    """Many items in one request against the same items one at a time."""

    items: int = Field(ge=1)
    multi_ms: list[PositiveFloat] = Field(min_length=1, description="Every timed request.")
    serial_ms: list[float] = Field(min_length=1, description="Every timed pass over the items, one at a time.")

    @property
    def speedup(self) -> float:
        """Median of the passes over median of the requests."""
        return statistics.median(self.serial_ms) / statistics.median(self.multi_ms)


class ModelValidation(Part):
    """What was measured of one model."""

    model: str
    dtype: Dtype = Field(description="Type of the computation, which decides the thresholds.")
    about: About
    gates: list[GatedFigure]
    timings: list[Timing]
    untimed: dict[int, str] = Field(default={}, description="Reasons why numbers of items could not be timed.")
    rounding: list[float] | None = Field(
        default=None,
        description="`FIGURES` of PyTorch in bfloat16 compared with float32, if thresholds follow from them.",
    )
    waiver: str | None = Field(default=None, description="Reason why the user waived PyTorch.")
    is_whole: bool = Field(default=True, description="Whether every gate was measured. False after an interruption.")

    @property
    def passed(self) -> bool:
        """Whether every gate was measured and passed or was waived, and there are some."""
        return self.is_whole and bool(self.gates) and all(gate.status in ("passed", "waived") for gate in self.gates)

    @property
    def verdict(self) -> str:
        """One line: that the model passed, or which gates it did not."""
        failed = [gate.name for gate in self.gates if gate.status in ("failed", "not run")]
        if not self.gates:
            return f"{self.model}: no gate was measured"
        if not self.is_whole:
            return f"{self.model}: ended after {len(self.gates)} gates"
        return f"{self.model}: " + (f"did not pass {', '.join(failed)}" if failed else "passed every gate")

    @property
    def table(self) -> Table:
        """The gates, for people."""
        columns = {
            "gate": lambda gate: gate.name,
            "measured": lambda gate: gate.measured,
            "threshold": lambda gate: f"{gate.rule} {gate.threshold:g}",
            "verdict": lambda gate: gate.status,
            "detail": lambda gate: gate.detail,
        }
        return Table.of(self.model, self.gates, columns)


class Validation(Artifact, schema="mis-validation-v3", older=("mis-validation-v2",)):
    """`validation.json`: written anew with each gate: an interrupted validation keeps some, and has not passed."""

    environment: Environment
    planned: list[str] = Field(min_length=1, description="Planned models, in order.")
    speedup_items: list[int] | None = Field(default=None, description="Numbers of items to time, as planned.")
    rounds: int | None = Field(default=None, ge=1, description="Timed requests of each number, as planned.")
    models: list[ModelValidation] = Field(description="Models that were validated, the last one perhaps in part.")
    unavailable: dict[str, str] = Field(
        default={}, description="Reasons why models could not be validated, by their names."
    )

    @property
    def passed(self) -> bool:
        """Whether every planned model passed every gate."""
        return {model.model for model in self.models if model.passed} == set(self.planned)
