"""Loads with times of arrival."""

from mis_bench.report.section import Section, Table, number
from mis_bench.report.sources import Sources

_HEADER = ["trace", "target", "requests of", "requests", "failed", "items/s", "p50 ms", "p95 ms", "p99 ms"]


def traces(sources: Sources) -> Section | None:
    """Return the section of traces: figures by the number of items, and the gates that were missed."""
    if not sources.traces:
        return None
    rows, text = [], []
    for source in sources.traces:
        found = source.content
        for row in found.rows:
            latency = row.latency
            percentiles = (latency.p50_ms, latency.p95_ms, latency.p99_ms) if latency else (None,) * 3
            rows.append([
                found.trace.name, found.target.name, row.name, str(row.num_requests),
                str(row.num_requests - row.successful_requests), number(row.throughput_ips),
                *map(number, percentiles),
            ])  # fmt: skip
        text += [f"Gate missed: {miss}." for miss in found.gates_missed]
    return Section(
        "traces", "Traces", tables=[Table("Latency counts from when a request was due", _HEADER, rows)], text=text
    )
