"""Loads: endless requests of one size, with their queries known to the target or not."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

from mis_bench.workload import Workload


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
