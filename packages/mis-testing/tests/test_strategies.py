"""Strategies: they reach the cases they exist for."""

import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import Phase, find, settings

from mis_testing.strategies import seam_pairs

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
