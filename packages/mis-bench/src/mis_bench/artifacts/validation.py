"""Artifact of `mis-bench validate`: every gate of every model, and the figures that the gates judge."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from mis_bench.artifacts.base import Artifact, Part
from mis_bench.artifacts.parts import repeated, unlike
from mis_bench.environment import Environment
from mis_bench.targets.base import About
from mis_bench.validation.thresholds import EQUIVALENCE, ISOLATION, PARITY, SPEEDUP, SPEEDUP_ITEMS, Dtype

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


def judged(name: str, measured: float | None, rule: Rule, threshold: float, detail: str = "") -> Gate:
    """Return the gate with its verdict; without a figure it did not pass."""
    passed = measured is not None and holds(measured, rule, threshold)
    return Gate(name=name, measured=measured, rule=rule, threshold=threshold, passed=passed, detail=detail)


def waived(gate: Gate, reason: str) -> Gate:
    """Return a gate that was not measured, as passed for a reason that the user gave."""
    return gate.model_copy(update={"waived": True, "passed": True, "detail": reason})


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
    dtype: Dtype = Field(description="What it computes in; decides the thresholds.")
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
    speedup_items: list[int] = Field(description="Numbers of items to time.")
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

    def inconsistencies(self) -> Iterator[str]:
        """Yield gates that are missing or not the runbook's, and speed-ups that do not follow from the timings."""
        if self.about.dtype in EQUIVALENCE and self.about.dtype != self.dtype:
            yield f"dtype is {self.dtype}, but the target computes in {self.about.dtype}"
        names = [gate.name for gate in self.gates]
        expected = self._rules()
        yield from (f"gate {name} occurs twice" for name in repeated(names))
        yield from (f"gate {name} is missing" for name in expected if name not in names)
        if not any(name.startswith("performance.") for name in names):
            yield f"there is no gate of the speed-up, from {SPEEDUP_ITEMS} items on"
        for gate in self.gates:
            if gate.name not in expected:
                yield f"there is no gate {gate.name}"
            elif (gate.rule, gate.threshold) != expected[gate.name]:
                rule, threshold = expected[gate.name]
                yield f"gate {gate.name} is judged by {gate.rule} {gate.threshold}, not by {rule} {threshold}"
            if gate.waived and not gate.name.endswith("_vs_torch_serial"):
                yield f"gate {gate.name} is waived; only those against PyTorch may be"
        for count, found in self.performance.items():
            if count not in self.speedup_items:
                yield f"{count} items were timed, but speedup_items are {self.speedup_items}"
            medians = {
                "multi_p50_ms": statistics.median(found.multi_ms),
                "serial_p50_ms": statistics.median(found.serial_ms),
                "speedup_vs_serial_p50": found.serial_p50_ms / found.multi_p50_ms,
            }
            yield from (f"{count} items: {sentence}" for sentence in unlike(found, medians))

    def _rules(self) -> Mapping[str, tuple[Rule, float]]:
        """Return rule and threshold of every gate that there must be, by name."""
        rules: dict[str, tuple[Rule, float]] = {
            "sensitivity.mutated_item_min_abs_diff": ("above", 0.0),
            "sensitivity.swapped_items_mean_abs_diff": ("above", EQUIVALENCE[self.dtype].mean_abs_diff),
        }
        for name in Isolation.model_fields:
            rules[f"isolation.{name}"] = ("at most", ISOLATION)
        for figure in Difference.model_fields:
            for name in ("equivalence_serial", "equivalence_query_plus_delimiter"):
                rules[f"{name}.{figure}"] = ("at most", getattr(EQUIVALENCE[self.dtype], figure))
            for side in ("serial", "multi"):
                rules[f"{figure}_jax_{side}_vs_torch_serial"] = ("at most", getattr(PARITY[self.dtype], figure))
        for count in self.speedup_items:
            if count >= SPEEDUP_ITEMS:
                rules[f"performance.{count}.speedup_vs_serial_p50"] = ("at least", SPEEDUP)
        return rules


class ValidationResult(Artifact, schema="mis-validation-v1"):
    """All models that one command was to validate; written anew after each, so that an interrupted one is told."""

    planned: list[str] = Field(min_length=1, description="Models, in order.")
    models: list[ModelValidation] = Field(description="Those that were validated.")
    unavailable: dict[str, str] = Field(default_factory=dict, description="Why a model could not be, by its name.")
    passed: bool

    @classmethod
    def of(
        cls,
        environment: Environment,
        planned: Sequence[str],
        models: Sequence[ModelValidation],
        unavailable: Mapping[str, str],
    ) -> Self:
        """Put together what was found so far, with the verdict."""
        fields = {"planned": list(planned), "models": list(models), "unavailable": dict(unavailable)}
        return cls(environment=environment, passed=_all_passed(planned, models), **fields)

    def inconsistencies(self) -> Iterator[str]:
        """Yield models that were not planned, and what is wrong with each."""
        names = [*(model.model for model in self.models), *self.unavailable]
        for what, each in (("planned", self.planned), ("validated", names)):
            yield from (f"{name} was {what} twice" for name in repeated(each))
        yield from (f"{name} was not planned" for name in names if name not in self.planned)
        for model in self.models:
            yield from (f"{model.model}: {sentence}" for sentence in model.inconsistencies())

    @model_validator(mode="after")
    def _verdict_follows(self) -> "ValidationResult":
        if self.passed != _all_passed(self.planned, self.models):
            raise ValueError("passed does not follow from the planned models and their gates")
        return self


def _all_passed(planned: Sequence[str], models: Sequence[ModelValidation]) -> bool:
    return {model.model for model in models if model.passed} == set(planned)
