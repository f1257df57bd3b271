"""The few sizes that steps and heads are compiled for."""

from mis_core.scheduler.plan import LONG_ITEM

SMALLEST_STEP = 64
"""Fewer rows take another path in products on XLA:CPU and would change a row's bits."""

PAIRS = 1024
"""(row, label) pairs of one call of the label head."""


def token_buckets(budget: int) -> list[int]:
    """Return the step sizes to compile: powers of two, one and a half times those from 512 on, and the budget."""
    powers = [SMALLEST_STEP << n for n in range(20) if SMALLEST_STEP << n < budget]
    between = [power * 3 // 2 for power in powers if power >= 2 * LONG_ITEM and power * 3 // 2 < budget]
    return sorted([*powers, *between, budget])
