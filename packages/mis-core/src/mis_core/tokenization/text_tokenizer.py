"""Texts to ids and back, and queries with their items to segments."""

import copy
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import tokenizers
from jaxtyping import Int32, Int64

from mis_core.errors import RequestError
from mis_core.ragged import rows_at
from mis_core.tokenization.encoder import Encoder, Meter, begin_with
from mis_core.tokenization.joined import Joined, Joiner, check_query
from mis_core.tokenization.plain_spans import PlainSpans, has_marks
from mis_core.tokenization.seam import Seam
from mis_core.tokenization.spelling import Spelling
from mis_core.tokenization.starts import Starts
from mis_core.tokenization.vocabulary import Refuse, Vocabulary, refuse_first, shown

logger = logging.getLogger(__name__)

MAX_CHARACTERS = 1 << 22
"""Most characters that are tokenised for a request, unless another number is given."""


class TextTokenizer:
    """Encodes text to ids, and queries with their items to segments. Thread-safe.

    What encodes texts of a request refuses ids that the model does not have, and names the request's field. Where the
    library fails on a text, it raises `RequestError` with `tokenizer_failed`.

    Attributes:
        vocabulary: The ids that the model has.
        meter: Counts what is tokenised; see `metered`.
        spans: Marks what is to be read as text.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Wrap a fast tokenizer; truncation and padding it was saved with are switched off."""
        backend.no_truncation()
        backend.no_padding()
        self.vocabulary = Vocabulary(None, self.spell)
        self.meter = Meter()
        self._spelling = Spelling(backend)
        self._starts = Starts(backend)
        self._backend = backend
        self._encoder = Encoder(backend)
        self._seam = Seam(backend)
        self.spans = PlainSpans(backend)
        self._joiner = Joiner(self._encoder, self._seam, self.spans)
        if not self._seam:
            logger.warning(
                "Nothing is known of where this tokenizer ends tokens whatever follows: each item of a text request is "
                "tokenised together with its whole query."
            )

    def within(self, size: int | None) -> Self:
        """Return the same tokenizer for a model with a vocabulary of this size; None: it refuses no id."""
        bound = copy.copy(self)
        bound.vocabulary = Vocabulary(size, self.spell)
        return bound

    def metered(self, meter: Meter) -> Self:
        """Return the same tokenizer for one request: `meter` counts what is tokenised, and may refuse to go on.

        All that tokenises then raises `TooMuchWork`, too.
        """
        own = self._encoding_by(self._encoder.metered(meter))
        own.meter = meter
        return own

    def watched(self, watch: Callable[[int], None]) -> Self:
        """Return the same tokenizer, which calls `watch` with the number of characters before it tokenises any."""
        return self._encoding_by(self._encoder.watched(watch))

    def _encoding_by(self, encoder: Encoder) -> Self:
        own = copy.copy(self)
        own._encoder = encoder
        own._joiner = Joiner(encoder, self._seam, self.spans)
        return own

    def encode(
        self, text: str, add_special_tokens: bool = True, *, field: str = "text"
    ) -> Int32[np.ndarray, " tokens"]:
        """Return the ids of a text, with the special tokens that the tokenizer adds to it.

        None are added to a text that begins with those that come first, such as BOS: a chat template put them there.

        Args:
            text: The text.
            add_special_tokens: Whether any are added.
            field: What the text is called in the request.

        Raises:
            RequestError: `token_id_exceeds_vocab`.
        """
        tokens = self._encoder.encode(text, add_special_tokens)
        self.vocabulary.check(tokens, field)
        return tokens

    def encode_all(
        self, texts: Sequence[str], add_special_tokens: bool = True, *, field: str = "text"
    ) -> tuple[Int32[np.ndarray, " tokens"], Int64[np.ndarray, " texts"]]:
        """Return the ids of texts as `encode` returns them, one after the other, and how many each has.

        Args:
            texts: The texts, at least one.
            add_special_tokens: Whether any are added.
            field: What holds the texts in the request.

        Raises:
            RequestError: `token_id_exceeds_vocab`.
        """
        tokens, lens = self._encoder.encode_all(
            iter(texts), max(map(len, texts)), len(texts), special=add_special_tokens
        )
        self.vocabulary.sort_out(tokens, lens, field)
        return tokens, lens

    def encode_with_spans(
        self, texts: Sequence[str], add_special_tokens: bool = True, *, field: str = "text"
    ) -> tuple[Int32[np.ndarray, " tokens"], Int64[np.ndarray, " texts"], Int32[np.ndarray, "tokens columns"]]:
        """Return what `encode_all` returns, and the tokenizer's offsets of each token.

        They are its first character in its text and the first one after it; of tokens that are added both are 0.

        Args:
            texts: The texts, at least one.
            add_special_tokens: Whether any are added.
            field: What holds the texts in the request.

        Raises:
            RequestError: `token_id_exceeds_vocab`.
        """
        longest = max(map(len, texts))
        tokens, lens, spans = self._encoder.encode_with_spans(iter(texts), longest, len(texts), add_special_tokens)
        self.vocabulary.sort_out(tokens, lens, field)
        return tokens, lens, spans

    def encode_parts(
        self, parts: Sequence[str], *, field: str = "text"
    ) -> tuple[Int32[np.ndarray, " tokens"], Int64[np.ndarray, " texts"]]:
        """Return the ids of parts of a text that are tokenised apart, and may have marked spans.

        Args:
            parts: The parts, at least one.
            field: What the text is called in the request.

        Raises:
            RequestError: `token_id_exceeds_vocab`, or the text cannot be tokenised.
        """
        rows = [self._joiner.marked(part, follows=number > 0) for number, part in enumerate(parts)]
        tokens = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
        self.vocabulary.check(tokens, field)
        return tokens, np.array([len(row) for row in rows], np.int64)

    def starts(self, text: str, add_special_tokens: bool = True) -> Int32[np.ndarray, " tokens"]:
        """Return how many characters of a text come before each of the tokens that `encode` returns.

        Tokens that share a character begin where it does. Those that are added begin at 0 or at the text's end.
        """
        if not add_special_tokens or self._encoder.frame is None:
            return self._starts(self._encoder, text, add_special_tokens)[1]
        tokens, own = self._starts(self._encoder, text, False)
        before, after = self._encoder.frame
        if begin_with(tokens, np.array([len(tokens)]), before)[0]:
            return own
        return np.concatenate([np.zeros(len(before), np.int32), own, np.full(len(after), len(text), np.int32)])

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """Return the text of ids, special tokens included; ids without a token are left out."""
        return self._backend.decode([int(token) for token in tokens], skip_special_tokens=False)

    def spelled(self, tokens: Sequence[int] | np.ndarray) -> list[str]:
        """Return the tokens as the vocabulary spells them; an id without a token is empty."""
        return [self.spell(int(token)) for token in tokens]

    def spell(self, token: int) -> str:
        """Return a token as the vocabulary spells it; an id without a token is empty."""
        return (self._backend.id_to_token(token) or "") if token >= 0 else ""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for within a text; none for an id without a token."""
        return self._spelling(token)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return self._backend.get_vocab_size()

    @property
    def unknown_id(self) -> int | None:
        """The token of what the vocabulary does not have; None if there is none."""
        unknown = getattr(self._backend.model, "unk_token", None)
        return None if unknown is None else self._backend.token_to_id(unknown)

    def label_ids(self, text: str) -> list[int]:
        """Return the tokens that a text label is, whatever it stands behind: none merges with what is before it.

        Raises:
            RequestError: `empty_label` or `token_id_exceeds_vocab`.
        """
        ids = self._label(text)
        if not ids:
            raise RequestError("empty_label", f"Label {shown(text)} has no token of its own.", "labels")
        return ids

    def label_id(self, text: str) -> int:
        """Return the one token that a text label is.

        Raises:
            RequestError: `label_not_single_token` or `token_id_exceeds_vocab`.
        """
        ids = self._label(text)
        if len(ids) != 1:
            raise RequestError(
                "label_not_single_token",
                f"Label {shown(text)} is {len(ids)} tokens; a label must be exactly one. A leading space often "
                "matters.",
                "labels",
            )
        return ids[0]

    def _label(self, text: str) -> list[int]:
        ids = self._encoder.ids(text)
        self.vocabulary.check(np.array(ids, np.int64), "labels", f"Label {shown(text)}")
        return ids

    def cut_after(
        self,
        before: str,
        texts: Sequence[str],
        max_tokens: Sequence[int],
        *,
        max_characters: int = MAX_CHARACTERS,
        field: str = "text",
    ) -> list[str]:
        """Return the beginnings of texts that each come after the same one: as many whole characters as tokens spell.

        Tokenised together with `before`, each adds at most so many tokens to it, special tokens not counted, where
        `before` surely ends a token somewhere (`seam`); otherwise hardly ever more.

        Args:
            before: What comes first, and is not cut.
            texts: The texts.
            max_tokens: Tokens for each of them.
            max_characters: As of `join`.
            field: What holds the texts in the request.

        Raises:
            RequestError: `too_many_tokens`; too many characters would be tokenised.
        """
        return self._joiner.cut_after(before, texts, max_tokens, max_characters, field)

    def join(
        self,
        query: str,
        items: Sequence[str],
        item_first: bool = False,
        *,
        add_special_tokens: bool = True,
        context_length: int | None = None,
        max_characters: int = MAX_CHARACTERS,
        fields: tuple[str, str] = ("query", "items"),
        refuse: Refuse = refuse_first,
        marked: bool = False,
    ) -> Joined:
        """Tokenise every `query + item` as one string, and share what the query's own tokens begin it with.

        For each item that is not refused, `joined.sequence(i)` equals `encode(query + items[i])`. With `marked`, spans
        that `spans` has marked are read as text, and no special tokens are added.

        Args:
            query: Shared text, not empty.
            items: Texts; one may be empty.
            item_first: Tokenise `item + query` instead; then nothing is shared.
            add_special_tokens: Whether those are added that `encode` adds.
            context_length: A query that alone has more tokens is refused before any item is joined with it.
            max_characters: Most that are tokenised; those that query and items share count again with every item.
            fields: What holds the query and what holds the items in the request.
            refuse: Refuses items with ids that the model does not have; those that it leaves are joined.
            marked: Whether texts may have marked spans.

        Raises:
            RequestError: a text has no tokens at all or one that the model does not have, too many characters would be
                tokenised, or the query is too long.
        """
        special, in_query, in_items = add_special_tokens, *fields
        if marked and any(map(has_marks, (query, *items))):
            joined = self._joiner.join_marked(query, items, context_length, max_characters, fields)
            self.vocabulary.check(joined.query, in_query)
            rows = self.vocabulary.sort_out(joined.item_tokens, np.diff(joined.item_starts), in_items, refuse)
            return joined if rows is None else joined.rows(rows)
        alone = self.encode(query, special, field=in_query)
        check_query(len(alone), context_length, in_items)
        joined = self._joiner.join(query, items, item_first, alone, special, max_characters, fields)
        rows = self.vocabulary.sort_out(joined.item_tokens, np.diff(joined.item_starts), in_items, refuse)
        return joined if rows is None else joined.rows(rows)

    def encode_apart(
        self,
        query: str,
        items: Sequence[str],
        item_first: bool = False,
        *,
        add_special_tokens: bool = True,
        refuse: Refuse = refuse_first,
    ) -> tuple[Int64[np.ndarray, " query_tokens"], Int64[np.ndarray, " item_tokens"], Int64[np.ndarray, " items"]]:
        """Tokenise query and items each for itself, for a delimiter to be put between them.

        Tokens that the tokenizer adds at the ends of a text go to the ends of the whole, but for a whole that begins
        with those that come first.

        Args:
            query: Shared text.
            items: Texts.
            item_first: Whether the items come first.
            add_special_tokens: Whether those are added that `encode` adds.
            refuse: As of `join`.

        Returns:
            Ids of the query, ids of all items that are not refused, and how many each item has.

        Raises:
            RequestError: a text has a token that the model does not have.
        """
        own, tokens, lens = self._joiner.apart(query, items, item_first, add_special_tokens)
        self.vocabulary.check(own, "query")
        rows = self.vocabulary.sort_out(tokens, lens, "items", refuse)
        if rows is None:
            return own, tokens, lens
        return own, rows_at(tokens, (np.cumsum(lens) - lens)[rows], lens[rows]), lens[rows]
