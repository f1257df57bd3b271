"""What many callers make of a target: beside one caller, beside other targets, and beside what its products allow.

The limit of a row is the time that its requests' least operations take at the best rate of products in the same run, of
any target that computes in the same type on the same hardware.
"""

from collections.abc import Iterator, Mapping, Sequence

from mis_bench.results.figures import Row
from mis_bench.results.plan import Plan
from mis_bench.results.records import Results
from mis_bench.results.statistics import Estimate, ratio
from mis_bench.table import number

COUNTS_FROM = 1.15
"""Ratio of two targets' product rates from which on speeds are also told divided by it."""


def with_limits(rows: Sequence[Row], results: Results) -> list[Row]:
    """Return rows with the share of their limit that they reach, where operations and a product rate are known."""
    rates, kinds = _product_rates(results), {row.target: (row.dtype, row.hardware) for row in rows}
    found = []
    for row in rows:
        best = max((rate for target, rate in rates.items() if kinds[target] == kinds[row.target]), default=None)
        flops = results.plan.case(row.case).flops
        if best and flops and row.requests_per_second:
            row = row.model_copy(update={"limit_share": flops * row.requests_per_second.value / best})
        found.append(row)
    return found


def callers_findings(results: Results, rows: Sequence[Row]) -> Iterator[str]:
    """Yield product rates, what more callers reach than the fewest do, and what other targets reach."""
    plan, rates = results.plan, _product_rates(results)
    for target, rate in rates.items():
        dtype = next(row.dtype for row in rows if row.target == target)
        yield f"{target} multiplies up to {number(rate / 1e9)} GFLOP/s in {dtype}."
    closed = {row.name: row for row in rows if plan.case(row.case).load.rate_share is None}
    for row in closed.values():
        yield from _beside_the_fewest(plan, row, closed)
    for row in closed.values():
        yield from _beside_others(plan, row, closed, rates)


def _beside_the_fewest(plan: Plan, row: Row, closed: Mapping[str, Row]) -> Iterator[str]:
    """Yield how a load of more callers compares with the one of the fewest."""
    alike = [
        each
        for each in closed.values()
        if (each.target, each.workload, each.cache) == (row.target, row.workload, row.cache)
    ]
    fewest = min(alike, key=lambda each: plan.case(each.case).load.max_concurrency or 0)
    found = ratio(row.requests_per_second, fewest.requests_per_second)
    if found is not None and row is not fewest:
        yield f"{row.name}: {_times(found)} the requests/s of {fewest.load}."


def _beside_others(plan: Plan, row: Row, closed: Mapping[str, Row], rates: Mapping[str, float]) -> Iterator[str]:
    """Yield how the reference compares with the best of the other targets under the same load."""
    others = [each for each in closed.values() if each.target != row.target and each.conditions == row.conditions]
    best = max(others, key=lambda each: each.speed, default=None)
    if row.target != plan.reference or best is None:
        return
    found = ratio(row.requests_per_second, best.requests_per_second)
    if found is None:
        return
    fairly = _fairly(row, best, found, rates)
    yield f"{row.name}: {_times(found)} the requests/s of {best.target}, the best of the others{fairly}."


def _fairly(row: Row, best: Row, found: Estimate, rates: Mapping[str, float]) -> str:
    """Return the same divided by how much faster the other one multiplies, if that counts."""
    if row.target not in rates or best.target not in rates:
        return ""
    faster = rates[best.target] / rates[row.target]
    fair = number(found.value / faster)
    divided = f" and {fair} times divided by that" if faster > COUNTS_FROM else ""
    return f"{divided}; that one multiplies {number(faster)} times as fast"


def _times(found: Estimate) -> str:
    return f"{number(found.value)} times ({found.spread})"


def _product_rates(results: Results) -> dict[str, float]:
    """Return the best product rate of each target, in floating-point operations a second."""
    rates: dict[str, float] = {}
    for each in results.product_rates:
        rates[each.target] = max(each.flops_per_s, rates.get(each.target, 0.0))
    return rates
