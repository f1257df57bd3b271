"""Traces: requests with the times at which they arrive, drawn or recorded.

A drawn one has a name, `LOAD:RATE:COUNT` or `LOAD:RATE:COUNT:SEED`: COUNT requests that arrive independently of each
other, RATE a second on average (a Poisson process). LOAD is `mixed`, requests of 3, 30 and 500 items with weights
0.4, 0.4 and 0.2, or the name of any workload. No two requests share their query.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mis_bench.workload import CANONICAL, Workload, WorkloadNameError, build_workload
from mis_bench.workloads.requests import Request
from mis_bench.workloads.seeded import fractions

MAX_ARRIVALS = 50_000
"""Most requests of a trace."""

_NAME = re.compile(r"([^:]+):([0-9]{1,9}(?:\.[0-9]{1,9})?):([1-9][0-9]{0,17})(?::([0-9]{1,18}))?")
_MIXED = ((0.4, "mixed-2000-3-20"), (0.4, "mixed-2000-30-20"), (0.2, "mixed-2000-500-20"))
_DRAWN_AT_ONCE = 1024


class TraceError(ValueError):
    """A file is no trace; names the file and the line."""


class Arrival(NamedTuple):
    """A request and when it arrives, in seconds after the trace began."""

    arrival_s: float
    workload: Workload


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in the order in which they arrive.

    Attributes:
        name: What it was drawn from, or the file that it was read from.
        arrivals: At least one, times rising; what `measure.open_loop` takes.
    """

    name: str
    arrivals: tuple[Arrival, ...]

    @property
    def sha256(self) -> str:
        """Checksum of the times and requests, not of names: of the lines of `to_jsonl` without the field `name`."""
        digest = hashlib.sha256()
        for arrival in self.arrivals:
            digest.update(_line(arrival, named=False))
        return digest.hexdigest()

    def within(self, vocab_size: int) -> Self:
        """Return the trace with every token id folded into a vocabulary (`Workload.within`)."""
        folded = (arrival._replace(workload=arrival.workload.within(vocab_size)) for arrival in self.arrivals)
        return replace(self, arrivals=tuple(folded))

    def to_jsonl(self) -> str:
        """Return one JSON object a line, with `arrival_s`, `name` and `request`."""
        return b"".join(_line(arrival, named=True) for arrival in self.arrivals).decode()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `to_jsonl` gave, or a recording in the same form; `name` may be missing.

        Raises:
            TraceError: a line has another form, or times fall.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise TraceError(f"{path}: {error}") from None
        arrivals: list[Arrival] = []
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                line = _Line.model_validate_json(text)
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                where = ".".join(map(str, first["loc"])) or "line"
                raise TraceError(f"{path}:{number}: {where}: {first['msg']}") from None
            if arrivals and line.arrival_s < arrivals[-1].arrival_s:
                raise TraceError(f"{path}:{number}: arrival_s: {line.arrival_s} is before the line above it")
            arrivals.append(Arrival(line.arrival_s, line.request.workload(line.name)))
        if not arrivals:
            raise TraceError(f"{path}: there are no requests in it")
        return cls(path.name, tuple(arrivals))


def poisson(load: str, rate_per_s: float, *, seed: int = 0) -> Iterator[Arrival]:
    """Yield requests without end.

    Args:
        load: `mixed` or a workload's name.
        rate_per_s: How many arrive in a second, on average.
        seed: Another seed, other times and, of `mixed`, another order of sizes.

    Raises:
        WorkloadNameError: there is no such load, or the rate is not above 0; when the first is asked for.
    """
    shares = _MIXED if load == "mixed" else ((1.0, load),)
    built = [(share, build_workload(name)) for share, name in shares]
    for number, (arrival_s, choice) in enumerate(_times(f"poisson {load} {seed}", rate_per_s)):
        yield Arrival(arrival_s, _chosen(built, choice).another(number))


def arriving(requests: Iterator[Workload], rate_per_s: float, *, total: int, seed: int = 0) -> list[Arrival]:
    """Return given requests with the times of a Poisson process.

    Args:
        requests: At least `total`.
        rate_per_s: How many arrive in a second, on average.
        total: How many.
        seed: Another seed, other times.
    """
    times = islice(_times(f"arrivals {seed}", rate_per_s), total)
    return [Arrival(arrival_s, next(requests)) for arrival_s, _ in times]


def arrival_times(name: str, rate_per_s: float) -> Iterator[float]:
    """Yield the times of a Poisson process that a name decides, in seconds."""
    for arrival_s, _ in _times(f"arrivals {name}", rate_per_s):
        yield arrival_s


def build_trace(name: str) -> Trace:
    """Build the trace that a name describes.

    Args:
        name: `LOAD:RATE:COUNT` or `LOAD:RATE:COUNT:SEED`, such as `mixed:4:100`.

    Raises:
        WorkloadNameError: the name has another form, or more than `MAX_ARRIVALS` requests.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise WorkloadNameError(
            f"{name[:80]!r} is not a trace. Write LOAD:RATE:COUNT for COUNT requests that arrive RATE a second, "
            f"such as mixed:4:100 or {CANONICAL}:0.5:20."
        )
    load, rate, size, seed = match.groups()
    if int(size) > MAX_ARRIVALS:
        raise WorkloadNameError(f"{name} has {int(size):,} requests; at most {MAX_ARRIVALS:,} are allowed.")
    return Trace(name, tuple(islice(poisson(load, float(rate), seed=int(seed or 0)), int(size))))


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    arrival_s: float = Field(ge=0, allow_inf_nan=False)
    name: str = "recorded"
    request: Request


def _line(arrival: Arrival, *, named: bool) -> bytes:
    fields: dict[str, object] = {"arrival_s": float(arrival.arrival_s), "request": arrival.workload.request}
    if named:
        fields["name"] = arrival.workload.name
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _times(name: str, rate_per_s: float) -> Iterator[tuple[float, float]]:
    """Yield the times of a Poisson process, each with a number from 0 to below 1 to choose by."""
    if not (rate_per_s > 0 and math.isfinite(rate_per_s)):
        raise WorkloadNameError(f"A rate must be above 0 requests/s, not {rate_per_s}.")
    now = 0.0
    for gap, choice in _pairs(name):
        # Microseconds: the last bits of a logarithm differ between machines, the checksum must not.
        now = round(now - math.log1p(-gap) / rate_per_s, 6)
        yield now, choice


def _pairs(name: str) -> Iterator[tuple[float, float]]:
    """Yield pairs of numbers from 0 to below 1."""
    for block in count():
        drawn = fractions(f"{name} {block}", 2 * _DRAWN_AT_ONCE)
        yield from zip(drawn[::2], drawn[1::2], strict=True)


def _chosen(shares: list[tuple[float, Workload]], choice: float) -> Workload:
    for share, workload in shares:
        if choice < share:
            return workload
        choice -= share
    return shares[-1][1]
