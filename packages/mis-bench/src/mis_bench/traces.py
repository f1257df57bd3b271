"""Traces: requests with the times at which they arrive.

A name is `LOAD:RATE:COUNT` or `LOAD:RATE:COUNT:SEED`: COUNT requests that arrive independently of each
other, RATE a second on average (a Poisson process). LOAD is `mixed`, requests of 3, 30 and 500 items with weights
0.4, 0.4 and 0.2, or the name of any workload. No two requests share their query. The name `systemone:FILE` stands for
requests of System One as they were recorded, a line of JSON each, which are sent as soon as a caller is free.
"""

import hashlib
import json
import math
import re
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple, Self

from mis_bench.drawing import integers, labels
from mis_bench.system_one import recorded
from mis_bench.workload import CANONICAL, Workload, WorkloadNameError, build_workload

MAX_ARRIVALS = 50_000
"""Most requests of a trace."""

_NAME = re.compile(r"([^:]+):([0-9]{1,9}(?:\.[0-9]{1,9})?):([1-9][0-9]{0,17})(?::([0-9]{1,18}))?")
_RECORDED = "systemone:"
_MIXED = ("mixed-2000-3-20", "mixed-2000-30-20", "mixed-2000-500-20")
_BOUNDS = (0.4, 0.8)  # of the numbers that choose among them
_DRAWN_AT_ONCE = 1024


class Arrival(NamedTuple):
    """A request and when it arrives, in seconds after the trace began; None: as soon as a caller is free."""

    arrival_s: float | None
    workload: Workload


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in the order in which they arrive.

    Attributes:
        name: What it was drawn from.
        arrivals: At least one, times rising.
    """

    name: str
    arrivals: tuple[Arrival, ...]

    @property
    def sha256(self) -> str:
        """Checksum of the times and requests: of a line of JSON for each, with sorted keys and no white space."""
        digest = hashlib.sha256()
        for arrival_s, workload in self.arrivals:
            fields = {"arrival_s": arrival_s, "request": workload.request}
            digest.update(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n")
        return digest.hexdigest()

    def within(self, vocab_size: int | None) -> Self:
        """Return the trace with every token id folded into a vocabulary (`Workload.within`); None changes nothing."""
        folded = (arrival._replace(workload=arrival.workload.within(vocab_size)) for arrival in self.arrivals)
        return replace(self, arrivals=tuple(folded))


def build_trace(name: str) -> Trace:
    """Build the trace that a name describes.

    Args:
        name: `LOAD:RATE:COUNT` or `LOAD:RATE:COUNT:SEED`, such as `mixed:4:100`; or `systemone:FILE`.

    Raises:
        WorkloadNameError: the name has another form, or more than `MAX_ARRIVALS` requests; or the file holds no
            requests.
        OSError: it cannot be read.
    """
    if name.startswith(_RECORDED):
        return _recorded(name)
    match = _NAME.fullmatch(name)
    if match is None:
        raise WorkloadNameError(
            f"{name[:80]!r} is not a trace. Write LOAD:RATE:COUNT for COUNT requests that arrive RATE a second, "
            f"such as mixed:4:100 or {CANONICAL}:0.5:20."
        )
    load, rate, size, seed = match.groups()
    if int(size) > MAX_ARRIVALS:
        raise WorkloadNameError(f"{name} has {int(size):,} requests; at most {MAX_ARRIVALS:,} are allowed.")
    if not float(rate):
        raise WorkloadNameError(f"{name}: the rate must be above 0 requests/s.")
    built = [build_workload(each) for each in (_MIXED if load == "mixed" else (load,))]
    bounds = _BOUNDS[: len(built) - 1]
    drawn = islice(_times(f"poisson {load} {int(seed or 0)}", float(rate)), int(size))
    arrivals = (
        Arrival(arrival_s, built[bisect(bounds, choice)].another(number))
        for number, (arrival_s, choice) in enumerate(drawn)
    )
    return Trace(name, tuple(arrivals))


def _recorded(name: str) -> Trace:
    try:
        found = list(islice(recorded(Path(name.removeprefix(_RECORDED))), MAX_ARRIVALS + 1))
    except ValueError as error:
        raise WorkloadNameError(str(error)) from None
    if not 0 < len(found) <= MAX_ARRIVALS:
        raise WorkloadNameError(f"{name}: a file of requests must have 1 to {MAX_ARRIVALS:,} lines.")
    none = labels(0)
    asked = (Workload(name, state, questions, none, task="systemone") for state, questions in found)
    return Trace(name, tuple(Arrival(None, workload) for workload in asked))


def arrival_times(name: str, rate_per_s: float) -> Iterator[float]:
    """Yield the times of a Poisson process that a name decides, in seconds, without end."""
    return (arrival_s for arrival_s, _ in _times(f"arrivals {name}", rate_per_s))


def _times(name: str, rate_per_s: float) -> Iterator[tuple[float, float]]:
    """Yield the times of a Poisson process, each with a number from 0 to below 1 to choose by."""
    now = 0.0
    for block in count():
        drawn = integers(f"{name} {block}", 2 * _DRAWN_AT_ONCE) / 2**32
        for gap, choice in drawn.reshape(-1, 2).tolist():
            # Microseconds: the last bits of a logarithm differ between machines, the checksum must not.
            now = round(now - math.log1p(-gap) / rate_per_s, 6)
            yield now, choice
