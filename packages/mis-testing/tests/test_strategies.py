"""Strategies: they reach the cases they exist for."""

import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import Phase, find, given, settings

from mis_testing.strategies import seam_pairs, token_lists

QUICK = settings(max_examples=2000, database=None, deadline=None, derandomize=True, phases=[Phase.generate])


def normalised(text: str) -> str:
    return unicodedata.normalize("NFC", text)


SEAMS: dict[str, Callable[[str, str], bool]] = {
    "a mark joins its letter": lambda query, item: normalised(query + item) != normalised(query) + normalised(item),
    "a special token forms": lambda query, item: (
        "<think>" in query + item and "<think>" not in query and "<think>" not in item
    ),
    "newlines join": lambda query, item: query.endswith("\n") and item.startswith("\n"),
    "white space joins newlines": lambda query, item: query.endswith(" ") and item.startswith("\n"),
    "the item is empty": lambda query, item: bool(query) and not item,
}


@pytest.mark.parametrize("seam", SEAMS)
def test_the_seam_is_found(seam: str) -> None:
    assert find(seam_pairs(), lambda pair: SEAMS[seam](*pair), settings=QUICK)


@given(lists=token_lists(50, min_length=1, max_length=4, max_lists=3))
def test_token_lists_keep_their_bounds(lists: list[list[int]]) -> None:
    assert 1 <= len(lists) <= 3
    assert all(1 <= len(tokens) <= 4 and all(0 <= token < 50 for token in tokens) for tokens in lists)
