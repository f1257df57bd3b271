"""Gates of `mis-bench run`: limits that its rows must keep to."""

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field

from mis_bench.artifacts.base import Part

Gate = Literal["max_p99_ms", "max_p99_over_p50", "min_items_per_second"]


class Miss(Part):
    """A limit that a row did not keep to."""

    row: str
    gate: Gate
    limit: float
    measured: float | None = Field(description="Null where nothing was measured.")

    def __str__(self) -> str:
        limit = f"{self.row}: {self.gate} is {_figure(self.limit)}"
        if self.measured is None:
            return f"{limit}, but nothing was measured"
        share, how = abs(self.measured / self.limit - 1), "little" if self.gate.startswith("min") else "much"
        return f"{limit}, measured {_figure(self.measured)}, {100 * share:.2g} % too {how}"


class Gates(Part):
    """Limits; null sets none."""

    max_p99_ms: float | None = Field(default=None, gt=0, description="Of a row's 99th percentile.")
    max_p99_over_p50: float | None = Field(default=None, ge=1, description="Of a row's 99th percentile over its 50th.")
    min_items_per_second: float | None = Field(default=None, gt=0, description="Of a row's throughput_ips.")

    def missed(self, row: str, figures: Mapping[Gate, float | None]) -> Iterator[Miss]:
        """Yield the limits that figures of a row do not keep to; a figure that is None keeps to none."""
        for gate, measured in figures.items():
            limit: float | None = getattr(self, gate)
            if limit is None:
                continue
            is_kept = measured is not None and (measured >= limit if gate.startswith("min") else measured <= limit)
            if not is_kept:
                yield Miss(row=row, gate=gate, limit=limit, measured=measured)


def latency_figures(p50_ms: float | None, p99_ms: float | None) -> dict[Gate, float | None]:
    """Return what the gates of latency are about."""
    return {"max_p99_ms": p99_ms, "max_p99_over_p50": p99_ms / p50_ms if p50_ms and p99_ms is not None else None}


def gate_faults(missed: list[Miss], expected: list[Miss]) -> Iterator[str]:
    """Yield a sentence if the gates that an artifact says were missed are not those that its figures miss."""
    if missed != expected:
        said, found = ("; ".join(map(str, each)) or "nothing" for each in (missed, expected))
        yield f"gates_missed says {said}; the rows make it {found}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
