"""Draws `docs/assets/shared-query.svg`: what is computed of one request, item by item and by MIS.

    python docs/pictures/shared_query.py

Lengths are those of a workload of `mis-bench`, to scale: the filled area is the tokens that a model computes.
"""

import html
from collections.abc import Iterator
from pathlib import Path

from mis_bench.workload import CANONICAL, Workload, build_workload

PICTURE = Path(__file__).parents[1] / "assets" / "shared-query.svg"
WORKLOAD = "canonical-200-16-20"  # a tenth of the canonical query, and as many items as can be told apart

WIDTH, MARGIN = 640, 20
ROW, BAR = 9, 7  # pixels from one row to the next, of which a bar fills so many
HUES = 5  # items take these colours by turns

# Its own ground, so that it can be read on a page that does not follow the reader's light or dark theme.
STYLE = """
text { font: 15px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1a1f29; }
.title { font-weight: 600; }
.note { fill: #596273; }
.number { text-anchor: end; }
.on-query { text-anchor: middle; fill: #2f6fdb; }
.ground { fill: #f6f7f9; }
.cached { fill: #2f6fdb; fill-opacity: .12; }
.query { fill: #2f6fdb; }
.item-0 { fill: #d9772b; } .item-1 { fill: #1b8f7d; } .item-2 { fill: #9150c8; }
.item-3 { fill: #c2487f; } .item-4 { fill: #7d8a1f; }
@media (prefers-color-scheme: dark) {
  text { fill: #e7eaf0; }
  .note { fill: #9aa4b5; }
  .on-query { fill: #82adff; }
  .ground { fill: #12151a; }
  .cached { fill: #6ea1ff; fill-opacity: .16; }
  .query { fill: #6ea1ff; }
  .item-0 { fill: #f2a35e; } .item-1 { fill: #45c4af; } .item-2 { fill: #bd8bf0; }
  .item-3 { fill: #f086b4; } .item-4 { fill: #bccb55; }
}
"""


def one_by_one(workload: Workload) -> int:
    """Return how many tokens are computed if every item is sent with the query before it."""
    return sum(len(workload.query) + len(item) for item in workload.items)


def shared(workload: Workload) -> int:
    """Return how many tokens are computed if the query is computed once."""
    return len(workload.query) + sum(map(len, workload.items))


def draw() -> str:
    """Return the picture."""
    workload = build_workload(WORKLOAD)
    rows = workload.num_items * ROW
    first = 44
    second = first + rows + 74
    bottom = second + ROW + rows
    end, query = WIDTH - MARGIN, len(workload.query)
    parts = [
        _rectangle("ground", 0, 0, WIDTH, bottom + 46, radius=10),
        _text("title", MARGIN, first - 14, "Item by item"),
        _text("number", end, first - 14, f"{one_by_one(workload):,} tokens computed"),
        *_one_by_one(workload, first),
        _text("on-query", MARGIN + query * _scale(workload) / 2, first + rows + 18, f"query, {query} tokens"),
        _text("number", end, first + rows + 18, f"items, {len(workload.items[0])} each"),
        _text("title", MARGIN, second - 14, "With MIS"),
        _text("number", end, second - 14, f"{shared(workload):,} tokens computed"),
        *_shared(workload, second),
        _text("note", MARGIN, bottom + 28, _fewer(workload, build_workload(CANONICAL))),
    ]
    label = (
        f"A query of {query} tokens and {workload.num_items} items of {len(workload.items[0])}: "
        f"{one_by_one(workload):,} tokens are computed item by item, {shared(workload):,} with MIS."
    )
    size = f'viewBox="0 0 {WIDTH} {bottom + 46}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def _fewer(drawn: Workload, larger: Workload) -> str:
    times, most = (one_by_one(workload) / shared(workload) for workload in (drawn, larger))
    size = f"{len(larger.query):,} + {larger.num_items} x {len(larger.items[0])}"
    return f"{times:.1f} times fewer; {most:.0f} times fewer for {size} tokens"


def _one_by_one(workload: Workload, top: float) -> Iterator[str]:
    scale = _scale(workload)
    for row, item in enumerate(workload.items):
        y = top + row * ROW
        yield _rectangle("query", MARGIN, y, len(workload.query) * scale, BAR)
        yield _rectangle(f"item item-{row % HUES}", MARGIN + len(workload.query) * scale, y, len(item) * scale, BAR)


def _shared(workload: Workload, top: float) -> Iterator[str]:
    scale = _scale(workload)
    query = len(workload.query) * scale
    yield _rectangle("query", MARGIN, top, query, BAR)
    yield _rectangle("cached", MARGIN, top + ROW, query, workload.num_items * ROW - ROW + BAR)
    yield _text(
        "on-query",
        MARGIN + query / 2,
        top + ROW + workload.num_items * ROW / 2 + 3,
        "kept: every item sees the query, and no item another",
    )
    for row, item in enumerate(workload.items, start=1):
        yield _rectangle(f"item item-{(row - 1) % HUES}", MARGIN + query, top + row * ROW, len(item) * scale, BAR)


def _scale(workload: Workload) -> float:
    """Return how many pixels a token is wide."""
    return (WIDTH - 2 * MARGIN) / (len(workload.query) + max(map(len, workload.items)))


def _rectangle(kind: str, x: float, y: float, width: float, height: float, radius: float = 0) -> str:
    corners = f' rx="{radius:g}"' if radius else ""
    return f'<rect class="{kind}" x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{height:g}"{corners}/>'


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:.2f}" y="{y:g}">{html.escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
