"""Whether a validation has every gate that it implies, with the thresholds that it implies."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mis_bench.artifact import ArtifactError, read_artifact
from mis_bench.manifest import Kind
from mis_bench.validation.gates import (
    FIGURES,
    ISOLATION,
    SPEEDUP,
    SPEEDUP_ITEMS,
    VALIDATION,
    GatedFigure,
    ModelValidation,
    Validation,
    thresholds,
)
from mis_bench.validation.isolation import KINDS


def validation_faults(folder: Path, _kind: Kind) -> Iterator[str]:
    """Yield what is wrong with a validation, whatever its digest is; raises `ArtifactError`."""
    found = read_artifact(folder / VALIDATION)
    if not isinstance(found, Validation):
        raise ArtifactError(f"{folder / VALIDATION} is not a {Validation.SCHEMA}")
    done = Counter([model.model for model in found.models]) + Counter(list(found.unavailable))
    for name in found.planned:
        if done[name] != 1:
            yield f"{VALIDATION}: planned has {name}, which has {done[name]} validations"
    for name in done.keys() - set(found.planned):
        yield f"{VALIDATION}: {name} was not planned"
    for field in ("speedup_items", "rounds") if not found.is_old else ():
        if getattr(found, field) is None:
            yield f"{VALIDATION}: {field} is missing"
            return
    for number, model in enumerate(found.models):
        yield from (f"{VALIDATION}: models.{number}.{fault}" for fault in _model_faults(found, model))


def implied_gates(model: ModelValidation, counts: list[int]) -> Iterator[GatedFigure]:
    """Yield the gates of a model's validation, without what was measured.

    Args:
        model: What was validated: its type, PyTorch's own rounding and the waiver.
        counts: Numbers of items that were timed.
    """
    equivalence, parity = thresholds(model.dtype, model.rounding)
    for kind in KINDS:
        yield GatedFigure(name=f"isolation.{kind}_max_abs_diff", threshold=ISOLATION)
    yield GatedFigure(name="sensitivity.mutated_item_min_abs_diff", rule="above", threshold=0.0)
    yield GatedFigure(name="sensitivity.swapped_items_mean_abs_diff", rule="above", threshold=equivalence[1])
    for compared in ("equivalence_serial", "equivalence_query_plus_delimiter"):
        for figure, limit in zip(FIGURES, equivalence, strict=True):
            yield GatedFigure(name=f"{compared}.{figure}", threshold=limit)
    for layout in ("serial", "multi"):
        for figure, limit in zip(FIGURES, parity, strict=True):
            name = f"{figure}_jax_{layout}_vs_torch_serial"
            yield GatedFigure(name=name, threshold=limit, is_waived=bool(model.waiver))
    for count in counts:
        if count >= SPEEDUP_ITEMS:
            yield GatedFigure(name=f"performance.{count}.speedup_vs_serial_p50", rule="at least", threshold=SPEEDUP)


def _model_faults(found: Validation, model: ModelValidation) -> Iterator[str]:
    if not model.is_whole:
        yield "is_whole is false: it was interrupted"
    computed = "int8" if model.about.options.get("quantization") == "int8" else model.about.dtype
    if computed not in (None, "auto", model.dtype):
        yield f"dtype is {model.dtype}, but about says {computed}"
    if model.rounding is not None and len(model.rounding) != len(FIGURES):
        yield f"rounding has {len(model.rounding)} figures, not {len(FIGURES)}"
        return
    timed = {timing.items: timing for timing in model.timings}
    counts = sorted(timed) if found.speedup_items is None else found.speedup_items
    gates = {gate.name: gate for gate in model.gates}
    implied = {gate.name: gate for gate in implied_gates(model, counts)}
    for name in implied:
        if name not in gates:
            yield f"gates has no {name}"
    for name, times in Counter(gate.name for gate in model.gates).items():
        if name not in implied or times > 1:
            yield f"gates has {name}, {'twice' if name in implied else 'which is not a gate of this validation'}"
    # What PyTorch's rounding allowed was not written down before.
    knows_limits = not found.is_old or model.dtype == "float32"
    for name in implied:
        if name in gates:
            yield from _gate_faults(gates[name], implied[name], knows_limits=knows_limits)
    if found.is_old:
        return
    for count in counts:
        if (count in timed) == (count in model.untimed):
            yield f"timings: {count} items were to be timed, once"
    for index, timing in enumerate(model.timings):
        if timing.items not in counts or {len(timing.multi_ms), len(timing.serial_ms)} != {found.rounds}:
            yield f"timings.{index}: {timing.items} items were to be timed {found.rounds} times"
        gate = gates.get(f"performance.{timing.items}.speedup_vs_serial_p50")
        if gate is not None and (gate.measured is None or not math.isclose(gate.measured, timing.speedup)):
            yield f"gates: {gate.name} measured {gate.measured}, but timings make it {timing.speedup}"


def _gate_faults(gate: GatedFigure, implied: GatedFigure, *, knows_limits: bool) -> Iterator[str]:
    for field in ("rule", "threshold", "is_waived") if knows_limits else ("rule",):
        found, wanted = getattr(gate, field), getattr(implied, field)
        same = math.isclose(found, wanted) if isinstance(found, float) else found == wanted
        if not same:
            yield f"gates: {field} of {gate.name} is {found}, but it must be {wanted}"
    if gate.measured is None and not gate.detail:
        yield f"gates: {gate.name} was not measured, and does not say why"
