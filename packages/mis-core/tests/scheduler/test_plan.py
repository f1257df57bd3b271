"""Step plans: every token once, at its position, within the budget."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mis_core.request import ScoreRequest
from mis_core.scheduler.plan import LONG_ITEM, PAGE_SIZE, plan_request


def request_of(query: int, lens: list[int], context_lens: list[int] | None = None) -> ScoreRequest:
    """A request whose token ids are all different, so that each can be traced."""
    return ScoreRequest(
        query=np.arange(query, dtype=np.int32),
        item_tokens=np.arange(10_000, 10_000 + sum(lens), dtype=np.int32),
        item_starts=np.r_[0, np.cumsum(lens)].astype(np.int32),
        context_lens=np.array(context_lens or [query] * len(lens), np.int32),
        label_ids=np.array([[1, 2]], np.int32),
    )


@settings(max_examples=100, deadline=None)
@given(
    query=st.integers(0, 900),
    lens=st.lists(st.integers(1, 700), min_size=1, max_size=40),
    budget=st.sampled_from([256, 512, 2048]),
)
def test_plans_compute_every_token_once_at_its_position(query: int, lens: list[int], budget: int) -> None:
    request = request_of(query, lens)
    scored: dict[int, int] = {}
    fresh_query = []
    for plan in plan_request(request, budget, pages_per_context=32):
        assert plan.starts[-1] + plan.lens[-1] <= budget
        assert len(plan.token_ids) == plan.lens.sum() == len(plan.positions)
        ends = np.cumsum(plan.lens)
        for segment, (end, length) in enumerate(zip(ends, plan.lens, strict=True)):
            assert plan.positions[end - length] == plan.context_lens[segment]
            assert (np.diff(plan.positions[end - length : end]) == 1).all()
        if len(plan.scored_items) == 0 and (plan.token_ids < 10_000).all():
            fresh_query.append(plan.token_ids)
        for row, item in zip(plan.scored_rows, plan.scored_items, strict=True):
            segment = int(np.searchsorted(plan.starts, row, side="right")) - 1
            within = ends[segment] - plan.lens[segment] + row - plan.starts[segment]
            scored[int(item)] = int(plan.token_ids[within])
            assert plan.positions[within] == query + lens[item] - 1
    assert scored == {i: 10_000 + sum(lens[: i + 1]) - 1 for i in range(len(lens))}
    long_tail = query % PAGE_SIZE  # a long item repeats the tokens of the query's last partial page
    assert np.concatenate(fresh_query or [np.zeros(0)])[:query].tolist() == list(range(query)) or long_tail


def test_items_share_a_step_up_to_the_budget() -> None:
    plans = list(plan_request(request_of(100, [20] * 30), 256, 8))
    assert [len(plan.lens) for plan in plans] == [1, 12, 12, 6]


def test_a_long_item_has_pages_of_its_own_and_writes_no_shared_page() -> None:
    query = 3 * PAGE_SIZE + 10
    plans = list(plan_request(request_of(query, [LONG_ITEM + 1]), 512, 16))
    long = plans[-1]
    assert long.paged.all()
    assert long.context_lens.tolist() == [3 * PAGE_SIZE]
    assert long.page_table[:4].tolist() == [0, 1, 2, 3 + 16]
    assert long.token_ids[:10].tolist() == list(range(3 * PAGE_SIZE, query))


def test_only_the_part_of_the_query_that_an_item_sees_is_computed() -> None:
    plans = list(plan_request(request_of(100, [2, 3], context_lens=[80, 60]), 256, 8))
    assert plans[0].token_ids.tolist() == list(range(80))
    assert plans[1].positions.tolist() == [80, 81, 60, 61, 62]


def test_item_first_has_no_query_step() -> None:
    plans = list(plan_request(request_of(0, [7, 9]), 256, 8))
    assert len(plans) == 1
    assert plans[0].positions.tolist() == [*range(7), *range(9)]
