"""Verdicts: validation, stress, and performance against another version."""

from collections.abc import Iterator

import plotly.graph_objects as go

from mis_bench.artifacts.perf import PerfResult
from mis_bench.artifacts.validation import ValidationResult
from mis_bench.report.lines import short_model
from mis_bench.report.section import Plot, Section, Table, number
from mis_bench.report.sources import Sources
from mis_bench.report.style import BLUE, GREY, VERMILION, bar_height, figure, names_axis


def validation(sources: Sources) -> Section | None:
    """Return the section of validations: every gate with its figure and threshold."""
    rows = [
        [
            short_model(model.model),
            model.about.name,
            gate.name,
            number(gate.measured),
            f"{gate.rule} {number(gate.threshold)}",
            gate.status,
        ]
        for source in sources.validations
        for model in source.content.models
        for gate in model.gates
    ]
    missing = [sentence for source in sources.validations for sentence in _not_validated(source.content)]
    if not rows and not missing:
        return None
    passed, waived = (sum(row[-1] == status for row in rows) for status in ("passed", "waived"))
    text = f"{passed} of {len(rows)} gates passed{f', {waived} waived' if waived else ''}."
    header = ["model", "target", "gate", "measured", "limit", "status"]
    tables = [Table("Gates", header, rows)] if rows else []
    return Section("validation", "Validation", tables=tables, text=[text, *missing])


def _not_validated(found: ValidationResult) -> Iterator[str]:
    """Yield a sentence for every model that was planned and has no gates."""
    there = {model.model for model in found.models}
    for model in found.planned:
        if model not in there:
            why = found.unavailable.get(model, "The command ended before.")
            yield f"Not validated: {short_model(model)}. {why}"


def stress(sources: Sources) -> Section | None:
    """Return the section of stress tests."""
    rows = [
        [
            result.name,
            source.content.target.name,
            str(result.total_requests),
            str(result.failed_requests),
            number(result.throughput_ips),
            number(result.latency_p50_ms),
            number(result.latency_p99_ms),
            "passed" if result.success else "failed",
        ]
        for source in sources.stresses
        for result in source.content.results
    ]
    if not rows:
        return None
    header = ["scenario", "target", "requests", "failed", "items/s", "p50 ms", "p99 ms", "verdict"]
    good = sum(row[-1] == "passed" for row in rows)
    text = f"{good} of {len(rows)} configurations held."
    return Section("stress", "Stress", tables=[Table("Stress tests", header, rows)], text=[text])


def performance(sources: Sources) -> Iterator[Section]:
    """Yield a section for each comparison of two versions."""
    for place, source in enumerate(sources.perfs):
        found = source.content
        header = [
            "workload",
            "change",
            f"{100 * found.confidence:.4g} % interval",
            "base items/s",
            "head items/s",
            "base p95 ms",
            "head p95 ms",
            "verdict",
        ]
        rows = [
            [
                each.name,
                f"{each.judgement.throughput.value:+.1%}",
                f"{each.judgement.throughput.low:+.1%} to {each.judgement.throughput.high:+.1%}",
                number(each.base.throughput_ips),
                number(each.head.throughput_ips),
                number(each.base.latency_p95_ms),
                number(each.head.latency_p95_ms),
                each.status,
            ]
            for each in found.workloads
        ]
        versions = (
            f"{found.base_commit[:10]} and {found.head_commit[:10]}{' with changes' if found.head_is_dirty else ''}"
        )
        yield Section(
            f"performance-{place}",
            "Against another version",
            [Plot(_changes(found), _changes_reading(found))],
            [Table(f"Throughput and p95 of {versions}, in paired turns", header, rows)],
            found.notes,
        )


def _changes(found: PerfResult) -> go.Figure:
    names = [each.name for each in found.workloads]
    changes = [each.judgement.throughput for each in found.workloads]
    widest = max([0.05, *(abs(end) for each in changes for end in (each.low, each.high))]) * 115
    return figure(
        [
            go.Scatter(
                x=[100 * each.value for each in changes],
                y=names,
                mode="markers",
                name="change",
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [100 * (each.high - each.value) for each in changes],
                    "arrayminus": [100 * (each.value - each.low) for each in changes],
                    "thickness": 2,
                    "width": 6,
                    "color": GREY,
                },
                marker={
                    "size": 12,
                    "color": [VERMILION if each.status == "fail" else BLUE for each in found.workloads],
                    "symbol": ["x" if each.status == "fail" else "circle" for each in found.workloads],
                },
                hovertemplate="%{y}: %{x:+.1f} %<extra></extra>",
            )
        ],
        x={"title": "Change of items per second in %", "range": [-widest, widest], "zeroline": True},
        y=names_axis(names),
        height=bar_height(len(names)),
    )


def _changes_reading(found: PerfResult) -> str:
    return f"Right of zero the head is faster than the base; a line across zero may be noise. Verdict: {found.verdict}."
