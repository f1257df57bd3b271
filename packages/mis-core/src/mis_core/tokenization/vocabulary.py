"""The ids that a model has, of those that its tokenizer may make: a row of the embedding for each."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64, Integer

from mis_core.errors import RequestError

Refuse = Callable[[Bool[np.ndarray, " rows"], Callable[[int, int], RequestError]], Int64[np.ndarray, " rows"]]
"""Refuses some of several texts: is given which, and what makes the error of one from its row and its place in the
request. Returns the rows of the others, or raises the error. `ItemErrors.refuse` is one.
"""

_SHOWN_CHARACTERS = 40


def refuse_first(
    is_bad: Bool[np.ndarray, " rows"], error: Callable[[int, int], RequestError]
) -> Int64[np.ndarray, " rows"]:
    """Raise the error of the first text that is refused."""
    row = int(is_bad.argmax())
    raise error(row, row)


def shown(text: str) -> str:
    """Return a text for an error, cut where it is long."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids that a model has.

    Attributes:
        size: All ids are below it; None: nothing is refused, as no model is known.
        spell: Spells a token, for errors.
    """

    size: int | None
    spell: Callable[[int], str]

    def check(self, tokens: Integer[np.ndarray, " tokens"], field: str, what: str | None = None) -> None:
        """Refuse a text whose tokens the model does not have all.

        Args:
            tokens: The text's tokens.
            field: What holds the text in the request.
            what: What the text is called, if not by its field.

        Raises:
            RequestError: `token_id_exceeds_vocab`.
        """
        is_unknown = self._unknown(tokens)
        if is_unknown is not None:
            raise self._error(what or field, int(tokens[is_unknown.argmax()]), field)

    def sort_out(
        self,
        tokens: Integer[np.ndarray, " tokens"],
        lens: Integer[np.ndarray, " texts"],
        field: str,
        refuse: Refuse = refuse_first,
    ) -> Int64[np.ndarray, " rows"] | None:
        """Refuse those of several texts whose tokens the model does not have all.

        Args:
            tokens: Tokens of all texts, one after the other.
            lens: Tokens of each.
            field: What holds the texts in the request.
            refuse: Refuses them.

        Returns:
            The rows of the other texts; None if that is all of them.

        Raises:
            RequestError: `token_id_exceeds_vocab`.
        """
        is_unknown = self._unknown(tokens)
        if is_unknown is None:
            return None
        unknown = np.flatnonzero(is_unknown)
        rows, first = np.unique(np.searchsorted(np.cumsum(lens), unknown, side="right"), return_index=True)
        found = dict(zip(rows.tolist(), tokens[unknown[first]].tolist(), strict=True))
        is_bad = np.zeros(len(lens), bool)
        is_bad[rows] = True
        return refuse(is_bad, lambda row, index: self._error(f"{field}[{index}]", found[row], field))

    def _unknown(self, tokens: np.ndarray) -> np.ndarray | None:
        if self.size is None:
            return None
        is_unknown = (tokens < 0) | (tokens >= self.size)
        return is_unknown if is_unknown.any() else None

    def _error(self, what: str, token: int, field: str) -> RequestError:
        message = (
            f"{what} has token {token}, {shown(self.spell(token))}, which this model does not have: its ids are below "
            f"{self.size}."
        )
        return RequestError("token_id_exceeds_vocab", message, field)
