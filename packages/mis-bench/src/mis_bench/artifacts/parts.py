"""Parts that several kinds of artifacts have: the workload, the calls, and rules that hold in all of them."""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from mis_bench.artifacts.base import Part
from mis_bench.environment import Environment
from mis_bench.measure import Call
from mis_bench.workload import Workload, WorkloadNameError, build_workload

TOLERANCE = 1e-6
"""Relative difference up to which two figures of one artifact are the same."""


class WorkloadPart(Part):
    """What was asked, so that anyone can build it again and prove it by its checksum.

    A loop's call number k asks `Workload.another(k)`, so that no two calls are alike.
    """

    name: str = Field(min_length=1, description="Of `build_workload`.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    num_items: int = Field(ge=1)
    num_tokens: int = Field(ge=1, description="Of the query, once, and of every item.")
    num_labels: int = Field(ge=1)
    apply_softmax: bool
    vocab_size: int | None = Field(default=None, ge=1, description="Ids were folded into it (`Workload.within`).")

    @classmethod
    def of(cls, workload: Workload, *, vocab_size: int | None = None) -> Self:
        """Describe a workload, which may be folded into a vocabulary."""
        return cls(
            name=workload.name,
            sha256=workload.sha256,
            num_items=workload.num_items,
            num_tokens=workload.num_tokens,
            num_labels=len(workload.label_token_ids),
            apply_softmax=workload.apply_softmax,
            vocab_size=vocab_size or workload.vocab_size,
        )

    def inconsistencies(self) -> Iterator[str]:
        """Yield what differs from the workload built anew."""
        try:
            built = prepared(self.name, labels=self.num_labels, softmax=self.apply_softmax, vocab_size=self.vocab_size)
        except WorkloadNameError as error:
            yield f"name: {error}"
            return
        anew = WorkloadPart.of(built)
        for field in ("sha256", "num_items", "num_tokens"):
            if getattr(self, field) != getattr(anew, field):
                yield f"{field} is {getattr(self, field)}, but the workload {self.name} has {getattr(anew, field)}"


def prepared(name: str, *, labels: int = 2, softmax: bool = False, vocab_size: int | None = None) -> Workload:
    """Build a workload with a number of labels, folded into a vocabulary if one is given.

    Raises:
        WorkloadNameError: there is no workload of that name.
    """
    workload = dataclasses.replace(build_workload(name).with_labels(labels), apply_softmax=softmax)
    return workload if vocab_size is None else workload.within(vocab_size)


class CallRecord(Part):
    """One call, as a line of `calls.jsonl`."""

    row: str = Field(description="Name of the row that it belongs to.")
    phase: Literal["warmup", "timed"]
    number: int = Field(ge=0, description="Within row and phase, in the order of sending.")
    began_s: float = Field(description="When it was sent, after its loop began.")
    latency_ms: float = Field(ge=0)
    failure: str | None = Field(default=None, description="Reason, or null of an answered call.")
    message: str = Field(default="", description="One sentence about the failure.")
    cached_tokens: int | None = Field(default=None, ge=0)
    stages_ms: dict[str, float] = Field(default_factory=dict)

    @classmethod
    def of(cls, call: Call, row: str, phase: Literal["warmup", "timed"], number: int) -> Self:
        """Record a call."""
        return cls(
            row=row,
            phase=phase,
            number=number,
            began_s=call.began_s,
            latency_ms=call.latency_s * 1e3,
            failure=call.failure,
            message=call.message[:300],
            cached_tokens=call.reply.cached_tokens if call.reply else None,
            stages_ms=dict(call.reply.stages_ms) if call.reply else {},
        )


def write_calls(folder: Path, records: Sequence[CallRecord]) -> None:
    """Write `calls.jsonl`, and the folder if it is not there.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(record.model_dump_json() + "\n" for record in records)
    (folder / "calls.jsonl").write_text(lines, encoding="utf-8")


def differs(found: float | None, expected: float | None) -> bool:
    """Whether two figures are not the same, rounding aside; None is only the same as None."""
    if found is None or expected is None:
        return found is not expected
    return abs(found - expected) > TOLERANCE * max(1.0, abs(found), abs(expected))


def unlike(part: Part, expected: Mapping[str, float | None]) -> Iterator[str]:
    """Yield one sentence for every named field of a part that is not what other fields say."""
    for field, value in expected.items():
        found: Any = getattr(part, field)
        if differs(found, value):
            yield f"{field} is {found}, but the other fields make it {value}"


def unordered(part: BaseModel, *fields: str) -> Iterator[str]:
    """Yield a sentence for every pair of neighbouring fields that falls, as percentiles never do."""
    values = [(field, getattr(part, field)) for field in fields]
    known = [(field, value) for field, value in values if value is not None]
    for (lower, low), (upper, high) in pairwise(known):
        if low > high and differs(low, high):
            yield f"{lower} is {low}, above {upper} {high}"


def times(environment: Environment, finished: datetime.datetime, seconds: float | None = None) -> Iterator[str]:
    """Yield what is wrong with the times of an artifact.

    Args:
        environment: Has the beginning.
        finished: The end.
        seconds: How long it says it took.
    """
    began = environment.timestamp
    if finished < began:
        yield f"finished is {finished.isoformat()}, before environment.timestamp {began.isoformat()}"
    elif seconds is not None and seconds > (finished - began).total_seconds() + 1:
        yield f"total_runtime_seconds is {seconds}, more than from environment.timestamp to finished"
    if finished > datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5):
        yield f"finished is {finished.isoformat()}, in the future"


def repeated(names: list[str]) -> list[str]:
    """Return names that occur more than once."""
    return sorted({name for name in names if names.count(name) > 1})
