"""Artifact of `mis-bench validate`: every gate of every model, and the figures that the gates judge."""

import statistics
from collections.abc import Iterator
from typing import Literal

from pydantic import Field, model_validator

from mis_bench.artifacts.base import Artifact, Part
from mis_bench.artifacts.parts import unlike
from mis_bench.targets.base import About

Rule = Literal["at most", "at least", "above"]


class Gate(Part):
    """One measured figure against its threshold.

    Attributes:
        name: Where the figure stands in the artifact of its model, such as `equivalence_serial.max_abs_diff`.
        measured: The figure; None if it could not be measured, and `detail` says why.
        rule: How the figure must lie to the threshold.
        waived: The user gave a reason for not measuring; `detail` holds it.
        passed: The verdict.
        detail: Where the figure comes from, or why there is none.
    """

    name: str
    measured: float | None
    rule: Rule
    threshold: float
    waived: bool = False
    passed: bool
    detail: str = ""

    @model_validator(mode="after")
    def _verdict_follows(self) -> "Gate":
        if self.passed != (self.waived if self.measured is None else holds(self.measured, self.rule, self.threshold)):
            raise ValueError(f"{self.name}: the verdict does not follow from the figure and the threshold")
        if self.waived and (self.measured is not None or not self.detail):
            raise ValueError(f"{self.name}: a gate is waived with a reason, and without a figure")
        return self

    @property
    def status(self) -> str:
        """`passed`, `failed`, `not run` or `waived`."""
        if self.measured is None:
            return "waived" if self.waived else "not run"
        return "passed" if self.passed else "failed"


def holds(measured: float, rule: Rule, threshold: float) -> bool:
    """Return whether a figure keeps a rule."""
    if rule == "at most":
        return measured <= threshold
    return measured >= threshold if rule == "at least" else measured > threshold


class Isolation(Part):
    """Largest differences of the scores of items that were left alone, by what happened around them."""

    repetition_max_abs_diff: float | None = None
    same_length_mutation_max_abs_diff: float | None = None
    changed_length_mutation_max_abs_diff: float | None = None
    reversed_order_max_abs_diff: float | None = None
    permutation_max_abs_diff: float | None = None
    dropped_items_max_abs_diff: float | None = None
    duplicated_items_max_abs_diff: float | None = None
    preceding_items_max_abs_diff: float | None = None
    other_requests_max_abs_diff: float | None = None


class Difference(Part):
    """How far two computations of the same scores are apart: label softmaxes, and log-probabilities of labels."""

    max_abs_diff: float | None = None
    mean_abs_diff: float | None = None
    max_logprob_diff: float | None = None


class Sensitivity(Part):
    """Differences that planted faults make. A comparison that overlooks them proves nothing.

    Attributes:
        mutated_item_min_abs_diff: Least change of a mutated item's own score.
        swapped_items_mean_abs_diff: Mean difference of label softmaxes when every item gets its neighbour's.
    """

    mutated_item_min_abs_diff: float | None = None
    swapped_items_mean_abs_diff: float | None = None


class Performance(Part):
    """Many items in one request against the same items one at a time.

    Attributes:
        multi_ms: Every timed request.
        serial_ms: Every timed pass over the items, one at a time.
        speedup_vs_serial_p50: Median of the passes over median of the requests.
    """

    multi_ms: list[float] = Field(min_length=1)
    serial_ms: list[float] = Field(min_length=1)
    multi_p50_ms: float = Field(gt=0)
    serial_p50_ms: float = Field(gt=0)
    speedup_vs_serial_p50: float = Field(gt=0)


class ModelValidation(Part):
    """One model's figures and gates.

    `jax` is the target, `torch` the reference; `serial` is item by item, `multi` all in one request.
    """

    model: str
    about: About
    reference: About | None = None
    isolation: Isolation
    sensitivity: Sensitivity
    equivalence_serial: Difference
    equivalence_query_plus_delimiter: Difference
    max_abs_diff_jax_serial_vs_torch_serial: float | None = None
    mean_abs_diff_jax_serial_vs_torch_serial: float | None = None
    max_logprob_diff_jax_serial_vs_torch_serial: float | None = None
    max_abs_diff_jax_multi_vs_torch_serial: float | None = None
    mean_abs_diff_jax_multi_vs_torch_serial: float | None = None
    max_logprob_diff_jax_multi_vs_torch_serial: float | None = None
    performance: dict[int, Performance] = Field(description="By the number of items.")
    gates: list[Gate] = Field(min_length=1)

    @model_validator(mode="after")
    def _gates_judge_the_figures(self) -> "ModelValidation":
        for gate in self.gates:
            if gate.measured != self.figure(gate.name):
                raise ValueError(f"gate {gate.name} judges another figure than the one reported")
        return self

    def figure(self, name: str) -> float | None:
        """Return the figure that a dotted name, as gates have them, points to."""
        found: object = self
        for key in name.split("."):
            found = found.get(int(key)) if isinstance(found, dict) else getattr(found, key, None)
        return found if isinstance(found, float) else None

    @property
    def passed(self) -> bool:
        """Whether every gate passed or was waived."""
        return all(gate.passed for gate in self.gates)


class ValidationResult(Artifact, schema="mis-validation-v1"):
    """All models that were validated by one command."""

    models: list[ModelValidation] = Field(min_length=1)
    passed: bool

    def inconsistencies(self) -> Iterator[str]:
        """Yield speed-ups that do not follow from the timings."""
        for model in self.models:
            for count, found in model.performance.items():
                expected = {
                    "multi_p50_ms": statistics.median(found.multi_ms),
                    "serial_p50_ms": statistics.median(found.serial_ms),
                    "speedup_vs_serial_p50": found.serial_p50_ms / found.multi_p50_ms,
                }
                for sentence in unlike(found, expected):
                    yield f"{model.model}, {count} items: {sentence}"

    @model_validator(mode="after")
    def _verdict_follows(self) -> "ValidationResult":
        if self.passed != all(model.passed for model in self.models):
            raise ValueError("passed does not follow from the models' gates")
        return self
