"""Pages of a context follow one another, also in a cache that is full and has been for long."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mis_core.cache.free_pages import GROUP, FreePages, groups_within
from mis_core.cache.prefix import PrefixCache
from mis_core.scheduler.plan import PAGE_SIZE


@settings(max_examples=200, deadline=None)
@given(
    pages=st.integers(1, 70),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 20)), max_size=40),
)
def test_pages_are_given_out_once_until_they_come_back(pages: int, steps: list[tuple[bool, int, int]]) -> None:
    free, taken = FreePages(pages), []
    for takes, count, first in steps:
        if takes:
            given_out = free.draw(min(count, len(free)), first)
            assert len(set(given_out)) == len(given_out)
            assert set(given_out).isdisjoint(taken)
            taken += given_out
        else:
            for _ in range(min(count, len(taken))):
                free.add(taken.pop(first % len(taken)))
        assert sorted([*free, *taken]) == list(range(pages))
        assert len(free) == pages - len(taken)
        whole = {group for group in range(pages // GROUP) if set(range(group * GROUP, (group + 1) * GROUP)) <= {*free}}
        assert free.groups == len(whole)


@given(first=st.integers(0, 40), count=st.integers(0, 60))
def test_whole_groups_of_places_are_counted(first: int, count: int) -> None:
    places = set(range(first, first + count))
    expected = sum(set(range(n, n + GROUP)) <= places for n in range(0, 112, GROUP))
    assert groups_within(first, count) == expected


def test_a_fresh_cache_gives_pages_in_order() -> None:
    free = FreePages(24)
    assert free.draw(3, first=0) + free.draw(2, first=3) == [0, 1, 2, 3, 4]
    assert free.draw(9, first=8) == [8, 9, 10, 11, 12, 13, 14, 15, 5]


def test_broken_groups_are_used_up_before_others_are_broken() -> None:
    free = FreePages(3 * GROUP)
    taken = free.draw(2, first=0)
    assert free.groups == 2
    assert set(free.draw(GROUP - 2, first=3)) == set(range(GROUP)) - set(taken)
    assert free.groups == 2


def scattered_share(cache: PrefixCache, requests: int) -> float:
    """Serve queries of all lengths, eight at a time, in a cache that is full soon; judge tiles of the later half."""
    random = np.random.default_rng(0)
    lengths = random.integers(200, 6000, 100)
    locked, tiles, scattered = [], 0, 0
    for number in range(requests):
        user = random.integers(len(lengths))
        lock = cache.lock((np.arange(lengths[user]) + 10_000 * user).astype(np.int32))
        while locked and (len(locked) == 8 or cache.available < lock.num_pages):
            cache.release(locked.pop(random.integers(len(locked))))
        cache.match(lock)
        while lock.done < len(lock.tokens):
            cache.insert(lock, min(len(lock.tokens) - lock.done, 2048))
        pages = lock.pages
        whole = pages[: len(pages) // GROUP * GROUP].reshape(-1, GROUP)
        if number > requests // 2:
            tiles += len(whole)
            scattered += int(np.any(np.diff(whole) != 1, axis=1).sum())
        locked.append(lock)
        cache.check()
    assert cache.statistics.evicted_pages > 10 * cache.statistics.pages
    return scattered / tiles


def test_tiles_are_whole_in_a_full_cache() -> None:
    assert scattered_share(PrefixCache(400, PAGE_SIZE), 300) < 0.05


def test_no_more_is_evicted_early_than_eight_groups() -> None:
    """Though many pages are free: none of them in a group of its own."""
    cache = PrefixCache(40 * GROUP, PAGE_SIZE)
    private = cache.allocate(20 * GROUP)
    for number in range(20):
        lock = cache.lock(np.full(GROUP * PAGE_SIZE, number, np.int32))
        cache.insert(lock, len(lock.tokens))
        cache.release(lock)
    cache.free(private[np.arange(len(private)) % GROUP != 0])
    given_out = cache.allocate(15 * GROUP)
    assert cache.statistics.evicted_pages == 8 * GROUP
    cache.check(private=20 + len(given_out))
