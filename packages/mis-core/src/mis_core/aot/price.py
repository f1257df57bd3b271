"""Seconds of a compiled program, by stage of the model: the compiler's cycles, and what devices exchange."""

from collections import defaultdict
from collections.abc import Iterable

from mis_core.aot.hlo import COPY, HloOperation
from mis_kernels.aot.chips import Chip
from mis_kernels.aot.price import price_copy, price_exchange
from mis_kernels.aot.ranges import Range


def price_program(
    operations: Iterable[HloOperation], clock_hz: float, chip: Chip, *, exchanges: int = 0
) -> dict[str, Range]:
    """Price everything but kernels; return seconds by stage.

    What the compiler estimates is taken as it is: products were within an eighth of what was measured elsewhere
    (`python -m mis_kernels.aot calibrate`).

    Args:
        operations: Of the program.
        clock_hz: Cycles a second.
        chip: For what devices exchange.
        exchanges: How many times devices exchange what goes to pages, in every layer.
    """
    stages: dict[str, Range] = defaultdict(lambda: Range.of(0.0))
    for each in operations:
        times = each.times * (exchanges if each.exchanged else 1)
        if times == 0:
            continue
        if each.kind == COPY:
            hidden = float("inf") if each.cycles is None else each.cycles / clock_hz
            stages["copies"] += price_copy(each.bytes, hidden, chip) * times
        elif each.bytes:
            stages["exchange"] += Range.of(times * price_exchange(each.kind, each.bytes, each.devices, chip))
        elif each.cycles is not None:
            stages[stage_of(each.scope)] += Range.of(each.cycles * times / clock_hz)
    return dict(stages)


def stage_of(scope: str) -> str:
    """Return the stage of an operation from the named scopes it was traced under."""
    parts = scope.split("/")
    for stage in ("embed", "write_pages", "label_logits", "log_sum_exp"):
        if stage in parts:
            return stage
    for stage in ("mlp", "attention"):
        if stage in parts:
            return "projections and norms" if stage == "attention" else stage
    return "rest"
