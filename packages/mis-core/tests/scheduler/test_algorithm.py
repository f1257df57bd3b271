"""Which layout is chosen, what it says about it, and the sizes that depend on memory."""

import logging

import numpy as np
import pytest
from test_scheduler import Driver, request_of, tokens

from mis_core.requests import Layout
from mis_core.scheduler.algorithm import RequestSize, choose, cost, largest_safe_budget
from mis_core.scheduler.plan import StepShape

pytestmark = pytest.mark.quick

CANONICAL = RequestSize(query_tokens=2000, cached_tokens=0, num_items=500, num_item_tokens=10_000, token_budget=2048)
SMALL = RequestSize(query_tokens=100, cached_tokens=0, num_items=10, num_item_tokens=1000, token_budget=2048)


def test_a_long_query_with_many_items_is_prefilled_first() -> None:
    assert choose("auto", "auto", CANONICAL).algorithm == "prefill_extend"


def test_what_fits_one_step_is_packed() -> None:
    assert choose("auto", "auto", SMALL).algorithm == "packed"


def test_a_cached_query_needs_no_step_of_its_own() -> None:
    cached = RequestSize(query_tokens=0, cached_tokens=2000, num_items=500, num_item_tokens=10_000, token_budget=2048)
    choice = choose("auto", "auto", cached)
    assert choice.algorithm == "prefill_extend"
    assert cost("prefill_extend", cached) < cost("prefill_extend", CANONICAL)


@pytest.mark.parametrize("algorithm", ["serial", "packed", "prefill_extend"])
def test_what_is_asked_for_is_obeyed(algorithm: str) -> None:
    choice = choose(algorithm, "auto", CANONICAL)
    assert (choice.algorithm, choice.dense_mask, choice.reason) == (algorithm, False, "asked for")


def test_a_dense_mask_means_packed() -> None:
    assert choose("auto", "dense", CANONICAL).dense_mask
    assert choose("packed", "dense", CANONICAL).dense_mask
    assert not choose("packed", "segment", CANONICAL).dense_mask


def test_the_reason_names_every_input() -> None:
    reason = choose("auto", "auto", CANONICAL).reason
    for part in ("prefill_extend", "packed", "serial", "query 2000", "0 cached", "500 items", "20 tokens", "2048"):
        assert part in reason


def test_serial_costs_what_it_repeats() -> None:
    assert cost("serial", CANONICAL) > 60 * cost("prefill_extend", CANONICAL)


@pytest.mark.parametrize("items", [1, 2, 10, 100, 5000])
@pytest.mark.parametrize("query", [1, 100, 3000])
def test_costs_rise_with_every_dimension(items: int, query: int) -> None:
    for algorithm in ("serial", "packed", "prefill_extend"):
        here = cost(algorithm, RequestSize(query, 0, items, items * 20, 2048))
        assert 0 < here < cost(algorithm, RequestSize(query, 0, items + 1, items * 20 + 20, 2048))
        assert here < cost(algorithm, RequestSize(query + 64, 0, items, items * 20, 2048))


@pytest.mark.parametrize(
    ("query", "items", "length", "algorithm"), [(2000, 500, 20, "prefill_extend"), (100, 10, 100, "packed")]
)
def test_the_decision_is_logged_with_its_inputs(caplog, query: int, items: int, length: int, algorithm: str) -> None:
    driver = Driver(StepShape(tokens=2048, scored=256, contexts=8, pages_per_context=64, longest_item=256), pages=80)
    with caplog.at_level(logging.DEBUG, logger="mis_core.scheduler"):
        (answer,) = driver.run(request_of(tokens(1, query), [tokens(n, length) for n in range(items)]))
    assert answer.algorithm == algorithm
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"request 0: {algorithm}" in line
    assert f"query {query} to compute" in line
    assert f"{items} items" in line


@pytest.mark.parametrize(
    ("free", "budget"), [(100.0, 512), (512.0 / 0.89, 512), (1024.0 / 0.89, 1024), (1e9, 4096), (0.0, 512)]
)
def test_the_largest_budget_below_nine_tenths_of_memory(free: float, budget: int) -> None:
    assert largest_safe_budget([512, 1024, 2048, 4096], 1.0, free) == budget


@pytest.mark.parametrize("size", [0, 1, 3, 1000])
def test_chunks_keep_the_order_of_items(size: int) -> None:
    driver = Driver()
    items = [tokens(n, 3 + n % 5) for n in range(40)]
    request = request_of(tokens(1, 70), items, layout=Layout(chunk_size=size))
    (answer,) = driver.run(request)
    (alone,) = zip(*[driver.run(request_of(tokens(1, 70), [item])) for item in items], strict=True)
    np.testing.assert_array_equal(answer.logits, np.concatenate([each.logits for each in alone]))
    if size:
        assert max(len(reading.rows) for plan in driver.plans for reading in plan.readings) <= size
