"""How fast products are made: the rate that the time of a request is held against."""

import time
from collections.abc import Callable
from typing import Any

ROWS = 2048
"""Of the products: a full step on a CPU."""

_CALLS = 10


def best_rate(make: Callable[[int, int], Callable[[], Any]], embed: int, mlp: int) -> float:
    """Return the most floating-point operations a second of products as an MLP of these sizes has.

    Args:
        make: Returns what multiplies `ROWS` rows with a weight `[in, out]` and waits for it; may compile first.
        embed: Elements of a row of the model.
        mlp: Elements of a row within the MLP.
    """
    best = 0.0
    for depth, columns in ((embed, mlp), (mlp, embed)):
        multiply = make(depth, columns)
        multiply()
        for _ in range(_CALLS):
            began = time.perf_counter()
            multiply()
            best = max(best, 2 * ROWS * depth * columns / (time.perf_counter() - began))
    return best
