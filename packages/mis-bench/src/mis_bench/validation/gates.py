"""What `validate` measured, raw, and the gates that judge it: verdicts are computed, never stored."""

import statistics
from collections.abc import Mapping
from typing import Literal, NamedTuple

from pydantic import Field

from mis_bench.artifact import Artifact, Part
from mis_bench.environment import Environment
from mis_bench.targets.base import About
from mis_bench.validation.thresholds import EQUIVALENCE, ISOLATION, PARITY, SPEEDUP, SPEEDUP_ITEMS, Dtype

Rule = Literal["at most", "at least", "above"]

Status = Literal["passed", "failed", "not run", "waived"]

KINDS = (
    "repetition", "same_length_mutation", "changed_length_mutation", "reversed_order", "permutation", "dropped_items",
    "duplicated_items", "preceding_items", "other_requests",
)  # fmt: skip
"""What may happen around an item that leaves its score alone."""

FIGURES = ("max_abs_diff", "mean_abs_diff", "max_logprob_diff")
"""How far two computations of the same scores are apart: label softmaxes, and log-probabilities of labels."""

MUTATED, SWAPPED = "sensitivity.mutated_item_min_abs_diff", "sensitivity.swapped_items_mean_abs_diff"
"""Differences that planted faults make: a comparison that overlooks them proves nothing."""

SERIAL, DELIMITER = "equivalence_serial.{}", "equivalence_query_plus_delimiter.{}"
TORCH_SERIAL, TORCH_MULTI = "{}_jax_serial_vs_torch_serial", "{}_jax_multi_vs_torch_serial"
"""`jax` is the target, `torch` the reference; `serial` is item by item, `multi` all in one request."""


class Figure(Part):
    """One measurement."""

    name: str = Field(description="Of the gate that judges it.")
    measured: float | None = Field(description="Null if there is no figure; `detail` says why.")
    detail: str = Field(default="", description="Where the figure comes from.")


class Timing(Part):
    """Many items in one request against the same items one at a time."""

    items: int = Field(ge=1)
    multi_ms: list[float] = Field(default=[], description="Every timed request.")
    serial_ms: list[float] = Field(default=[], description="Every timed pass over the items, one at a time.")
    failure: str = Field(default="", description="Why there are none.")

    @property
    def speedup(self) -> float | None:
        """Median of the passes over median of the requests."""
        if not self.multi_ms:
            return None
        return statistics.median(self.serial_ms) / statistics.median(self.multi_ms)

    @property
    def detail(self) -> str:
        """Both medians, or why there are none."""
        if not self.multi_ms:
            return self.failure
        return f"{statistics.median(self.serial_ms):.1f} ms against {statistics.median(self.multi_ms):.1f} ms"


class Gate(NamedTuple):
    """One figure against its threshold."""

    name: str
    measured: float | None
    rule: Rule
    threshold: float
    status: Status
    detail: str


class ModelValidation(Part):
    """What was measured of one model."""

    model: str
    dtype: Dtype = Field(description="What it computes in; decides the thresholds.")
    about: About
    reference: About | None = None
    waiver: str | None = Field(default=None, min_length=1, description="Why gates against PyTorch are waived.")
    figures: list[Figure]
    timings: list[Timing]

    @property
    def gates(self) -> list[Gate]:
        """Every gate that there must be, with its verdict; one without a figure did not pass."""
        found = {figure.name: figure for figure in self.figures}
        found |= {
            name: Figure(name=name, measured=timing.speedup, detail=timing.detail)
            for timing in self.timings
            for name in [speedup_gate(timing.items)]
        }
        missing = Figure(name="", measured=None, detail="It was not measured.")
        return [
            self._judged(found.get(name, missing), name, rule, threshold)
            for name, (rule, threshold) in rules(self.dtype, [timing.items for timing in self.timings]).items()
        ]

    @property
    def passed(self) -> bool:
        """Whether every gate passed or was waived."""
        return all(gate.status in ("passed", "waived") for gate in self.gates)

    def _judged(self, figure: Figure, name: str, rule: Rule, threshold: float) -> Gate:
        status: Status
        if figure.measured is None:
            is_waived = self.waiver is not None and name.endswith("_vs_torch_serial")
            status = "waived" if is_waived else "not run"
        else:
            status = "passed" if holds(figure.measured, rule, threshold) else "failed"
        return Gate(name, figure.measured, rule, threshold, status, figure.detail)


class Validation(Artifact, schema="mis-validation-v2"):
    """`validation.json`: written anew after each model, so that an interrupted validation has not passed."""

    environment: Environment
    planned: list[str] = Field(min_length=1, description="Models, in order.")
    models: list[ModelValidation] = Field(description="Those that were validated.")
    unavailable: dict[str, str] = Field(default={}, description="Why a model could not be, by its name.")

    @property
    def passed(self) -> bool:
        """Whether every planned model passed every gate."""
        return {model.model for model in self.models if model.passed} == set(self.planned)


def rules(dtype: Dtype, counts: list[int]) -> Mapping[str, tuple[Rule, float]]:
    """Return rule and threshold of every gate by its name; speed-ups have one from `SPEEDUP_ITEMS` items on."""
    found: dict[str, tuple[Rule, float]] = {}
    for kind in KINDS:
        found[f"isolation.{kind}_max_abs_diff"] = "at most", ISOLATION
    found[MUTATED], found[SWAPPED] = ("above", 0.0), ("above", EQUIVALENCE[dtype].mean_abs_diff)
    for names, limits in (((SERIAL, DELIMITER), EQUIVALENCE), ((TORCH_SERIAL, TORCH_MULTI), PARITY)):
        for name in names:
            for figure in FIGURES:
                found[name.format(figure)] = "at most", getattr(limits[dtype], figure)
    for count in [count for count in counts if count >= SPEEDUP_ITEMS] or [SPEEDUP_ITEMS]:  # one must be judged
        found[speedup_gate(count)] = "at least", SPEEDUP
    return found


def speedup_gate(items: int) -> str:
    """Return the name of the gate of a speed-up."""
    return f"performance.{items}.speedup_vs_serial_p50"


def holds(measured: float, rule: Rule, threshold: float) -> bool:
    """Return whether a figure keeps a rule."""
    if rule == "at most":
        return measured <= threshold
    return measured >= threshold if rule == "at least" else measured > threshold
