"""What a comparison says, in sentences: where a target is better or worse than the reference, and by how much."""

from collections.abc import Iterator

from mis_bench.artifacts.comparison import Row, View


def findings(portable: View, native: View, reference: str) -> list[str]:
    """Return where targets are better or worse: each at its best, then chunk size by chunk size."""
    return [*_at_their_best(native, reference), *_by_chunk(portable, reference)]


def recommendations(portable: View, native: View) -> list[str]:
    """Return what to use: the winner, and the best setting of every target that was measured in several."""
    settings = [f"Best setting of {row.target}: {_setting(row)}." for row in native.rows if _has_choice(portable, row)]
    return [*_winner(native), *settings]


def _has_choice(portable: View, row: Row) -> bool:
    others = [each for each in portable.rows if each.target == row.target]
    return row.eligible and (len(others) > 1 or bool(row.setting))


def _setting(row: Row) -> str:
    calls = (
        "whole requests"
        if row.chunk_items >= row.items
        else f"calls of {row.chunk_items} item{'' if row.chunk_items == 1 else 's'}"
    )
    return f"{calls}, {row.setting}" if row.setting else calls


def _winner(native: View) -> Iterator[str]:
    best = native.best
    if best is None or best.items_per_second is None or best.latency is None:
        yield "No target may win: none is correct beside another, complete and without failures."
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
