"""Speed-up: many items in one request against the same items one at a time."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mis_bench.artifacts.validation import Gate, Performance, judged
from mis_bench.targets.base import BlockingTarget, CallFailed
from mis_bench.validation.ask import Serial, total_milliseconds
from mis_bench.validation.thresholds import SPEEDUP, SPEEDUP_ITEMS
from mis_bench.workload import build_workload

_WARM_UPS, _ROUNDS = 1, 3


def speed_gates(
    multi: BlockingTarget, serial: Serial, counts: Sequence[int], vocab_size: int | None, on_gate: Callable[[str], None]
) -> Iterator[tuple[int, Performance | None, Gate | None]]:
    """Measure the speed-up at each number of items; there is a gate from `SPEEDUP_ITEMS` items on.

    Queries have 300 tokens and items 20. Every round has tokens that none had before.

    Args:
        multi: BlockingTarget asked for all items at once.
        serial: The same items one at a time.
        counts: Numbers of items.
        vocab_size: Tokens are folded into so many ids.
        on_gate: Told the name of each figure before it is measured.
    """
    for count in counts:
        on_gate(name := f"performance.{count}.speedup_vs_serial_p50")
        found, detail = None, ""
        try:
            found = _measured(multi, serial, count, vocab_size)
            detail = f"{found.serial_p50_ms:.1f} ms against {found.multi_p50_ms:.1f} ms"
        except CallFailed as error:
            detail = str(error)
        measured = None if found is None else found.speedup_vs_serial_p50
        is_gate = count >= SPEEDUP_ITEMS
        yield count, found, judged(name, measured, "at least", SPEEDUP, detail) if is_gate else None


def _measured(multi: BlockingTarget, serial: Serial, count: int, vocab_size: int | None) -> Performance:
    base = build_workload(f"speed-300-{count}-20")
    multi_ms, serial_ms = [], []
    for number in range(_WARM_UPS + _ROUNDS):
        workload = base.another(number)
        workload = workload if vocab_size is None else workload.within(vocab_size)
        multi_ms.append(total_milliseconds(multi, [workload]))
        serial_ms.append(serial.milliseconds(workload))
    multi_ms, serial_ms = multi_ms[_WARM_UPS:], serial_ms[_WARM_UPS:]
    multi_p50, serial_p50 = float(np.median(multi_ms)), float(np.median(serial_ms))
    return Performance(
        multi_ms=multi_ms,
        serial_ms=serial_ms,
        multi_p50_ms=multi_p50,
        serial_p50_ms=serial_p50,
        speedup_vs_serial_p50=serial_p50 / multi_p50,
    )
