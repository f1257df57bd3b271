"""What a comparison says, made anew from its requests and rows."""

from collections.abc import Iterator
from typing import Any

from mis_bench.artifacts.comparison import Comparison, Row, View
from mis_bench.artifacts.parts import differs
from mis_bench.comparison.assemble import Evidence, views
from mis_bench.comparison.findings import findings, recommendations
from mis_bench.comparison.series import Series


def comparison_faults(found: Comparison) -> Iterator[str]:
    """Yield figures that are not those of the requests, and sentences that are not those of the views.

    The ends of intervals are left out: other releases of the libraries draw other samples.
    """
    portable, native = found.portable_view, found.best_native_view
    if found.recommendations != recommendations(portable, native):
        yield "recommendations are not what the views make them"
    if found.findings != findings(portable, native, found.reference):
        yield "findings are not what the views make them"
    if not found.measured_together:
        return  # the requests are in the matrices
    items = {(row.target, row.chunk_items): row.items for row in portable.rows}
    asked = {(each.target, each.chunk_items) for each in found.requests}
    if asked != items.keys():
        yield "requests are not those of the rows of portable_view"
        return
    evidence = Evidence(
        workload=found.workload,
        targets=found.targets,
        portable=[Series.of(found.requests, *key, number) for key, number in items.items()],
        answers={},
        measured_together=True,
    )
    again = views(evidence, reference=found.reference, correctness=found.correctness, limits=found.limits)
    for field, view, anew in zip(("portable_view", "best_native_view"), (portable, native), again, strict=True):
        yield from (f"{field}.{fault}" for fault in _unlike(view, anew))


def _unlike(view: View, anew: View) -> Iterator[str]:
    if len(view.rows) != len(anew.rows):
        yield f"rows are {len(view.rows)}, but the requests make it {len(anew.rows)}"
        return
    for number, (row, expected) in enumerate(zip(view.rows, anew.rows, strict=True)):
        for field in Row.model_fields:
            if not _same(getattr(row, field), getattr(expected, field)):
                yield f"rows.{number}.{field} is not what the requests make it"


def _same(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        return not differs(found, expected)
    if hasattr(found, "model_dump") and hasattr(expected, "model_dump"):
        values = [part.model_dump(exclude={"low", "high"}) for part in (found, expected)]
        return values[0].keys() == values[1].keys() and all(_same(values[0][key], values[1][key]) for key in values[0])
    return found == expected
