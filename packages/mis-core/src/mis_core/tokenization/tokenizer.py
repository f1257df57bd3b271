"""The model's tokenizer: texts to ids, and queries with their items to segments."""

import copy
import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
import tokenizers
from jaxtyping import Int32, Int64

from mis_core.checkpoints import Checkpoint, open_checkpoint
from mis_core.config import RERANK_RECIPES, EngineConfig
from mis_core.errors import ModelError, RequestError
from mis_core.ragged import rows_at
from mis_core.tokenization.chat_template import ChatTemplate
from mis_core.tokenization.decision_contract import DecisionContract
from mis_core.tokenization.encoder import Encoder, Meter, begin_with, is_failure_of_library
from mis_core.tokenization.joined import Joined, Joiner, check_query
from mis_core.tokenization.plain_spans import PlainSpans, has_marks
from mis_core.tokenization.seam import Seam
from mis_core.tokenization.spelling import Spelling
from mis_core.tokenization.starts import Starts
from mis_core.tokenization.vocabulary import Refuse, Vocabulary, refuse_first, shown

logger = logging.getLogger(__name__)

MAX_CHARACTERS = 1 << 22
"""Most characters that are tokenised for a request, unless another number is given."""


class _Stored(msgspec.Struct):
    """What `to_json` writes."""

    tokenizer: str
    chat_template: ChatTemplate | None
    end_ids: frozenset[int] = frozenset()
    rerank_template: ChatTemplate | None = None
    vocabulary_size: int | None = None
    decision: DecisionContract | None = None


class Tokenizer:
    """Encodes text to ids, and queries with their items to segments. Thread-safe.

    What encodes texts of a request refuses ids that the model does not have, and names the request's field. Where the
    library fails on a text, it raises `RequestError` with `tokenizer_failed`.

    Attributes:
        chat_template: How messages become text; None if the model has no template.
        end_ids: Tokens with which an answer ends.
        rerank_template: How a query and a document become text, if a file says so.
        decision: How decisions are asked, if the checkpoint or an option says so.
        vocabulary: The ids that the model has.
        meter: Counts what is tokenised; see `metered`.
        spans: Marks what is to be read as text.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        chat_template: ChatTemplate | None = None,
        end_ids: frozenset[int] = frozenset(),
        rerank_template: ChatTemplate | None = None,
        decision: DecisionContract | None = None,
    ) -> None:
        """Wrap a fast tokenizer; truncation and padding it was saved with are switched off."""
        backend.no_truncation()
        backend.no_padding()
        self.chat_template = chat_template
        self.end_ids = end_ids
        self.rerank_template = rerank_template
        self.decision = decision
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

    @classmethod
    def of(cls, config: EngineConfig) -> Self:
        """Read the tokenizer of a model, with the templates that were chosen; it refuses ids that the model lacks.

        Args:
            config: Names local files only, as `resolve` returns it.

        Raises:
            ModelError: a file is missing or broken; it is named.
        """
        most = config.max_checkpoint_file_bytes
        model = open_checkpoint(config.model, most)
        stored = model if config.tokenizer == config.model else open_checkpoint(config.tokenizer, most)
        loaded = cls.from_pretrained(stored, config.chat_template, config.rerank_file)
        special_tokens = {} if loaded.chat_template is None else loaded.chat_template.special_tokens
        loaded.decision = DecisionContract.chosen(config, model, special_tokens)
        rows = model.settings().get("vocab_size")
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
        path: str | Path | Checkpoint,
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
        checkpoint = open_checkpoint(path)
        stored = checkpoint.tokenizer()
        special_tokens, own = stored.special_tokens, stored.chat_template
        rerank = None if rerank_template is None else _rerank_template(rerank_template, special_tokens)
        if chat_template is not None:
            chat = ChatTemplate.read(chat_template, special_tokens, "chat_template")
        else:
            chat = None if own is None else ChatTemplate(own.removeprefix("\ufeff"), special_tokens)  # no part of it
        try:
            return cls(stored.backend, chat, stored.end_ids, rerank)
        except BaseException as error:
            if not is_failure_of_library(error):
                raise
            raise ModelError(f"{checkpoint.path}: the tokenizer fails on a text of one letter: {error}") from None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` has written: quickly, without `transformers`."""
        stored = msgspec.json.decode(text, type=_Stored)
        backend = tokenizers.Tokenizer.from_str(stored.tokenizer)
        read = cls(backend, stored.chat_template, stored.end_ids, stored.rerank_template, stored.decision)
        return read.within(stored.vocabulary_size)

    def to_json(self) -> str:
        """Write the tokenizer as it is."""
        templates = self.chat_template, self.end_ids, self.rerank_template
        stored = _Stored(self._backend.to_str(), *templates, self.vocabulary.size, self.decision)
        return msgspec.json.encode(stored).decode()

    def with_faults(self, chat: str | None, rerank: str | None, decision: str | None = None) -> Self:
        """Return the same tokenizer with what is wrong with its templates; None: nothing is.

        Raises:
            ModelError: a template that an option names, or that of decisions, cannot be compiled.
        """
        if decision is not None:
            raise ModelError(
                f"The template of decisions cannot be compiled: {decision} --decision-prompt mis serves the model "
                "without it."
            )
        known = copy.copy(self)
        if self.chat_template is not None:
            known.chat_template = self.chat_template.with_fault(chat)
        if self.rerank_template is not None:
            known.rerank_template = self.rerank_template.with_fault(rerank)
        return known

    def compiled(self) -> Self:
        """Return `with_faults`, having compiled the templates in this process; raises the same."""
        decision = None if self.decision is None else self.decision.template
        faults = [
            None if template is None else template.find_fault()
            for template in (self.chat_template, self.rerank_template, decision)
        ]
        return self.with_faults(*faults)

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
        tokens, _ = self._encoder.encode_all(iter([text]), len(text), 1, special=add_special_tokens)
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


def _rerank_template(path: str | Path, special_tokens: dict[str, str]) -> ChatTemplate:
    """Read a template of rerank prompts; an error says which names are none of a file."""
    try:
        return ChatTemplate.read(path, special_tokens, "rerank_template")
    except ModelError as error:
        names = ", ".join(RERANK_RECIPES)
        raise ModelError(f"{error.message} --rerank-template takes a file, or one of {names}.") from None
