"""Short items in runs of rows that visit keys together."""

import dataclasses

import numpy as np
import pytest
from test_scheduler import SHAPE, Driver, assert_right, request_of, tokens

pytestmark = pytest.mark.quick

WIDE = dataclasses.replace(SHAPE, tokens=2048, scored=256, alignment=512)


@pytest.mark.parametrize("requests", [1, 2, 3])
def test_no_short_item_lies_in_two_wide_runs(requests: int) -> None:
    driver = Driver(WIDE)
    bodies = [request_of(tokens(n, 500), [tokens(item, 20) for item in range(100 + n)]) for n in range(requests)]
    for body, answer in zip(bodies, driver.run(*bodies), strict=True):
        assert_right(body, answer)
    for shard in (shard for plan in driver.plans for shard in plan.shards):
        first, last = shard.starts // 512, (shard.starts + shard.lens - 1) // 512
        assert (first == last)[~shard.paged].all()


def test_runs_that_a_request_begins_are_filled() -> None:
    """Two requests of 500 + 75 x 20 tokens are a run of their queries and three of their items each."""
    driver = Driver(WIDE)
    driver.run(*(request_of(tokens(n, 500), [tokens(item, 20) for item in range(75)]) for n in range(2)))
    assert [shard.rows for plan in driver.plans for shard in plan.shards] == [2036, 2036]


@pytest.mark.parametrize(("alignment", "length"), [(256, 20), (512, 180)])
def test_narrow_items_lie_side_by_side(alignment: int, length: int) -> None:
    driver = Driver(dataclasses.replace(WIDE, alignment=alignment))
    driver.run(request_of(tokens(0, 64), [tokens(n, length) for n in range(8)]))
    (shard,) = driver.plans[-1].shards
    np.testing.assert_array_equal(np.diff(shard.starts[~shard.paged]), length)
