"""Query and items of a request, as texts or as token ids: decided once, when they are read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar, cast

import numpy as np
from jaxtyping import Int32, Int64

from mis_core.errors import RequestError
from mis_core.tasks.fields.item_errors import ItemErrors
from mis_core.tasks.fields.token_rows import ROW_TYPES, TokenRows, read_row, read_rows
from mis_core.tasks.fields.values import check_count, kind, readable
from mis_core.tasks.limits import Limits
from mis_core.tokenization import NOTHING, Joined, Tokenizer, join_ids

One = TypeVar("One")
All = TypeVar("All")


@dataclass(frozen=True, slots=True)
class IdInputs:
    """Token ids of the items that nothing is wrong with so far; `errors` has sorted out the others."""

    query: TokenRows
    items: TokenRows
    errors: ItemErrors

    @property
    def num_empty(self) -> int:
        """Number of items without tokens."""
        return len(self.items.lens) - int(np.count_nonzero(self.items.lens))

    @property
    def texts(self) -> dict[str, Sequence[str]]:
        """There are none."""
        return {}

    @property
    def query_tokens(self) -> Int32[np.ndarray, " tokens"]:
        """The query by itself."""
        return self.query.values.astype(np.int32)

    def below(self, vocab_size: int) -> "IdInputs":
        """Refuse ids outside the vocabulary.

        Raises:
            RequestError: `token_id_exceeds_vocab`.
        """
        self.query.check_below(vocab_size)
        is_above = self.items.above(vocab_size)
        if not is_above.any():
            return self
        columns = self.items.first_columns(is_above)
        return self._without(
            columns >= 0, lambda row, index: self.items.exceeds(f"items[{index}][{columns[row]}]", vocab_size)
        )

    def delimited(self, delimiter: int, item_first: bool, special: bool) -> "IdInputs":
        """Put a delimiter between query and items, as older servers' models expect it: behind whatever comes first.

        Args:
            delimiter: The token.
            item_first: Whether items come before the query.
            special: Whether special tokens are added to texts.

        Raises:
            RequestError: `delimiter_in_input`.
        """

        def error(param: str) -> RequestError:
            message = f"{param} must not hold token {delimiter}, the delimiter between query and item."
            return RequestError("delimiter_in_input", message, param)

        if (self.query.values == delimiter).any():
            raise error("query")
        columns = self.items.first_columns(self.items.values == delimiter)
        kept = self._without(columns >= 0, lambda row, index: error("items"))
        first = kept.items if item_first else kept.query
        values = np.insert(first.values, np.cumsum(first.lens), delimiter)
        ended = TokenRows(first.param, values, first.lens + 1, first.is_nested)
        return replace(kept, items=ended) if item_first else replace(kept, query=ended)

    def join(self, item_first: bool, special: bool, limits: Limits, appended: int) -> Joined:
        """Make the segments; what exceeds the limits is refused before any array of that size is made.

        Args:
            item_first: Put each item before the query.
            special: Whether special tokens are added to texts.
            limits: What is refused.
            appended: Most tokens of a label that are put behind an item later.

        Raises:
            RequestError: `context_length_exceeded` or `too_many_tokens`.
        """
        query = self.query.values
        lens = self.items.lens + len(query)
        kept = _short_enough(lens, len(query), appended, limits, self.errors)
        items = self.items if kept is None else self.items.rows(kept)
        if not len(items.lens):
            return NOTHING
        check_total(len(items.values) + len(query) * (len(items.lens) if item_first else 1), limits)
        return join_ids(query, items.values, items.lens, item_first)

    def _without(self, is_bad: np.ndarray, error: Callable[[int, int], RequestError]) -> "IdInputs":
        return replace(self, items=self.items.rows(self.errors.refuse(is_bad, error))) if is_bad.any() else self


@dataclass(frozen=True, slots=True)
class TextInputs:
    """Texts, and what tokenises them (None: nothing can), of the items that nothing is wrong with so far."""

    query: str
    items: list[str]
    tokenizer: Tokenizer | None
    errors: ItemErrors

    @property
    def num_empty(self) -> int:
        """Number of items without characters."""
        return sum(not item for item in self.items)

    @property
    def texts(self) -> dict[str, Sequence[str]]:
        """Query and items."""
        return {"query": [self.query], "items": self.items}

    @property
    def query_tokens(self) -> Int32[np.ndarray, " tokens"]:
        """The query by itself, without special tokens."""
        assert self.tokenizer is not None, "texts need a tokenizer"
        return self.tokenizer.encode(self.query, add_special_tokens=False, field="query")

    def below(self, vocab_size: int) -> "TextInputs":
        """Return them as they are: the tokenizer refuses what the model does not have."""
        return self

    def delimited(self, delimiter: int, item_first: bool, special: bool) -> IdInputs:
        """Tokenise query and items each for itself, and put a delimiter between them, as `IdInputs.delimited` does."""
        assert self.tokenizer is not None, "texts need a tokenizer"
        query, tokens, lens = self.tokenizer.encode_apart(
            self.query, self.items, item_first, add_special_tokens=special, refuse=self.errors.refuse
        )
        items = TokenRows("items", tokens, lens, is_nested=True)
        ids = IdInputs(TokenRows.single("query", query), items, self.errors)
        return ids.delimited(delimiter, item_first, special)

    def join(self, item_first: bool, special: bool, limits: Limits, appended: int) -> Joined:
        """Tokenise every joined text, with the special tokens that are added to it or without, and make the segments.

        The arguments are those of `IdInputs.join`.

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
            refuse=self.errors.refuse,
        )
        lens = joined.context_lens + np.diff(joined.item_starts)
        kept = _short_enough(lens, 0, appended, limits, self.errors)
        if kept is not None:
            joined = joined.rows(kept) if len(kept) else NOTHING
        check_total(len(joined.query) + len(joined.item_tokens), limits)
        return joined


def read_inputs(
    body: Mapping[str, object], tokenizer: Tokenizer | None, limits: Limits, *, per_item: bool = False
) -> IdInputs | TextInputs:
    """Read query and items.

    Args:
        body: Fields of the request.
        tokenizer: Tokenises texts later.
        limits: How many items are read one by one.
        per_item: Whether items that are wrong are sorted out, as `on_error` says.

    Raises:
        RequestError: one is missing, empty, of a wrong type, or not of the other's kind.
    """
    query = body.get("query")
    if query is None:
        raise RequestError("missing_query", "The field query is required: a text or a list of token ids.", "query")
    if isinstance(query, str):
        if not query:
            raise _empty_query()
        readable(query, "query", "invalid_query_type")
        listed = _listed(body)
        errors = ItemErrors("items", len(listed), per_item=per_item)
        return TextInputs(query, _sort_out(listed, errors, limits, _read_texts, _read_text, list), tokenizer, errors)
    rows = query if isinstance(query, TokenRows) else _read_ids(query)
    items = body.get("items")
    if isinstance(items, TokenRows):
        return IdInputs(rows, items, ItemErrors("items", len(items.lens), per_item=per_item))
    listed = _listed(body)
    errors = ItemErrors("items", len(listed), per_item=per_item)
    stack = partial(TokenRows.nested, "items")
    return IdInputs(rows, _sort_out(listed, errors, limits, _read_id_lists, _read_id_list, stack), errors)


def _sort_out(
    items: list[object],
    errors: ItemErrors,
    limits: Limits,
    read_all: Callable[[list[object]], All],
    read_one: Callable[[int, object], One],
    put_together: Callable[[list[One]], All],
) -> All:
    """Read all items at once; where some are wrong and the rest is wanted, one by one."""
    try:
        return read_all(items)
    except RequestError:
        if not errors.per_item:
            raise
    check_count(len(items), limits.max_items, "items", "items")
    return put_together(errors.read_each(items, read_one))


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


def _read_text(index: int, item: object) -> str:
    _check_kinds([item], (str,), ROW_TYPES, "a text", index)
    return readable(cast(str, item), f"items[{index}]", "invalid_items_type")


def _read_id_lists(items: list[object]) -> TokenRows:
    _check_kinds(items, ROW_TYPES, (str,), "a list of token ids")
    return read_rows("items", cast(list[Sequence[object]], items))


def _read_id_list(index: int, item: object) -> Int64[np.ndarray, " tokens"]:
    _check_kinds([item], ROW_TYPES, (str,), "a list of token ids", index)
    row = cast(Sequence[object] | np.ndarray, item)
    if isinstance(row, np.ndarray) and row.ndim != 1:
        raise RequestError("invalid_token_id_type", f"items[{index}] must have one dimension.", "items")
    return read_row(f"items[{index}]", row).values


def _check_kinds(
    items: list[object], wanted: tuple[type, ...], other: tuple[type, ...], name: str, first: int = 0
) -> None:
    """Refuse items that are not all of the query's kind; the index of the first is given."""
    kinds = set(map(type, items))
    if any(issubclass(each, other) for each in kinds):
        raise RequestError("mixed_input_types", "query and items must both be text or both be token ids.", "items")
    if not all(issubclass(each, wanted) for each in kinds):
        index = next(index for index, item in enumerate(items) if not isinstance(item, wanted))
        message = f"items[{first + index}] must be {name} like the query, not {kind(items[index])}."
        raise RequestError("invalid_items_type", message, "items")


def _short_enough(
    lens: np.ndarray, query_tokens: int, appended: int, limits: Limits, errors: ItemErrors
) -> Int64[np.ndarray, " rows"] | None:
    """Refuse sequences beyond the context; return the rows of the others, or None if that is all of them."""
    is_long = lens + appended > limits.context_length
    if not is_long.any():
        return None

    def error(row: int, index: int) -> RequestError:
        what = "query, item and label" if appended else "query and item"
        return RequestError(
            "context_length_exceeded",
            f"items[{index}]: {what} have {lens[row] + appended} tokens together; the context holds "
            f"{limits.context_length}.",
            "items",
        )

    if query_tokens > limits.context_length:
        raise error(0, 0)  # the query is at fault
    return errors.refuse(is_long, error)


def check_total(computed: int, limits: Limits) -> None:
    """Refuse more tokens than a request may have.

    Raises:
        RequestError: `too_many_tokens`.
    """
    if computed > limits.max_request_tokens:
        raise RequestError(
            "too_many_tokens",
            f"The request has {computed} tokens; at most {limits.max_request_tokens} are allowed. Split its items "
            "over several requests.",
            "items",
        )
