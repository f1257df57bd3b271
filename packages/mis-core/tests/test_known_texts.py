"""Ids of long texts are remembered: the same ids, fewer readings, and no more memory than is said."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mis_core.tokenization import Tokenizer
from mis_core.tokenization.encoder import LONG, KnownTexts, Meter, TooMuchWork


def code_points(text: str) -> list[int]:
    return list(map(ord, text))


class Reader:
    """Reads texts as their code points, and notes each reading."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, text: str) -> list[int]:
        self.read.append(text)
        return code_points(text)


def test_a_long_text_is_read_once() -> None:
    known, reader = KnownTexts(), Reader()
    long, short = "a" * LONG, "a" * (LONG - 1)
    for text in (long, long, short, short):
        assert known.ids(text, reader).tolist() == code_points(text)
    assert reader.read == [long, short, short]


def test_nobody_can_change_what_is_remembered() -> None:
    known, reader = KnownTexts(), Reader()
    for _ in range(2):
        with pytest.raises(ValueError, match="read-only"):
            known.ids("a" * LONG, reader)[0] = 1


def test_a_text_that_fails_is_not_remembered() -> None:
    known = KnownTexts()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            known.ids("a" * LONG, lambda text: [1 // 0])


def test_lone_surrogates_have_a_digest() -> None:
    assert KnownTexts().ids("\ud800" * LONG, code_points)[0] == 0xD800


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(LONG, LONG + 600)), max_size=40))
def test_the_latest_are_kept_and_no_more(asked: list[tuple[str, int]]) -> None:
    most = 3 * LONG
    known, reader = KnownTexts(most), Reader()
    expected: list[str] = []  # what is kept, the latest last
    for letter, count in asked:
        text = letter * count
        reads = len(reader.read)
        assert known.ids(text, reader).tolist() == code_points(text)
        assert (len(reader.read) == reads) == (text in expected)
        expected = [*(other for other in expected if other != text), text]
        while sum(len(other) + 64 for other in expected) > most:
            expected.pop(0)


def test_threads_share_it() -> None:
    known = KnownTexts(2 * LONG + 200)
    texts = [letter * LONG for letter in "abcd"]

    def ask() -> None:
        for number in range(200):
            text = texts[number % 4]
            assert known.ids(text, code_points)[0] == ord(text[0])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert known._tokens == sum(len(ids) + 64 for ids in known._found.values()) <= 2 * LONG + 200


def test_texts_without_tokens_are_forgotten_too() -> None:
    known = KnownTexts(1000)
    for number in range(100):
        known.ids(f"{number} " * LONG, lambda text: [])
    assert len(known._found) == 1000 // 64


@pytest.mark.parametrize("special", [False, True])
def test_a_known_text_has_the_same_ids_and_the_same_cost(small_tokenizer, special: bool) -> None:
    tokenizer = Tokenizer(small_tokenizer("framed"))
    text = "A text that is asked about more than once. " * 60
    first = tokenizer.encode(text, special)
    costs = []
    for _ in range(2):
        meter = Meter()
        np.testing.assert_array_equal(tokenizer.metered(meter).encode(text, special), first)
        costs.append(meter.cost)
    assert costs[0] == costs[1] > len(text)
    with pytest.raises(TooMuchWork):
        tokenizer.metered(Meter(costs[0] - 1)).encode(text, special)


def test_a_query_that_is_asked_again_is_not_tokenised_again(small_tokenizer, monkeypatch) -> None:
    tokenizer = Tokenizer(small_tokenizer("qwen"))
    query = "Does the document answer the query? Answer yes or no. " * 60 + "\n\nDocument:"
    before = tokenizer.join(query, [" rain", " sun"])
    reader, backend = Reader(), tokenizer._encoder._backend

    class Watched:
        def __getattr__(self, name):
            return getattr(backend, name)

        def encode(self, text, **options):
            reader.read.append(text)
            return backend.encode(text, **options)

    monkeypatch.setattr(tokenizer._encoder, "_backend", Watched())
    again = tokenizer.join(query, [" rain", " sun"])
    assert not [text for text in reader.read if len(text) >= LONG]
    np.testing.assert_array_equal(again.query, before.query)
    np.testing.assert_array_equal(again.item_tokens, before.item_tokens)
