"""From the fields of a request to a `ScoreRequest`, or to the error that says what to change.

The only way to a `ScoreRequest`. Checks run in the order of the error table of the HTTP reference,
cheap ones before any text is tokenised; status codes are not known here.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
from jaxtyping import Int32

from mis_core.config import ALGORITHMS, MASKS, EngineConfig
from mis_core.errors import RequestError
from mis_core.scoring.delimiter import delimited
from mis_core.scoring.request import Layout, ScoreRequest
from mis_core.scoring.token_rows import ROW_TYPES, TokenRows, read_row, read_rows
from mis_core.tokenization import MAX_CHARACTERS, Joined, Tokenizer, join_ids

LAYOUT_FIELDS = ("scoring_algorithm", "mask_impl", "multi_item_scoring_chunk_size")
"""Fields of a request that chooses its layout, where the engine lets it."""

FIELDS = (
    "query", "items", "label_token_ids", "labels", "apply_softmax", "item_first", "temperature",
    "return_token_logprobs", "model", "cache_salt", "add_special_tokens",
)  # fmt: skip
"""Every field of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may ask for.

    Attributes:
        context_length: Most tokens of query and item together.
        vocab_size: Token ids are below this; `vocab_size` of the model's config.
        max_items: Most items.
        max_labels: Most labels of an item.
        max_request_tokens: Most tokens of the query, once, and of every item.
        max_text_characters: Most characters that are tokenised: more than the texts have where query and items cannot
            be tokenised apart.
        max_scores: Most items times labels of the longest list: what a request and its reply hold in memory.
        delimiter: Token put between query and item, or None.
        layouts: Whether requests may choose their layout, by `LAYOUT_FIELDS`.
    """

    context_length: int
    vocab_size: int
    max_items: int = 20_000
    max_labels: int = 1024
    max_request_tokens: int = 2_000_000
    max_text_characters: int = MAX_CHARACTERS
    max_scores: int = 1 << 21
    delimiter: int | None = None
    layouts: bool = False

    @classmethod
    def of(cls, config: EngineConfig, context_length: int, vocab_size: int, **most: Any) -> Self:
        """Return the limits of an engine's requests.

        Args:
            config: The engine's options: its delimiter, and whether requests choose their layout.
            context_length: What the engine has room for, in tokens.
            vocab_size: Of the model.
            most: The other fields, where they differ from their defaults.
        """
        return cls(
            context_length=context_length,
            vocab_size=vocab_size,
            delimiter=config.multi_item_scoring_delimiter,
            layouts=config.enable_request_layout,
            **most,
        )


def parse_score_request(
    body: Mapping[str, object],
    tokenizer: Tokenizer | None,
    limits: Limits,
    served_models: tuple[str, ...] | None = None,
) -> ScoreRequest:
    """Validate the fields of a request, and tokenise its texts.

    Args:
        body: The JSON object of `POST /v1/score`, or keyword arguments of the same names. From Python,
            tuples and integer arrays are as good as lists, and NumPy integers as `int`. Ids that were
            read before come as `TokenRows`, nested for `items`, not for `query`; none is empty as a whole.
        tokenizer: Needed for requests with text only.
        limits: What the request may ask for.
        served_models: Names that the field `model` may have; None allows every name.

    Raises:
        RequestError: the request breaks the contract; `code` and `param` say where.
    """
    _check_fields(body, FIELDS + LAYOUT_FIELDS if limits.layouts else FIELDS)
    query = _read_query(body)
    items = _read_items(body, query)
    labels = _read_labels(body, len(items.lens) if isinstance(items, TokenRows) else len(items))
    check_characters(limits.max_text_characters, query=query, items=items, labels=labels)
    if not isinstance(labels, TokenRows):
        _check_label_count(len(labels), "labels", limits)  # before each is looked up
    if tokenizer is None and not (isinstance(query, TokenRows) and isinstance(labels, TokenRows)):
        raise RequestError("invalid_query_type", "This engine has no tokenizer: send token ids, not text.", "query")
    label_rows = labels if isinstance(labels, TokenRows) else _look_up(labels, cast(Tokenizer, tokenizer))
    for rows in (query, items, label_rows):
        if isinstance(rows, TokenRows):
            rows.check_below(limits.vocab_size)
    apply_softmax, item_first, return_token_logprobs = (
        _read_bool(body, name) for name in ("apply_softmax", "item_first", "return_token_logprobs")
    )
    add_special_tokens = _read_bool(body, "add_special_tokens", default=True)
    cache_salt, model = _read_optional_text(body, "cache_salt"), _read_optional_text(body, "model")
    if model is not None and served_models is not None and model not in served_models:
        raise RequestError("model_not_found", f"Model {_shown(model)} is not served here.", "model")
    temperature = _read_temperature(body, apply_softmax)
    _check_counts(len(items.lens) if isinstance(items, TokenRows) else len(items), label_rows, limits)
    layout = _read_layout(body)
    if limits.delimiter is not None:
        query, items = delimited(query, items, item_first, tokenizer, limits.delimiter, add_special_tokens)
    joined = _join(query, items, item_first, tokenizer, limits, add_special_tokens)
    return ScoreRequest(
        joined.query,
        joined.item_tokens,
        joined.item_starts,
        joined.context_lens,
        _label_matrix(label_rows),
        apply_softmax=apply_softmax,
        temperature=temperature,
        return_token_logprobs=return_token_logprobs,
        cache_salt=cache_salt,
        layout=layout,
        empty_items=0 if item_first else _count_empty(items),
    )


def check_characters(most: int, **fields: str | Sequence[str] | TokenRows) -> None:
    """Refuse more text than may be tokenised, before any is.

    Args:
        most: Characters of all texts together.
        fields: Texts by the name of their field; ids count nothing.

    Raises:
        RequestError: `too_many_tokens`; names the longest field.
    """
    counts = {
        name: len(value) if isinstance(value, str) else sum(map(len, value))
        for name, value in fields.items()
        if not isinstance(value, TokenRows)
    }
    count = sum(counts.values())
    if count > most:
        raise RequestError(
            "too_many_tokens",
            f"{count} characters of text; at most {most} are allowed.",
            max(counts, key=lambda name: counts[name]),
        )


def _count_empty(items: Sequence[str] | TokenRows) -> int:
    if isinstance(items, TokenRows):
        return len(items.lens) - int(np.count_nonzero(items.lens))
    return sum(not item for item in items)


def _check_fields(body: Mapping[str, object], fields: tuple[str, ...]) -> None:
    for name in body:
        if name not in fields:
            near = difflib.get_close_matches(str(name)[:64], fields, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known fields: {', '.join(fields)}."
            raise RequestError("unknown_parameter", f"Unknown field {_shown(name)}. {hint}", str(name)[:64])


def _read_query(body: Mapping[str, object]) -> str | TokenRows:
    query = body.get("query")
    if isinstance(query, TokenRows):
        return query
    if query is None:
        raise RequestError("missing_query", "The field query is required: a text or a list of token ids.", "query")
    if not isinstance(query, (str, list, tuple)) and not (isinstance(query, np.ndarray) and query.ndim == 1):
        raise RequestError(
            "invalid_query_type", f"query must be a text or a list of token ids, not {_kind(query)}.", "query"
        )
    if len(query) == 0:
        raise RequestError("empty_query", "query must not be empty; items may be.", "query")
    if isinstance(query, str):
        return _readable(query, "query", "invalid_query_type")
    return read_row("query", query)


def _read_items(body: Mapping[str, object], query: str | TokenRows) -> Sequence[str] | TokenRows:
    items = body.get("items")
    if isinstance(items, TokenRows):
        return items
    if items is None:
        raise RequestError("missing_items", "The field items is required: a list of texts or of id lists.", "items")
    if isinstance(items, str):
        items = [items]
    if not isinstance(items, ROW_TYPES) or (isinstance(items, np.ndarray) and items.ndim != 2):
        raise RequestError("invalid_items_type", f"items must be a list, not {_kind(items)}.", "items")
    if len(items) == 0:
        raise RequestError("empty_items", "items must hold at least one item; the item itself may be empty.", "items")
    rows = list(items)
    wanted, other = ((str,), ROW_TYPES) if isinstance(query, str) else (ROW_TYPES, (str,))
    kinds = set(map(type, rows))
    if any(issubclass(kind, other) for kind in kinds):
        raise RequestError("mixed_input_types", "query and items must both be text or both be token ids.", "items")
    if not all(issubclass(kind, wanted) for kind in kinds):
        index = next(index for index, row in enumerate(rows) if not isinstance(row, wanted))
        want = "a text" if isinstance(query, str) else "a list of token ids"
        raise RequestError(
            "invalid_items_type", f"items[{index}] must be {want} like the query, not {_kind(rows[index])}.", "items"
        )
    if isinstance(query, str):
        _readable("".join(rows), "items", "invalid_items_type")
        return rows
    return read_rows("items", rows)


def _read_labels(body: Mapping[str, object], num_items: int) -> list[str] | TokenRows:
    ids, texts = body.get("label_token_ids"), body.get("labels")
    if texts is not None:
        if ids is not None:
            raise RequestError("conflicting_labels", "Give labels or label_token_ids, not both.", "labels")
        return _read_text_labels(texts)
    param = "label_token_ids"
    if ids is None:
        raise RequestError("missing_label_token_ids", "Give the labels to score: label_token_ids or labels.", param)
    if not isinstance(ids, TokenRows):
        return _read_label_ids(param, ids, num_items)
    if ids.is_nested:
        _check_one_list_each(param, len(ids.lens), num_items)
    return ids


def _read_label_ids(param: str, ids: object, num_items: int) -> TokenRows:
    if not isinstance(ids, ROW_TYPES) or (isinstance(ids, np.ndarray) and ids.ndim not in (1, 2)):
        raise RequestError(
            "invalid_label_token_ids_type", f"label_token_ids must be a list of token ids, not {_kind(ids)}.", param
        )
    if len(ids) == 0:
        raise RequestError("empty_label_token_ids", "label_token_ids must not be empty.", param)
    nested = [isinstance(row, ROW_TYPES) for row in ids]
    if not any(nested):
        return read_row(param, ids)
    if not all(nested):
        raise RequestError(
            "invalid_label_token_ids_type", "label_token_ids must hold token ids or one list per item, not both.", param
        )
    if not all(map(len, ids)):
        raise RequestError("empty_label_token_ids", "Every item's list in label_token_ids needs a label.", param)
    _check_one_list_each(param, len(ids), num_items)
    return read_rows(param, list(ids))


def _check_one_list_each(param: str, num_lists: int, num_items: int) -> None:
    if num_lists != num_items:
        raise RequestError(
            "label_count_mismatch", f"{param} has {num_lists} lists for {num_items} items; give one each.", param
        )


def _read_text_labels(labels: object) -> list[str]:
    if not isinstance(labels, (list, tuple)) or not all(isinstance(label, str) for label in labels):
        raise RequestError("invalid_labels_type", "labels must be a list of texts.", "labels")
    if not labels:
        raise RequestError("empty_labels", "labels must not be empty.", "labels")
    _readable("".join(labels), "labels", "invalid_labels_type")
    return list(labels)


def _look_up(labels: list[str], tokenizer: Tokenizer) -> TokenRows:
    return TokenRows.single("labels", np.array([tokenizer.label_id(label) for label in labels], np.int64))


def _read_bool(body: Mapping[str, object], name: str, *, default: bool = False) -> bool:
    value = body.get(name, default)
    if not isinstance(value, (bool, np.bool_)):
        raise RequestError(f"invalid_{name}_type", f"{name} must be true or false, not {_kind(value)}.", name)
    return bool(value)


def _read_optional_text(body: Mapping[str, object], name: str) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise RequestError(f"invalid_{name}_type", f"{name} must be a text, not {_kind(value)}.", name)
    return _readable(value, name, f"invalid_{name}_type")


def _read_temperature(body: Mapping[str, object], apply_softmax: bool) -> float:
    value = body.get("temperature", 1.0)
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    try:
        temperature = float(cast(float, value)) if is_number else math.nan
    except OverflowError:
        temperature = math.inf
    if not (math.isfinite(temperature) and temperature > 0):
        raise RequestError("invalid_temperature", "temperature must be a finite number above 0.", "temperature")
    if temperature != 1.0 and not apply_softmax:
        raise RequestError("invalid_temperature", "A temperature other than 1 needs apply_softmax.", "temperature")
    return temperature


def _read_layout(body: Mapping[str, object]) -> Layout:
    for name, allowed in (("scoring_algorithm", ALGORITHMS), ("mask_impl", MASKS)):
        value = body.get(name)
        if value is not None and value not in allowed:
            raise RequestError(f"invalid_{name}", f"{name} must be one of {', '.join(allowed)}.", name)
    name = "multi_item_scoring_chunk_size"
    size = body.get(name)
    if size is not None and (isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 0):
        raise RequestError(f"invalid_{name}", f"{name} must be a whole number, 0 for as many items as fit.", name)
    algorithm, mask = cast(str | None, body.get("scoring_algorithm")), cast(str | None, body.get("mask_impl"))
    if mask == "dense" and algorithm not in (None, "auto", "packed"):
        raise RequestError("invalid_mask_impl", "mask_impl dense needs scoring_algorithm packed.", "mask_impl")
    return Layout(algorithm, mask, None if size is None else int(size))


def _check_counts(num_items: int, labels: TokenRows, limits: Limits) -> None:
    if num_items > limits.max_items:
        raise RequestError("too_many_items", f"{num_items} items; at most {limits.max_items} are allowed.", "items")
    _check_label_count(labels.longest, labels.param, limits)
    scores = num_items * labels.longest
    if scores > limits.max_scores:
        raise RequestError(
            "too_many_labels",
            f"{num_items} items with up to {labels.longest} labels make {scores} scores; at most {limits.max_scores} "
            "are allowed. Split the items over several requests.",
            labels.param,
        )


def _check_label_count(count: int, param: str, limits: Limits) -> None:
    if count > limits.max_labels:
        raise RequestError("too_many_labels", f"{count} labels; at most {limits.max_labels} are allowed.", param)


def _join(
    query: str | TokenRows,
    items: Sequence[str] | TokenRows,
    item_first: bool,
    tokenizer: Tokenizer | None,
    limits: Limits,
    add_special_tokens: bool,
) -> Joined:
    """Make the segments; refuse lengths beyond the limits, for ids before any array of that size is made."""
    if isinstance(query, TokenRows) and isinstance(items, TokenRows):
        lens = items.lens + len(query.values)
        computed = int(lens.sum()) if item_first else len(query.values) + len(items.values)
        _check_lengths(lens, computed, limits)
        return join_ids(query.values, items.values, items.lens, item_first)
    joined = cast(Tokenizer, tokenizer).join(
        cast(str, query),
        cast(Sequence[str], items),
        item_first,
        add_special_tokens=add_special_tokens,
        context_length=limits.context_length,
        max_characters=limits.max_text_characters,
    )
    lens = joined.context_lens + np.diff(joined.item_starts)
    _check_lengths(lens, len(joined.query) + len(joined.item_tokens), limits)
    return joined


def _check_lengths(lens: np.ndarray, computed: int, limits: Limits) -> None:
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


def _label_matrix(labels: TokenRows) -> Int32[np.ndarray, "label_rows labels"]:
    """Return one row for all items, or one for each, filled up with -1."""
    if not labels.is_nested:
        return labels.values.astype(np.int32)[None]
    matrix = np.full((len(labels.lens), labels.longest), -1, np.int32)
    matrix[np.arange(matrix.shape[1]) < labels.lens[:, None]] = labels.values
    return matrix


def _readable(text: str, param: str, code: str) -> str:
    """Refuse text that is no Unicode: JSON can spell half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(code, f"{param} holds an unpaired surrogate, which is not text.", param) from None
    return text


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _shown(value: object) -> str:
    return repr(str(value)[:64])
