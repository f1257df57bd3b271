"""The labels of a request: token ids, one list for all items or one for each, or texts that are looked up.

Of a model with a classification head they are rows of the head, or the names of rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from mis_core.errors import RequestError
from mis_core.tasks.fields.token_rows import ROW_TYPES, TokenRows, read_row, read_rows
from mis_core.tasks.fields.values import kind, readable, shown
from mis_core.tokenization import Tokenizer


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels as they were given.

    Attributes:
        texts: Texts; empty where ids were given.
        ids: Ids; None where texts were given.
    """

    texts: list[str]
    ids: TokenRows | None

    def look_up_sequences(self, tokenizer: Tokenizer | None) -> TokenRows:
        """Return the ids; of texts, one list for each if some have several tokens, else one list.

        Raises:
            RequestError: `empty_label`.
        """
        if self.ids is not None:
            return self.ids
        assert tokenizer is not None, "texts need a tokenizer"
        ids = TokenRows.nested("labels", [np.array(tokenizer.label_ids(text)) for text in self.texts])
        return ids if ids.longest > 1 else TokenRows.single("labels", ids.values)

    def look_up(self, tokenizer: Tokenizer | None, head_labels: tuple[str, ...] = ()) -> TokenRows:
        """Return the ids of labels that must be one token each; of texts, the rows of a head that they name, or tokens.

        Raises:
            RequestError: `label_not_single_token` or `unknown_label`.
        """
        if self.ids is not None:
            return self.ids
        if head_labels:
            return TokenRows.single("labels", np.array([_row(text, head_labels) for text in self.texts], np.int64))
        assert tokenizer is not None, "texts need a tokenizer"
        return TokenRows.single("labels", np.array([tokenizer.label_id(text) for text in self.texts], np.int64))


def read_labels(body: Mapping[str, object], num_items: int, head_labels: tuple[str, ...] = ()) -> Labels:
    """Read the labels of a request; all rows of a classification head where it names none.

    Raises:
        RequestError: they are missing, of a wrong type, or not one list for each item.
    """
    ids, texts = body.get("label_token_ids"), body.get("labels")
    if texts is not None:
        if ids is not None:
            raise RequestError("conflicting_labels", "Give labels or label_token_ids, not both.", "labels")
        return Labels(_read_texts(texts), None)
    if ids is None and head_labels:
        return Labels([], TokenRows.single("label_token_ids", np.arange(len(head_labels))))
    if ids is None:
        message = "Give the labels to score: label_token_ids or labels."
        raise RequestError("missing_label_token_ids", message, "label_token_ids")
    return Labels([], _read_ids("label_token_ids", ids, num_items))


def label_matrix(labels: TokenRows) -> Int32[np.ndarray, "label_rows labels"]:
    """Return one row for all items, or one for each, filled up with -1."""
    if not labels.is_nested:
        return labels.values.astype(np.int32)[None]
    matrix = np.full((len(labels.lens), labels.longest), -1, np.int32)
    matrix[np.arange(matrix.shape[1]) < labels.lens[:, None]] = labels.values
    return matrix


def _row(text: str, head_labels: tuple[str, ...]) -> int:
    """Return the row of a head that a text names."""
    if head_labels.count(text) == 1:
        return head_labels.index(text)
    known = ", ".join(head_labels)
    reason = "names several rows" if text in head_labels else "names no row"
    raise RequestError("unknown_label", f"Label {shown(text)} {reason} of the model's head: {known}.", "labels")


def _read_ids(param: str, ids: object, num_items: int) -> TokenRows:
    if isinstance(ids, TokenRows):
        if ids.is_nested:
            _check_one_list_each(param, len(ids.lens), num_items)
        return ids
    if not isinstance(ids, ROW_TYPES) or (isinstance(ids, np.ndarray) and ids.ndim not in (1, 2)):
        raise RequestError(
            "invalid_label_token_ids_type", f"label_token_ids must be a list of token ids, not {kind(ids)}.", param
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
        raise RequestError(
            "empty_label_token_ids", "Every list in label_token_ids must hold at least one label.", param
        )
    _check_one_list_each(param, len(ids), num_items)
    return read_rows(param, list(ids))


def _check_one_list_each(param: str, num_lists: int, num_items: int) -> None:
    if num_lists != num_items:
        raise RequestError(
            "label_count_mismatch",
            f"{param} has {num_lists} lists for {num_items} items; give one for each item.",
            param,
        )


def _read_texts(labels: object) -> list[str]:
    if not isinstance(labels, (list, tuple)) or not all(isinstance(label, str) for label in labels):
        raise RequestError("invalid_labels_type", "labels must be a list of texts.", "labels")
    if not labels:
        raise RequestError("empty_labels", "labels must not be empty.", "labels")
    readable("".join(labels), "labels", "invalid_labels_type")
    return list(labels)
