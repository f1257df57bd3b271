"""What a comparison says, in sentences: where a target is better or worse than the reference, and by how much."""

from collections.abc import Iterator

from mis_bench.artifacts.comparison import Row, View


def findings(portable: View, native: View, reference: str) -> list[str]:
    """Return the sentences: the winner, then each target at its best, then chunk size by chunk size."""
    return [*_winner(native), *_at_their_best(native, reference), *_by_chunk(portable, reference)]


def _winner(native: View) -> Iterator[str]:
    best = native.best
    if best is None or best.items_per_second is None or best.latency is None:
        yield "No target may win: none is correct, complete and without failures."
        return
    yield (
        f"{best.label} wins: {best.items_per_second.value:,.4g} items/s at a p95 of {best.latency.p95_ms:,.4g} ms, "
        "the most among those within the guardrail."
    )


def _at_their_best(native: View, reference: str) -> Iterator[str]:
    for row in native.rows:
        if row.target == reference or row.ratio is None:
            continue
        low, high = f"{row.ratio.low:.3g}", f"{row.ratio.high:.3g}"
        spread = f" ({low} to {high})" if low != high else ""
        level = low != high and row.ratio.low <= 1 <= row.ratio.high
        caveat = "" if row.eligible else f"; not eligible: {', '.join(row.reasons)}"
        yield (
            f"At its best, {row.label} scores {row.ratio.value:.3g} times{spread} the items per second of {reference}"
            f"{', level within the noise' if level else ''}{caveat}."
        )


def _by_chunk(portable: View, reference: str) -> Iterator[str]:
    for target in dict.fromkeys(row.target for row in portable.rows):
        rows = [row for row in portable.rows if row.target == target and row.ratio is not None]
        if target == reference or len(rows) < 2:
            continue
        yield f"With the same calls, {target} against {reference} is " + "; ".join(_sides(rows)) + "."


def _sides(rows: list[Row]) -> Iterator[str]:
    sides = {
        "faster": [row for row in rows if row.ratio and row.ratio.low > 1],
        "slower": [row for row in rows if row.ratio and row.ratio.high < 1],
        "level": [row for row in rows if row.ratio and row.ratio.low <= 1 <= row.ratio.high],
    }
    for word, those in sides.items():
        if those:
            ratios = [row.ratio.value for row in those if row.ratio]
            low, high = f"{min(ratios):.3g}", f"{max(ratios):.3g}"
            size = ", ".join(str(row.chunk_items) for row in those)
            yield f"{word} in chunks of {size} ({low if low == high else f'{low} to {high}'} times)"
