"""What asking together makes of decisions: beside the same questions one by one, of the same target and of others."""

from collections.abc import Iterator, Sequence

from mis_bench.results.figures import Row
from mis_bench.results.plan import Plan
from mis_bench.results.statistics import ratio
from mis_bench.table import number


def decisions_findings(plan: Plan, rows: Sequence[Row], reference: str | None) -> Iterator[str]:
    """Yield how many times as many questions a second the reference answers in one request, of each known state.

    Beside it are its own answers one by one, and those of every other target, in one request and one by one.
    """
    asked = [row for row in rows if row.cache == "warm" and (row.num_items > 1 or plan.case(row.case).is_partial)]
    for row in asked:
        if row.target != reference or row.chunk_items:
            continue
        for other in asked:
            is_alike = (other.workload, other.load) == (row.workload, row.load)
            found = ratio(row.items_per_second, other.items_per_second) if is_alike and other is not row else None
            if found is not None:
                yield f"{row.name}: {number(found.value)} times ({found.spread}) the questions/s of {other.name}."
