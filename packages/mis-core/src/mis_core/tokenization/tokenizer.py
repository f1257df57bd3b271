"""The model's tokenizer: texts to ids, and queries with their items to segments."""

import copy
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import tokenizers
from jaxtyping import Bool, Int32, Int64

from mis_core.checkpoints import open_checkpoint
from mis_core.config import RERANK_RECIPES, EngineConfig
from mis_core.errors import ModelError, RequestError
from mis_core.ragged import ramp, rows_at
from mis_core.tokenization.chat_template import ChatTemplate
from mis_core.tokenization.joined import Joined, cut_segments, whole_sequences
from mis_core.tokenization.seam import Seam
from mis_core.tokenization.spelling import Spelling
from mis_core.tokenization.starts import Starts
from mis_core.tokenization.vocabulary import Refuse, Vocabulary, refuse_first, shown

logger = logging.getLogger(__name__)

_CHUNK_CHARACTERS = 1 << 20  # per call of the batch encoder, whose results are large objects
MAX_CHARACTERS = 1 << 22
"""Most characters that are tokenised for a request, unless another number is given."""

_PROBE = "a"


class _Stored(msgspec.Struct):
    """What `to_json` writes."""

    tokenizer: str
    chat_template: ChatTemplate | None
    end_ids: frozenset[int] = frozenset()
    rerank_template: ChatTemplate | None = None
    vocabulary_size: int | None = None


class Tokenizer:
    """Encodes text to ids, and queries with their items to segments. Thread-safe.

    What encodes texts of a request refuses ids that the model does not have, and names the request's field.

    Attributes:
        chat_template: How messages become text; None if the model has no template.
        end_ids: Tokens with which an answer ends.
        rerank_template: How a query and a document become text, if a file says so.
        vocabulary: The ids that the model has.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        chat_template: ChatTemplate | None = None,
        end_ids: frozenset[int] = frozenset(),
        rerank_template: ChatTemplate | None = None,
    ) -> None:
        """Wrap a fast tokenizer; truncation and padding it was saved with are switched off."""
        backend.no_truncation()
        backend.no_padding()
        self.chat_template = chat_template
        self.end_ids = end_ids
        self.rerank_template = rerank_template
        self.vocabulary = Vocabulary(None, self.spell)
        self._spelling = Spelling(backend)
        self._starts = Starts(backend)
        self._backend = backend
        self._frame = _added_at_the_ends(backend)
        self._seam = Seam(backend)
        if not self._seam:
            logger.warning(
                "Nothing is known of where this tokenizer ends tokens whatever follows: each item of a text request is "
                "tokenised together with its whole query."
            )

    @classmethod
    def of(cls, config: EngineConfig) -> Self:
        """Read the tokenizer of a model, with the templates that were chosen; it refuses ids that the model lacks.

        Args:
            config: Names local files only, as `resolve` returns it.

        Raises:
            ModelError: a file is missing or broken; it is named.
        """
        loaded = cls.from_pretrained(config.tokenizer, config.chat_template, config.rerank_file)
        rows = open_checkpoint(config.model).settings().get("vocab_size")
        if not isinstance(rows, int):
            return loaded  # such a model is refused where its weights are loaded
        beyond = sum(token >= rows for token in loaded._backend.get_vocab().values())
        if beyond:
            logger.warning(
                "%d of the tokenizer's %d tokens are not in the model, whose embedding has %d rows. Texts with such a "
                "token are refused.",
                beyond,
                loaded.vocab_size,
                rows,
            )
        return loaded.within(rows)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        chat_template: str | Path | None = None,
        rerank_template: str | Path | None = None,
    ) -> Self:
        """Read the tokenizer of a model.

        Args:
            path: The checkpoint: a directory, or a GGUF file.
            chat_template: File with a chat template to use instead of the model's own.
            rerank_template: File with a template of rerank prompts.

        Raises:
            ModelError: a file is missing or broken; it is named.
        """
        stored = open_checkpoint(path).tokenizer()
        special_tokens, own = stored.special_tokens, stored.chat_template
        rerank = None if rerank_template is None else _rerank_template(rerank_template, special_tokens)
        if chat_template is not None:
            return cls(stored.backend, ChatTemplate.read(chat_template, special_tokens), stored.end_ids, rerank)
        chat = None if own is None else ChatTemplate(own.removeprefix("\ufeff"), special_tokens)  # no part of it
        return cls(stored.backend, chat, stored.end_ids, rerank)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` has written: quickly, without `transformers`."""
        stored = msgspec.json.decode(text, type=_Stored)
        backend = tokenizers.Tokenizer.from_str(stored.tokenizer)
        return cls(backend, stored.chat_template, stored.end_ids, stored.rerank_template).within(stored.vocabulary_size)

    def to_json(self) -> str:
        """Write the tokenizer as it is."""
        templates = self.chat_template, self.end_ids, self.rerank_template
        return msgspec.json.encode(_Stored(self._backend.to_str(), *templates, self.vocabulary.size)).decode()

    def within(self, size: int | None) -> Self:
        """Return the same tokenizer for a model with a vocabulary of this size; None: it refuses no id."""
        bound = copy.copy(self)
        bound.vocabulary = Vocabulary(size, self.spell)
        return bound

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
        tokens, _ = self._encode_all(iter([text]), len(text), 1, special=add_special_tokens)
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
        tokens, lens = self._encode_all(iter(texts), max(map(len, texts)), len(texts), special=add_special_tokens)
        self.vocabulary.sort_out(tokens, lens, field)
        return tokens, lens

    def starts(self, text: str, add_special_tokens: bool = True) -> Int32[np.ndarray, " tokens"]:
        """Return how many characters of a text come before each of the tokens that `encode` returns.

        Tokens that share a character begin where it does. Those that are added begin at 0 or at the text's end.
        """
        if not add_special_tokens or self._frame is None:
            return self._starts(text, add_special_tokens)[1]
        tokens, own = self._starts(text, False)
        before, after = self._frame
        if _begin_with(tokens, np.array([len(tokens)]), before)[0]:
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
        return self._backend.id_to_token(token) or ""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for within a text; none for an id without a token."""
        return self._spelling(token)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return self._backend.get_vocab_size()

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
        ids = self._backend.encode(text, add_special_tokens=False).ids
        self.vocabulary.check(np.array(ids, np.int64), "labels", f"Label {shown(text)}")
        return ids

    def cut(self, text: str, max_tokens: int) -> str:
        """Return the beginning of a text: as many whole characters as its first tokens spell.

        Tokenised again, it has at most so many tokens, special tokens not counted.
        """
        while True:
            encoding = self._backend.encode(text, add_special_tokens=False)
            if len(encoding) <= max_tokens:
                return text
            if max_tokens == 0:
                return ""
            # A character may be several tokens: then the token behind the cut begins where the last one does.
            end = min(encoding.offsets[max_tokens - 1][1], encoding.offsets[max_tokens][0])
            text = text[: min(end, len(text) - 1)]

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
    ) -> Joined:
        """Tokenise every `query + item` as one string, and share what the query's own tokens begin it with.

        For each item that is not refused, `joined.sequence(i)` equals `encode(query + items[i])`.

        Args:
            query: Shared text, not empty.
            items: Texts; one may be empty.
            item_first: Tokenise `item + query` instead; then nothing is shared.
            add_special_tokens: Whether those are added that `encode` adds.
            context_length: A query that alone has more tokens is refused before any item is joined with it.
            max_characters: Most that are tokenised; those that query and items share count again with every item.
            fields: What holds the query and what holds the items in the request.
            refuse: Refuses items with ids that the model does not have; those that it leaves are joined.

        Raises:
            RequestError: a text has no tokens at all or one that the model does not have, too many characters would be
                tokenised, or the query is too long.
        """
        special, in_query, in_items = add_special_tokens, *fields
        alone = self.encode(query, special, field=in_query)
        if context_length is not None and len(alone) > context_length:
            raise RequestError(
                "context_length_exceeded",
                f"{in_items}[0]: the query alone has {len(alone)} tokens; the context holds {context_length} of query "
                "and item.",
                in_items,
            )
        joined = self._join(query, items, item_first, alone, special, max_characters, fields)
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
        own, tokens, lens = self._apart(query, items, item_first, add_special_tokens)
        self.vocabulary.check(own, "query")
        rows = self.vocabulary.sort_out(tokens, lens, "items", refuse)
        if rows is None:
            return own, tokens, lens
        return own, rows_at(tokens, (np.cumsum(lens) - lens)[rows], lens[rows]), lens[rows]

    def _apart(
        self, query: str, items: Sequence[str], item_first: bool, add_special_tokens: bool
    ) -> tuple[Int64[np.ndarray, " query_tokens"], Int64[np.ndarray, " item_tokens"], Int64[np.ndarray, " items"]]:
        tokens, lens = self._encode_all(iter(items), 0, len(items), special=False)
        own = np.array(self._backend.encode(query, add_special_tokens=False).ids, np.int64)
        before, after = (self._frame or ([], [])) if add_special_tokens else ([], [])
        if item_first:
            tokens, lens = _framed(tokens, lens, before, [], ~_begin_with(tokens, lens, before))
            return np.concatenate([own, after]).astype(np.int64), tokens.astype(np.int64), lens
        if _begin_with(own, np.array([len(own)]), before)[0]:
            before, after = [], []
        tokens, lens = _framed(tokens, lens, [], after, np.ones(len(items), bool))
        return np.concatenate([before, own]).astype(np.int64), tokens.astype(np.int64), lens

    def _join(
        self,
        query: str,
        items: Sequence[str],
        item_first: bool,
        alone: Int32[np.ndarray, " query_tokens"],
        special: bool,
        max_characters: int,
        fields: tuple[str, str],
    ) -> Joined:
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

    def _join_at(self, cut: int, query: str, items: Sequence[str], alone: np.ndarray, special: bool) -> Joined | None:
        """Tokenise from the cut on only; None if the tokenizer does not split there after all."""
        tail = query[cut:]
        left = query[cut - 1]  # before what is tokenised from the cut on, and left out of the ids again: see `seam`
        left_len = len(self._backend.encode(left, add_special_tokens=False).ids)
        if special and self._frame is None:
            return None
        head = self._backend.encode(query[:cut], add_special_tokens=False).ids
        before, after = (self._frame or ([], [])) if special else ([], [])
        if _begin_with(np.array(head), np.array([len(head)]), before)[0]:
            before, after = [], []
        rest = self._backend.encode(left + tail, add_special_tokens=False).ids[left_len:]
        if not np.array_equal(alone, [*before, *head, *rest, *after]):
            return None
        texts = (left + tail + item for item in items)
        tokens, lens = self._encode_all(texts, 1 + len(tail), len(items), special=False)
        tokens, lens = tokens[ramp(lens) >= left_len], lens - left_len
        tokens, lens = _framed(tokens, lens, [], after, np.ones(len(items), bool))
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
        tokens, lens = self._encode_all(map(join, items), len(query), len(items), special)
        if not lens.all():
            message = f"The query and {fields[1]}[{int(lens.argmin())}] have no tokens together."
            raise RequestError("empty_query", message, fields[0])
        return tokens, lens

    def _encode_all(
        self, texts: Iterator[str], typical_len: int, count: int, special: bool
    ) -> tuple[Int32[np.ndarray, " tokens"], Int64[np.ndarray, " items"]]:
        """Return the ids of all texts, one after the other, and how many each has."""
        by_library = special and self._frame is None
        size = max(1, _CHUNK_CHARACTERS // (typical_len + 64))
        tokens, lens = [], []
        for _ in range(0, count, size):
            chunk = list(itertools.islice(texts, size))
            encodings = self._backend.encode_batch_fast(chunk, add_special_tokens=by_library)
            rows = [encoding.ids for encoding in encodings]
            tokens.append(np.array(list(itertools.chain.from_iterable(rows)), np.int32))
            lens.extend(map(len, rows))
        every, counts = np.concatenate(tokens), np.array(lens, np.int64)
        if not special or self._frame is None:
            return every, counts
        return _framed(every, counts, *self._frame, ~_begin_with(every, counts, self._frame[0]))


def _rerank_template(path: str | Path, special_tokens: dict[str, str]) -> ChatTemplate:
    """Read a template of rerank prompts; an error says which names are none of a file."""
    try:
        return ChatTemplate.read(path, special_tokens)
    except ModelError as error:
        names = ", ".join(RERANK_RECIPES)
        raise ModelError(f"{error.message} --rerank-template takes a file, or one of {names}.") from None


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


def _begin_with(tokens: np.ndarray, lens: np.ndarray, before: list[int]) -> Bool[np.ndarray, " rows"]:
    """Whether rows that lie one after the other begin with some ids; none does with no ids."""
    found = np.full(len(lens), bool(before)) & (lens >= len(before))
    begins = (np.cumsum(lens) - lens)[found]
    for place, token in enumerate(before):
        found[found] = tokens[begins + place] == token
        begins = (np.cumsum(lens) - lens)[found]
    return found


def _framed(
    tokens: np.ndarray, lens: np.ndarray, before: list[int], after: list[int], wanted: np.ndarray
) -> tuple[Int32[np.ndarray, " tokens"], Int64[np.ndarray, " rows"]]:
    """Put ids before and after the wanted rows."""
    ends = np.cumsum(lens)
    count = int(np.count_nonzero(wanted))
    # Of ids put at one place, `insert` keeps the order: those after a row come before those before the next.
    inserts = np.stack([ends - lens, ends], 1)[wanted].repeat([len(before), len(after)], 1)
    framed = np.insert(tokens, inserts.ravel(), np.tile([*before, *after], count))
    return framed.astype(np.int32), lens + wanted * (len(before) + len(after))


def _added_at_the_ends(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]] | None:
    """Return what the post-processor puts before and after a single text, such as BOS; it is constant.

    None if it cannot be recognised; then every text is encoded whole, by the library alone.
    """
    bare = backend.encode(_PROBE, add_special_tokens=False).ids
    full = backend.encode(_PROBE).ids
    for begin in range(len(full) - len(bare) + 1):
        if full[begin : begin + len(bare)] == bare:
            return full[:begin], full[begin + len(bare) :]
    return None
