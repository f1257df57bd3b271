"""Loads: endless requests of one size, with their queries known to the target or not, and arrival times."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Literal

from mis_bench.workload import Workload
from mis_bench.workloads.seeded import fractions


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one workload's sizes, no two alike.

    Attributes:
        workload: The first request, folded into the target's vocabulary if need be.
        cache: `warm`: all requests have the same query, and a target with a cache knows it after the first.
            `cold`: every request has its own.
    """

    workload: Workload
    cache: Literal["cold", "warm"] = "cold"

    def requests(self) -> Iterator[Workload]:
        """Yield requests without end."""
        for number in count():
            other = self.workload.another(number)
            yield other if self.cache == "cold" else replace(other, query=self.workload.query)


def arrivals(rate: float, requests: Iterator[Workload], *, total: int, seed: int = 0) -> list[tuple[float, Workload]]:
    """Return requests with the seconds at which they are due: a Poisson process of `rate` a second.

    Args:
        rate: Requests a second, on average.
        requests: At least `total`.
        total: How many.
        seed: Another seed, other times.
    """
    due, timed = 0.0, []
    gaps = fractions(f"arrivals {seed}", total)
    for gap, request in zip(gaps, islice(requests, total), strict=True):
        due -= math.log1p(-gap) / rate
        timed.append((due, request))
    return timed
