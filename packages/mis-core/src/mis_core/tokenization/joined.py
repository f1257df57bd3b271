"""Segments of a request, as arrays: how each item continues the query, given as ids or as texts.

`ScoreRequest` states the invariants these arrays keep. Query and items are one string each, tokenised so that the
query's tokens are shared. Nothing here loops over ids of items.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64, Integer

from mis_core.errors import RequestError, shown
from mis_core.ragged import offsets, ramp, rows_at
from mis_core.tokenization.encoder import Encoder, begin_with, framed
from mis_core.tokenization.plain_spans import PlainSpans, last_piece
from mis_core.tokenization.seam import Seam


class Joined(NamedTuple):
    """A query and its items in the form of `ScoreRequest`, whose first fields these become.

    Attributes:
        query: Shared tokens, `[query_tokens]`.
        item_tokens: New tokens of all segments, `[item_tokens]`.
        item_starts: Offsets into `item_tokens`, `[items + 1]`.
        context_lens: Query tokens each segment sees, `[items]`.
    """

    query: Int32[np.ndarray, " query_tokens"]
    item_tokens: Int32[np.ndarray, " item_tokens"]
    item_starts: Int32[np.ndarray, " items_plus_one"]
    context_lens: Int32[np.ndarray, " items"]

    def rows(self, items: Integer[np.ndarray, " rows"]) -> "Joined":
        """Return the query with some of the items only."""
        lens = np.diff(self.item_starts)[items]
        tokens = rows_at(self.item_tokens, self.item_starts[items], lens)
        return Joined(self.query, tokens, offsets(lens), self.context_lens[items])

    def sequence(self, item: int) -> Int32[np.ndarray, " tokens"]:
        """Return one item's whole sequence, its context first: what a pointwise pass would read."""
        segment = self.item_tokens[self.item_starts[item] : self.item_starts[item + 1]]
        return np.concatenate([self.query[: self.context_lens[item]], segment])

    def framed(self, head: Integer[np.ndarray, " query_tokens"], tail: Integer[np.ndarray, " tail_tokens"]) -> "Joined":
        """Return the same with ids before the query, which every segment sees, and after every item."""
        lens = np.diff(self.item_starts)
        return Joined(
            np.concatenate([head, self.query]).astype(np.int32),
            np.insert(self.item_tokens, np.repeat(self.item_starts[1:], len(tail)), np.tile(tail, len(lens))),
            offsets(lens + len(tail)),
            self.context_lens + np.int32(len(head)),
        )


_NO_IDS = np.empty(0, np.int32)

NOTHING = Joined(np.empty(0, np.int32), np.empty(0, np.int32), np.zeros(1, np.int32), np.empty(0, np.int32))
"""No items, and so no query."""


def join_ids(
    query: Integer[np.ndarray, " query_tokens"],
    tokens: Integer[np.ndarray, " item_tokens"],
    lens: Integer[np.ndarray, " items"],
    item_first: bool,
) -> Joined:
    """Join a query and items given as token ids; ids are taken as they are.

    Args:
        query: The query's tokens, at least one.
        tokens: All items' tokens, item after item.
        lens: Tokens of each item; 0 is an empty item, scored at the query's last token.
        item_first: Put each item before the query; then nothing is shared.
    """
    query = query.astype(np.int32)
    if item_first:
        return _put_items_first(query, tokens.astype(np.int32), lens)
    if np.count_nonzero(lens) == len(lens):
        contexts = np.full(len(lens), len(query), np.int32)
        return Joined(query, tokens.astype(np.int32), offsets(lens), contexts)
    empty = lens == 0
    begins = np.cumsum(lens) - lens
    return Joined(
        query=query,
        item_tokens=np.insert(tokens.astype(np.int32), begins[empty], query[-1]),
        item_starts=offsets(np.maximum(lens, 1)),
        context_lens=(len(query) - empty).astype(np.int32),
    )


def cut_segments(
    query: Int32[np.ndarray, " query_tokens"],
    tokens: Int32[np.ndarray, " tail_tokens"],
    lens: Integer[np.ndarray, " items"],
    head_len: int,
) -> Joined:
    """Share as much of the query as each item's joined sequence begins with.

    The longest common prefix is always a correct context, whatever produced the sequences. At least
    one token stays in the segment, because its last token is the scored one.

    Args:
        query: Tokens of the query alone.
        tokens: Every joined sequence from token `head_len` on, one after the other.
        lens: Tokens of each of them, at least one.
        head_len: Tokens at the beginning known to be the query's own.
    """
    tail = query[head_len:]
    index = ramp(lens)
    equal = index < len(tail)
    equal[equal] = tail[index[equal]] == tokens[equal]
    shared = np.minimum.reduceat(np.where(equal, np.repeat(lens, lens), index), offsets(lens)[:-1])
    shared = np.minimum(shared, lens - 1)
    return Joined(
        query=query,
        item_tokens=tokens[index >= np.repeat(shared, lens)],
        item_starts=offsets(lens - shared),
        context_lens=(head_len + shared).astype(np.int32),
    )


def whole_sequences(tokens: Int32[np.ndarray, " tokens"], lens: Integer[np.ndarray, " items"]) -> Joined:
    """Make each sequence one segment of its own that sees no query."""
    return Joined(np.empty(0, np.int32), tokens, offsets(lens), np.zeros(len(lens), np.int32))


def _put_items_first(query: np.ndarray, tokens: np.ndarray, lens: np.ndarray) -> Joined:
    before = np.repeat(np.arange(len(lens)) * len(query), lens)  # each item's tokens go before its copy of the query
    return whole_sequences(np.insert(np.tile(query, len(lens)), before, tokens), lens + len(query))


class Joiner:
    """Tokenises queries with their items."""

    def __init__(self, encoder: Encoder, seam: Seam, spans: PlainSpans) -> None:
        """Take what encodes texts, what knows where the tokens of one end whatever follows, and what marks spans."""
        self._encoder = encoder
        self._seam = seam
        self._spans = spans

    def apart(
        self, query: str, items: Sequence[str], item_first: bool, add_special_tokens: bool
    ) -> tuple[Int64[np.ndarray, " query_tokens"], Int64[np.ndarray, " item_tokens"], Int64[np.ndarray, " items"]]:
        """Tokenise query and items each for itself; returns as `Tokenizer.encode_apart`, whatever the model has."""
        tokens, lens = self._encoder.encode_all(iter(items), 0, len(items), special=False)
        own = np.array(self._encoder.ids(query), np.int64)
        before, after = (self._encoder.frame or ([], [])) if add_special_tokens else ([], [])
        if item_first:
            tokens, lens = framed(tokens, lens, before, [], ~begin_with(tokens, lens, before))
            return np.concatenate([own, after]).astype(np.int64), tokens.astype(np.int64), lens
        if begin_with(own, np.array([len(own)]), before)[0]:
            before, after = [], []
        tokens, lens = framed(tokens, lens, [], after, np.ones(len(items), bool))
        return np.concatenate([before, own]).astype(np.int64), tokens.astype(np.int64), lens

    def join(
        self,
        query: str,
        items: Sequence[str],
        item_first: bool,
        alone: Int32[np.ndarray, " query_tokens"],
        special: bool,
        max_characters: int,
        fields: tuple[str, str],
    ) -> Joined:
        """Tokenise every joined string, and share what the query's own tokens begin it with.

        Args:
            query: Shared text, not empty.
            items: Texts; one may be empty.
            item_first: Tokenise `item + query` instead; then nothing is shared.
            alone: The query's own tokens.
            special: Whether special tokens are added.
            max_characters: Most that are tokenised.
            fields: What holds the query and what holds the items in the request.

        Raises:
            RequestError: a text has no tokens at all, or too many characters would be tokenised.
        """

        def whole(join: Callable[[str], str]) -> tuple[np.ndarray, np.ndarray]:
            return self._encode_whole(query, items, join, special, max_characters, fields)

        if item_first:
            return whole_sequences(*whole(lambda item: item + query))
        cut = self._seam.cut(query)
        if cut is not None:
            _check_characters(query[cut:], items, max_characters, fields[1])
            joined = self._join_at(cut, query, items, alone, special)
            if joined is not None:
                return joined
        return cut_segments(alone, *whole(lambda item: query + item), head_len=0)

    def join_marked(
        self,
        query: str,
        items: Sequence[str],
        context_length: int | None,
        max_characters: int,
        fields: tuple[str, str],
    ) -> Joined:
        """Tokenise every joined string where texts have marked spans; no special tokens are added.

        What is before the query's last piece is tokenised once, what follows with every item.

        Args:
            query: Shared text.
            items: Texts.
            context_length: As of `Tokenizer.join`.
            max_characters: Most that are tokenised.
            fields: What holds the query and what holds the items in the request.

        Raises:
            RequestError: `tokenizer_failed`, the query is too long, or too many characters would be tokenised.
        """
        last = last_piece(query)
        head, tail = query[:last], query[last:]
        before = self.marked(head) if head else []
        alone = self.marked(tail, follows=bool(head))
        check_query(len(before) + len(alone), context_length, fields[1])
        cut = self._seam.cut(tail)
        if cut is not None:
            fixed, left = self.marked(tail[:cut], follows=bool(head)), tail[cut - 1]
            left_len = len(self._encoder.ids(left))  # as in `_join_at`
            _check_characters(tail[cut:], items, max_characters, fields[1])
            rest = self._encoder.ids(left + tail[cut:])[left_len:]
            rows = [self.marked(left + tail[cut:] + item)[left_len:] for item in items]
            if [*fixed, *rest] == alone and all(rows):
                return _shared(rest, rows).framed(np.array([*before, *fixed], np.int32), _NO_IDS)
        _check_characters(tail, items, max_characters, fields[1])
        rows = [self.marked(tail + item, follows=bool(head)) for item in items]
        if not all(rows):
            empty = [bool(row) for row in rows].index(False)
            message = f"{fields[1]}[{empty}] has no tokens after the control token before it."
            raise RequestError("tokenizer_failed", message, fields[0])
        return _shared(alone, rows).framed(np.array(before, np.int32), _NO_IDS)

    def marked(self, text: str, *, follows: bool = False) -> list[int]:
        """Return the ids of a text that may have marked spans.

        Args:
            text: The text.
            follows: Whether something is tokenised apart before it.

        Raises:
            RequestError: `tokenizer_failed`.
        """
        try:
            return self._spans.encode(text, self._encoder.ids, follows=follows)
        except ValueError as error:
            message = f"The model's tokenizer fails on a text of this request: {shown(str(error), 200)}"
            raise RequestError("tokenizer_failed", message) from None

    def cut_after(
        self, before: str, texts: Sequence[str], max_tokens: Sequence[int], max_characters: int, field: str
    ) -> list[str]:
        """Return the beginnings of texts after the same one; the arguments are those of `Tokenizer.cut_after`."""
        place = self._seam.cut(before)
        # Tokens before the cut are the same whatever follows; the character before it stays: see `seam`.
        kept = before if place is None else before[place - 1 :]
        _check_characters(kept, texts, max_characters, field)
        own = len(self._encoder.ids(kept)) if kept else 0
        whole = [self._cut(kept + text, own + most) for text, most in zip(texts, max_tokens, strict=True)]
        return [text[len(kept) :] for text in whole]

    def _cut(self, text: str, max_tokens: int) -> str:
        """Return the longest beginning of a text that its first tokens spell, as whole characters."""
        while True:
            encoding = self._encoder.encoding(text)
            if len(encoding) <= max_tokens:
                return text
            if max_tokens == 0:
                return ""
            # A character may be several tokens: then the token after the cut begins where the last one does.
            end = min(encoding.offsets[max_tokens - 1][1], encoding.offsets[max_tokens][0])
            text = text[: min(end, len(text) - 1)]

    def _join_at(self, cut: int, query: str, items: Sequence[str], alone: np.ndarray, special: bool) -> Joined | None:
        """Tokenise from the cut on only; None if the tokenizer does not split there after all."""
        tail = query[cut:]
        left = query[cut - 1]  # before what is tokenised from the cut on, and left out of the ids again: see `seam`
        left_len = len(self._encoder.ids(left))
        if special and self._encoder.frame is None:
            return None
        head = self._encoder.ids(query[:cut])
        before, after = (self._encoder.frame or ([], [])) if special else ([], [])
        if begin_with(np.array(head), np.array([len(head)]), before)[0]:
            before, after = [], []
        rest = self._encoder.ids(left + tail)[left_len:]
        if not np.array_equal(alone, [*before, *head, *rest, *after]):
            return None
        texts = (left + tail + item for item in items)
        tokens, lens = self._encoder.encode_all(texts, 1 + len(tail), len(items), special=False)
        tokens, lens = tokens[ramp(lens) >= left_len], lens - left_len
        tokens, lens = framed(tokens, lens, [], after, np.ones(len(items), bool))
        return cut_segments(alone, tokens, lens, len(before) + len(head)) if lens.all() else None

    def _encode_whole(
        self,
        query: str,
        items: Sequence[str],
        join: Callable[[str], str],
        special: bool,
        max_characters: int,
        fields: tuple[str, str],
    ) -> tuple[Int32[np.ndarray, " tokens"], Int64[np.ndarray, " items"]]:
        """Tokenise every joined string from its beginning."""
        _check_characters(query, items, max_characters, fields[1])
        tokens, lens = self._encoder.encode_all(map(join, items), len(query), len(items), special)
        if not lens.all():
            message = f"The query and {fields[1]}[{int(lens.argmin())}] together have no tokens."
            raise RequestError("empty_query", message, fields[0])
        return tokens, lens


def _shared(query: list[int], rows: list[list[int]]) -> Joined:
    lens = np.array([len(row) for row in rows], np.int64)
    tokens = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
    return cut_segments(np.array(query, np.int32), tokens, lens, head_len=0)


def check_query(count: int, context_length: int | None, items_field: str) -> None:
    """Refuse a query that alone has more tokens than the context holds.

    Raises:
        RequestError: `context_length_exceeded`.
    """
    if context_length is not None and count > context_length:
        message = (
            f"{items_field}[0]: the query alone has {count} tokens; the context holds {context_length} of query and "
            "item."
        )
        raise RequestError("context_length_exceeded", message, items_field)


def _check_characters(repeated: str, items: Sequence[str], most: int, field: str) -> None:
    """Refuse to tokenise so much text: what is repeated once for each item, and the items."""
    count = len(repeated) * len(items) + sum(map(len, items))
    if count > most:
        raise RequestError(
            "too_many_tokens",
            f"Each of {len(items)} items is tokenised together with {len(repeated)} characters of the query: {count} "
            f"characters; at most {most} are allowed. Send fewer items at a time, or token ids.",
            field,
        )
