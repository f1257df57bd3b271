"""A comparison as Markdown."""

from collections.abc import Iterable, Iterator, Sequence

from mis_bench.artifacts.comparison import Comparison, Row, View


def as_markdown(found: Comparison) -> str:
    """Return findings, both views, the gates and the targets."""
    return "\n".join(_lines(found)) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, with pipes in cells escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines]


def _lines(found: Comparison) -> Iterator[str]:
    yield f"# Comparison on {found.workload.name}"
    yield ""
    yield f"Reference: {found.reference}. Gates: **{'passed' if found.passed else 'failed'}**. " + (
        "The targets took turns in one run; ratios are medians over rounds."
        if found.measured_together
        else "The targets were measured in separate runs."
    )
    yield ""
    if found.absent:
        yield f"Could not run, so that nothing is known about them: **{', '.join(found.absent)}**."
        yield ""
    yield from (f"- {sentence}" for sentence in (*found.recommendations, *found.findings))
    for title, view in views(found):
        yield from ["", f"## {title}", "", *_view(view, found.reference)]
    yield from ["", "## Gates", "", *_gates(found)]
    yield from ["", "## Targets", "", *_targets(found)]
    if found.notes:
        yield from ["", "## Notes", "", *(f"- {note}" for note in found.notes)]
    yield from ["", "```", found.command, "```"]


def views(found: Comparison) -> list[tuple[str, View]]:
    """Return the views that have rows, by their titles; one if both say the same."""
    portable, native = found.portable_view, found.best_native_view
    if portable == native:
        return [("Portable and best-native view: one setting each", native)]
    return [(title, view) for title, view in (("Best-native view", native), ("Portable view", portable)) if view.rows]


def _view(view: View, reference: str) -> list[str]:
    header = ["target", "items/s", "spread", f"x {reference}", "change", "p50 ms", "p95 ms", "success"]
    header += ["items per USD", "verdict"]
    return table(header, [_row(row, row is view.best) for row in view.rows])


def _row(row: Row, wins: bool) -> list[str]:
    speed, ratio, latency = row.items_per_second, row.ratio, row.latency
    return [
        row.label,
        f"{speed.value:,.4g}" if speed else "-",
        f"{speed.low:,.4g} to {speed.high:,.4g} ({speed.kind})" if speed else "-",
        f"{ratio.value:.3g} ({ratio.low:.3g} to {ratio.high:.3g})" if ratio else "-",
        f"{ratio.value - 1:+.1%}" if ratio else "-",
        f"{latency.p50_ms:,.4g}" if latency else "-",
        f"{latency.p95_ms:,.4g}" if latency else "-",
        f"{row.success_rate:.0%}",
        f"{row.items_per_usd:,.0f}" if row.items_per_usd else "-",
        verdict(row, wins),
    ]


def verdict(row: Row, wins: bool) -> str:
    """Return what the rules say about a row, in words."""
    if wins:
        return "**wins**"
    if not row.eligible:
        return "not eligible: " + ", ".join(row.reasons)
    return "eligible" if row.within_guardrail else "eligible, p95 above the guardrail"


def _gates(found: Comparison) -> Iterator[str]:
    limits = found.limits
    yield (
        f"Differences of label softmaxes from those of {found.reference}: at most {limits.max_abs:g}, on average at "
        f"most {limits.mean_abs:g}. Guardrail: p95 at most {limits.guardrail_ratio:g} times the lowest eligible p95."
    )
    yield ""
    yield from table(
        ["target", "status", "items compared", "largest difference", "mean difference", "gate"],
        [
            [
                each.target,
                each.status,
                str(each.items),
                "-" if each.max_abs is None else f"{each.max_abs:.4f}",
                "-" if each.mean_abs is None else f"{each.mean_abs:.5f}",
                "passed" if each.passed else "**failed**",
            ]
            for each in found.correctness
        ],
    )


def _targets(found: Comparison) -> list[str]:
    return table(
        ["target", "backend", "hardware", "model", "dtype", "versions", "could not run"],
        [
            [
                each.name,
                each.backend or "-",
                each.hardware or "-",
                each.model or "-",
                each.dtype or "-",
                ", ".join(f"{name} {version}" for name, version in each.versions.items()) or "-",
                each.unavailable or "",
            ]
            for each in found.targets
        ],
    )
