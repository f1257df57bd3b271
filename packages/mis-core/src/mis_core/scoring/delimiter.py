"""A delimiter token between query and item, as older servers' models and prompts expect it."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from mis_core.errors import RequestError
from mis_core.scoring.token_rows import TokenRows
from mis_core.tokenization import Tokenizer


def delimited(
    query: str | TokenRows,
    items: Sequence[str] | TokenRows,
    item_first: bool,
    tokenizer: Tokenizer | None,
    delimiter: int,
    add_special_tokens: bool,
) -> tuple[TokenRows, TokenRows]:
    """Put the delimiter between query and item: at the end of whatever comes first.

    Text is tokenised part by part, since the delimiter parts them.

    Args:
        query: The query, text or ids.
        items: The items, of the query's kind.
        item_first: Whether items come before the query.
        tokenizer: Needed for text.
        delimiter: Token id.
        add_special_tokens: Whether text gets those that its tokenizer adds.

    Raises:
        RequestError: `delimiter_in_input`.
    """
    if isinstance(query, str):
        own, tokens, lens = cast(Tokenizer, tokenizer).encode_apart(
            query, cast(Sequence[str], items), item_first, add_special_tokens=add_special_tokens
        )
        query, items = TokenRows.single("query", own), TokenRows("items", tokens, lens, is_nested=True)
    assert isinstance(items, TokenRows), "text and ids are never mixed"
    for rows in (query, items):
        if (rows.values == delimiter).any():
            message = f"{rows.param} must not hold token {delimiter}, the delimiter between query and item."
            raise RequestError("delimiter_in_input", message, rows.param)
    first = items if item_first else query
    ends = np.cumsum(first.lens)
    first = TokenRows(first.param, np.insert(first.values, ends, delimiter), first.lens + 1, first.is_nested)
    return (query, first) if item_first else (first, items)
