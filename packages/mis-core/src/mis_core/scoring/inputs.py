"""Query and items of a request, as texts or as token ids: decided once, when they are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from mis_core.errors import RequestError
from mis_core.scoring.fields import kind, readable
from mis_core.scoring.limits import Limits
from mis_core.scoring.token_rows import ROW_TYPES, TokenRows, read_row, read_rows
from mis_core.tokenization import Joined, Tokenizer, join_ids


@dataclass(frozen=True, slots=True)
class IdInputs:
    """Token ids."""

    query: TokenRows
    items: TokenRows

    @property
    def num_items(self) -> int:
        """Number of items, at least 1."""
        return len(self.items.lens)

    @property
    def num_empty(self) -> int:
        """Number of items without tokens."""
        return self.num_items - int(np.count_nonzero(self.items.lens))

    @property
    def texts(self) -> dict[str, Sequence[str]]:
        """There are none."""
        return {}

    def check_below(self, vocab_size: int) -> None:
        """Refuse ids outside the vocabulary.

        Raises:
            RequestError: `token_id_exceeds_vocab`.
        """
        self.query.check_below(vocab_size)
        self.items.check_below(vocab_size)

    def as_ids(self, item_first: bool, special: bool) -> "IdInputs":
        """Return them as they are."""
        return self

    def delimited(self, delimiter: int, item_first: bool) -> "IdInputs":
        """Put a delimiter between query and items, as older servers' models expect it: behind whatever comes first.

        Raises:
            RequestError: `delimiter_in_input`.
        """
        for rows in (self.query, self.items):
            if (rows.values == delimiter).any():
                message = f"{rows.param} must not hold token {delimiter}, the delimiter between query and item."
                raise RequestError("delimiter_in_input", message, rows.param)
        first = self.items if item_first else self.query
        values = np.insert(first.values, np.cumsum(first.lens), delimiter)
        ended = TokenRows(first.param, values, first.lens + 1, first.is_nested)
        return IdInputs(self.query, ended) if item_first else IdInputs(ended, self.items)

    def join(self, item_first: bool, special: bool, limits: Limits) -> Joined:
        """Make the segments; what exceeds the limits is refused before any array of that size is made.

        Raises:
            RequestError: `context_length_exceeded` or `too_many_tokens`.
        """
        query, items = self.query.values, self.items
        lens = items.lens + len(query)
        computed = int(lens.sum()) if item_first else len(query) + len(items.values)
        _check_lengths(lens, computed, limits)
        return join_ids(query, items.values, items.lens, item_first)


@dataclass(frozen=True, slots=True)
class TextInputs:
    """Texts, and what tokenises them; None: nothing can."""

    query: str
    items: list[str]
    tokenizer: Tokenizer | None

    @property
    def num_items(self) -> int:
        """Number of items, at least 1."""
        return len(self.items)

    @property
    def num_empty(self) -> int:
        """Number of items without characters."""
        return sum(not item for item in self.items)

    @property
    def texts(self) -> dict[str, Sequence[str]]:
        """Query and items."""
        return {"query": [self.query], "items": self.items}

    def check_below(self, vocab_size: int) -> None:
        """Ids are the tokenizer's own."""

    def as_ids(self, item_first: bool, special: bool) -> IdInputs:
        """Tokenise query and items each for itself."""
        assert self.tokenizer is not None, "texts need a tokenizer"
        query, tokens, lens = self.tokenizer.encode_apart(
            self.query, self.items, item_first, add_special_tokens=special
        )
        return IdInputs(TokenRows.single("query", query), TokenRows("items", tokens, lens, is_nested=True))

    def join(self, item_first: bool, special: bool, limits: Limits) -> Joined:
        """Tokenise every joined text, with the special tokens that are added to it or without, and make the segments.

        Raises:
            RequestError: `context_length_exceeded`, `too_many_tokens`, or what `Tokenizer.join` raises.
        """
        assert self.tokenizer is not None, "texts need a tokenizer"
        joined = self.tokenizer.join(
            self.query,
            self.items,
            item_first,
            add_special_tokens=special,
            context_length=limits.context_length,
            max_characters=limits.max_text_characters,
        )
        lens = joined.context_lens + np.diff(joined.item_starts)
        _check_lengths(lens, len(joined.query) + len(joined.item_tokens), limits)
        return joined


def read_inputs(body: Mapping[str, object], tokenizer: Tokenizer | None) -> IdInputs | TextInputs:
    """Read query and items.

    Raises:
        RequestError: one is missing, empty, of a wrong type, or not of the other's kind.
    """
    query = body.get("query")
    if query is None:
        raise RequestError("missing_query", "The field query is required: a text or a list of token ids.", "query")
    if isinstance(query, str):
        if not query:
            raise _empty_query()
        return TextInputs(readable(query, "query", "invalid_query_type"), _read_texts(_listed(body)), tokenizer)
    rows = query if isinstance(query, TokenRows) else _read_ids(query)
    items = body.get("items")
    return IdInputs(rows, items if isinstance(items, TokenRows) else _read_id_lists(_listed(body)))


def _read_ids(query: object) -> TokenRows:
    if not isinstance(query, (list, tuple)) and not (isinstance(query, np.ndarray) and query.ndim == 1):
        raise RequestError(
            "invalid_query_type", f"query must be a text or a list of token ids, not {kind(query)}.", "query"
        )
    if len(query) == 0:
        raise _empty_query()
    return read_row("query", query)


def _empty_query() -> RequestError:
    return RequestError("empty_query", "query must not be empty; items may be.", "query")


def _listed(body: Mapping[str, object]) -> list[object]:
    """Return the items as a list that is not empty."""
    items = body.get("items")
    if items is None:
        raise RequestError("missing_items", "The field items is required: a list of texts or of id lists.", "items")
    if isinstance(items, str):
        items = [items]
    if not isinstance(items, ROW_TYPES) or (isinstance(items, np.ndarray) and items.ndim != 2):
        raise RequestError("invalid_items_type", f"items must be a list, not {kind(items)}.", "items")
    if len(items) == 0:
        raise RequestError("empty_items", "items must hold at least one item; the item itself may be empty.", "items")
    return list(items)


def _read_texts(items: list[object]) -> list[str]:
    _check_kinds(items, (str,), ROW_TYPES, "a text")
    texts = cast(list[str], items)
    readable("".join(texts), "items", "invalid_items_type")
    return texts


def _read_id_lists(items: list[object]) -> TokenRows:
    _check_kinds(items, ROW_TYPES, (str,), "a list of token ids")
    return read_rows("items", cast(list[Sequence[object]], items))


def _check_kinds(items: list[object], wanted: tuple[type, ...], other: tuple[type, ...], name: str) -> None:
    """Refuse items that are not all of the query's kind."""
    kinds = set(map(type, items))
    if any(issubclass(each, other) for each in kinds):
        raise RequestError("mixed_input_types", "query and items must both be text or both be token ids.", "items")
    if not all(issubclass(each, wanted) for each in kinds):
        index = next(index for index, item in enumerate(items) if not isinstance(item, wanted))
        message = f"items[{index}] must be {name} like the query, not {kind(items[index])}."
        raise RequestError("invalid_items_type", message, "items")


def _check_lengths(lens: np.ndarray, computed: int, limits: Limits) -> None:
    """Refuse sequences beyond the context, and more tokens than a request may have."""
    if lens.max() > limits.context_length:
        item = int(np.argmax(lens > limits.context_length))
        raise RequestError(
            "context_length_exceeded",
            f"items[{item}]: query and item have {lens[item]} tokens together; the context holds "
            f"{limits.context_length}.",
            "items",
        )
    if computed > limits.max_request_tokens:
        raise RequestError(
            "too_many_tokens",
            f"The request has {computed} tokens; at most {limits.max_request_tokens} are allowed. Split its items "
            "over several requests.",
            "items",
        )
