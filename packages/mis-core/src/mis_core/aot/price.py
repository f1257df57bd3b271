"""Seconds of a compiled program, by stage of the model: the compiler's cycles, and what devices exchange."""

from collections import defaultdict
from collections.abc import Iterable

from mis_core.aot.hlo import Operation
from mis_kernels.aot.chips import Chip
from mis_kernels.aot.price import price_exchange


def price_program(
    operations: Iterable[Operation], clock_hz: float, chip: Chip, *, writes_pages: bool
) -> dict[str, float]:
    """Price everything but kernels; return seconds by stage.

    Args:
        operations: Of the program.
        clock_hz: Cycles a second.
        chip: For what devices exchange.
        writes_pages: Whether the step takes the branch that writes to the cache, the second of its conditional.
    """
    stages: dict[str, float] = defaultdict(float)
    for each in operations:
        if each.branch is not None and bool(each.branch) != writes_pages:
            continue
        if each.bytes:
            stages["exchange"] += each.times * price_exchange(each.kind, each.bytes, each.devices, chip)
        elif each.cycles is not None:
            stages[stage_of(each.scope)] += each.cycles * each.times / clock_hz
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
