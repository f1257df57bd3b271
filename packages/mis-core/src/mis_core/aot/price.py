"""Seconds of a compiled program, by stage of the model: the compiler's cycles, and what devices exchange."""

from collections import defaultdict
from collections.abc import Callable, Iterable

from mis_core.aot.hlo import CHUNKS, COPY, HloOperation
from mis_kernels.aot.chips import Chip
from mis_kernels.aot.price import price_copy, price_exchange
from mis_kernels.aot.ranges import Range

RECURRENCE = "recurrence"
"""Stage of the kernel of recurrent layers, and of what XLA computes around it."""


def price_program(
    operations: Iterable[HloOperation],
    clock_hz: float,
    chip: Chip,
    repeats: Callable[[tuple[str, ...]], int] = lambda within: 0 if within else 1,
) -> dict[str, Range]:
    """Price everything but kernels; return seconds by stage.

    What the compiler estimates is taken as it is: products were within an eighth of what was measured elsewhere
    (`python -m mis_kernels.aot calibrate`).

    Args:
        operations: Of the program.
        clock_hz: Cycles a second.
        chip: For what devices exchange.
        repeats: How often what an operation is within is executed, see `Repeats.of`; default: what a step's arrays
            decide is not.
    """
    stages: dict[str, Range] = defaultdict(lambda: Range.of(0.0))
    for each in operations:
        times = each.times * repeats(each.within)
        if times == 0:
            continue
        if each.kind == COPY:
            hidden = float("inf") if each.cycles is None else each.cycles / clock_hz
            stages["copies"] += price_copy(each.bytes, hidden, chip) * times
        elif each.bytes:
            stages["exchange"] += Range.of(times * price_exchange(each.kind, each.bytes, each.devices, chip))
        elif each.cycles is not None:
            stages[stage_of(each.scope, each.within)] += Range.of(each.cycles * times / clock_hz)
    return dict(stages)


def stage_of(scope: str, within: tuple[str, ...] = ()) -> str:
    """Return the stage of an operation from the named scopes it was traced under, and from what it is within.

    Some operations of a loop have no scope. Of XLA's chunks they count as products, as all does around these.
    """
    parts = scope.split("/")
    if CHUNKS in (*parts, *within):
        return f"recurrence, {next((part for part in ('substitution', 'states') if part in parts), 'products')}"
    if any(part.startswith("gated_delta") for part in parts):
        return RECURRENCE
    for stage in ("embed", "write_pages", "label_logits", "log_sum_exp"):
        if stage in parts:
            return stage
    for stage in ("mlp", "attention", "recurrence"):
        if stage in parts:
            return stage if stage == "mlp" else "projections and norms"
    return "rest"
