"""The few sizes that steps and heads are compiled for."""

from mis_core.scheduler.plan import LONG_ITEM
from mis_kernels.target import platform

SMALLEST_STEP = 64
"""Fewer rows take another path in products on XLA:CPU and would change a row's bits."""

_NORMALISED_ROWS = 128
_ACCELERATOR_NORMALISED_ROWS = 256  # the scored rows of a usual step: the vocabulary is read once for all of them

PAIRS = 1024
"""(row, label) pairs of one call of the label head."""


def normalised_rows(devices: int) -> int:
    """Return the rows of one call of the streamed log-sum-exp, which `devices` along the data axis share."""
    return devices * (_NORMALISED_ROWS if platform() == "cpu" else _ACCELERATOR_NORMALISED_ROWS)


def token_buckets(budget: int) -> list[int]:
    """Return the step sizes to compile: powers of two, one and a half times those from 512 on, and the budget."""
    powers = [SMALLEST_STEP << n for n in range(20) if SMALLEST_STEP << n < budget]
    between = [power * 3 // 2 for power in powers if power >= 2 * LONG_ITEM and power * 3 // 2 < budget]
    return sorted([*powers, *between, budget])
