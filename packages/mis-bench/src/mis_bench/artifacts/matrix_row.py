"""Rows of a matrix: the figures of one configuration, and the runs that they come from."""

from collections.abc import Iterator, Sequence
from typing import Literal, Self

import numpy as np
from pydantic import Field

from mis_bench.artifacts.base import Part
from mis_bench.artifacts.parts import unlike, unordered


class Configuration(Part):
    """What one row of a matrix measures.

    `portable`: the client cuts the request, and `chunk_size` is the items of each of its calls. `best_native`: the
    client sends the request whole, and `chunk_size` is the server's own, 0 if the server decides.
    """

    chunk_size: int = Field(ge=0)
    scoring_algorithm: str = "auto"
    mask_impl: str = "auto"

    @property
    def name(self) -> str:
        """Name of the configuration's file, without suffix: `chunk_32` or `chunk_32_packed_dense`."""
        layout = (self.scoring_algorithm, self.mask_impl)
        return "_".join([f"chunk_{self.chunk_size}", *([] if layout == ("auto", "auto") else layout)])


class RunRecord(Part):
    """One run: the whole request once, in one call or in chunks."""

    phase: Literal["warmup", "timed"]
    total_e2e_ms: float = Field(ge=0)
    chunk_calls_ms: list[float]
    failure: str | None = Field(default=None, description="Reason of the first chunk that failed; the run ends there.")
    message: str = ""
    cached_tokens: int | None = Field(
        default=None, ge=0, description="Query tokens that the first call found kept; null where the target is silent."
    )


class MatrixRow(Part):
    """Figures of one configuration."""

    configuration: Configuration
    num_chunks: int = Field(ge=1)
    timed_runs: int = Field(ge=0)
    successful_runs: int = Field(ge=0)
    success_rate: float = Field(ge=0, le=1)
    status: Literal["ok", "partial_failure", "failed"]
    reason: str | None = Field(default=None, description="Why the status is not ok.")
    p50_total_e2e_ms: float | None = Field(default=None, ge=0)
    p95_total_e2e_ms: float | None = Field(default=None, ge=0)
    mean_total_e2e_ms: float | None = Field(default=None, ge=0)
    mean_chunk_call_ms: float | None = Field(default=None, ge=0)
    p95_chunk_call_ms: float | None = Field(default=None, ge=0)
    throughput_items_sec: float | None = Field(default=None, ge=0, description="Items over mean_total_e2e_ms.")
    first_run_penalty_ratio: float | None = Field(default=None, ge=0, description="First warm-up over the timed mean.")
    failure_reason_counts: dict[str, int] = Field(default_factory=dict, description="Of timed runs.")
    timed_compilations: int | None = Field(default=None, ge=0, description="Null where the target does not tell.")
    steps_per_call: float | None = Field(
        default=None, ge=0, description="Device steps of a call; null if untold. Above 1 the server split it."
    )
    usd_per_run: float | None = Field(default=None, ge=0)
    items_per_usd: float | None = Field(default=None, ge=0)
    reference_scores: list[list[float]] | None = Field(default=None, description="[items, labels], of the last run.")
    run_records: list[RunRecord]

    @classmethod
    def of(
        cls,
        configuration: Configuration,
        records: Sequence[RunRecord],
        *,
        num_items: int,
        num_chunks: int,
        hourly_cost: float | None = None,
        **fields: object,
    ) -> Self:
        """Sum up the records of one configuration.

        Args:
            configuration: What was measured.
            records: Warm-ups, then timed runs.
            num_items: Items of the request.
            num_chunks: Calls of a run.
            hourly_cost: US dollars an hour of the target's machine.
            fields: The other fields.
        """
        timed = [record for record in records if record.phase == "timed"]
        good = [record for record in timed if record.failure is None]
        failures = [record.failure for record in timed if record.failure is not None]
        figures: dict[str, float] = {}
        if good:
            runs = [record.total_e2e_ms for record in good]
            calls = [milliseconds for record in good for milliseconds in record.chunk_calls_ms]
            mean = float(np.mean(runs))
            figures = {
                "p50_total_e2e_ms": float(np.percentile(runs, 50)),
                "p95_total_e2e_ms": float(np.percentile(runs, 95)),
                "mean_total_e2e_ms": mean,
                "mean_chunk_call_ms": float(np.mean(calls)),
                "p95_chunk_call_ms": float(np.percentile(calls, 95)),
                "throughput_items_sec": num_items / mean * 1e3,
            }
            if records[0].phase == "warmup" and records[0].failure is None:
                figures["first_run_penalty_ratio"] = records[0].total_e2e_ms / mean
            if hourly_cost is not None:
                figures["usd_per_run"] = hourly_cost * mean / 3.6e6
                figures["items_per_usd"] = num_items / figures["usd_per_run"]
        failed = next((record for record in records if record.failure is not None), None)
        status = "ok" if good and len(good) == len(timed) else "partial_failure" if good else "failed"
        return cls.model_validate(
            {
                "configuration": configuration,
                "num_chunks": num_chunks,
                "timed_runs": len(timed),
                "successful_runs": len(good),
                "success_rate": len(good) / len(timed) if timed else 0.0,
                "status": status,
                "reason": None if status == "ok" or failed is None else f"{failed.failure}: {failed.message}",
                "failure_reason_counts": {reason: failures.count(reason) for reason in dict.fromkeys(failures)},
                "run_records": list(records),
                **figures,
                **fields,
            }
        )

    def inconsistencies(self) -> Iterator[str]:
        """Yield every contradiction with the row's own records."""
        if not self.run_records and self.status != "failed":
            yield f"status is {self.status} without run_records"
        for number, record in enumerate(self.run_records):
            if sum(record.chunk_calls_ms) > record.total_e2e_ms * 1.001 + 0.1:
                yield f"run_records.{number}: chunk_calls_ms add up to more than total_e2e_ms"
            if record.failure is None and len(record.chunk_calls_ms) != self.num_chunks:
                yield f"run_records.{number} has {len(record.chunk_calls_ms)} calls, not {self.num_chunks}"
        if not self.run_records:
            return
        items = self._items()
        anew = MatrixRow.of(
            self.configuration,
            self.run_records,
            num_items=items or 1,
            num_chunks=self.num_chunks,
            hourly_cost=None if self.usd_per_run is None or not self.mean_total_e2e_ms else self._hourly_cost(),
        )
        numbers = [
            "timed_runs", "successful_runs", "success_rate", "p50_total_e2e_ms", "p95_total_e2e_ms",
            "mean_total_e2e_ms", "mean_chunk_call_ms", "p95_chunk_call_ms", "first_run_penalty_ratio",
        ]  # fmt: skip
        if items is not None:
            numbers += ["throughput_items_sec", "items_per_usd"]
        yield from unlike(self, {field: getattr(anew, field) for field in numbers})
        yield from unordered(self, "p50_total_e2e_ms", "p95_total_e2e_ms")
        for field in ("status", "failure_reason_counts"):
            if getattr(self, field) != getattr(anew, field):
                yield f"{field} is {getattr(self, field)!r}, but the records make it {getattr(anew, field)!r}"
        if (self.status == "ok") != (self.reason is None):
            yield f"status is {self.status}, but reason is {self.reason!r}"
        if self.status == "ok" and self.reference_scores is None:
            yield "status is ok, but there are no reference_scores"

    def _items(self) -> int | None:
        return None if self.reference_scores is None else len(self.reference_scores)

    def _hourly_cost(self) -> float:
        return (self.usd_per_run or 0.0) * 3.6e6 / (self.mean_total_e2e_ms or 1.0)
