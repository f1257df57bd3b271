"""What is wrong with single items of a request: it refuses the whole request, or those items only.

`on_error` is a field of every request with items, whatever they are called: items, documents, questions. With "item",
an item that cannot be scored gets an `ItemError`, and the rest are scored as if it had not been sent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Float32, Int64

from mis_core.errors import RequestError
from mis_core.tasks.fields.body import about

OnError = Annotated[
    Literal["request", "item"],
    about(
        "What happens if an item cannot be scored: `request` refuses the whole request; `item` gives the item an entry "
        "in `errors` and scores the rest."
    ),
]
"""The type of the field `on_error`."""

Item = TypeVar("Item")
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class ItemError:
    """Why an item was not scored.

    Attributes:
        index: Its index in the request.
        code: Machine-readable reason, as of a `RequestError`.
        message: What is wrong, for people.
        param: The field that holds the items.
    """

    index: int
    code: str
    message: str
    param: str


class ItemErrors:
    """Sorts the items of one request out while it is read: which are scored, and why the others are not.

    Attributes:
        count: Items of the request.
        kept: Places of the items that nothing is wrong with so far, `[kept]`, rising.
        per_item: Whether the rest is scored where items are wrong; otherwise, the first that is wrong is raised.
    """

    def __init__(self, param: str, count: int, *, per_item: bool) -> None:
        """Begin with all items.

        Args:
            param: The field that holds them.
            count: How many there are.
            per_item: What `on_error` says.
        """
        self.count = count
        self.kept = np.arange(count)
        self.per_item = per_item
        self._param = param
        self._errors: list[ItemError] = []

    @property
    def any_left(self) -> bool:
        """Whether there are items that nothing is wrong with so far."""
        return len(self.kept) > 0

    def part(self, indices: Int64[np.ndarray, " items"]) -> "ItemErrors":
        """Return the same for some of the kept items, by their places in the request; errors are noted here, too."""
        part = ItemErrors(self._param, self.count, per_item=self.per_item)
        part.kept, part._errors = indices, self._errors
        return part

    def read_each(self, items: Sequence[Item], read: Callable[[int, Item], Read]) -> list[Read]:
        """Read the kept items one by one, and keep those for which that raises no `RequestError`.

        Args:
            items: As many as are kept.
            read: Reads an item; is given its place in the request, too.

        Raises:
            RequestError: of the first item that is wrong, unless `per_item`.
        """
        results: list[Read] = []
        is_bad = np.zeros(len(items), bool)
        for row, index in enumerate(self.kept.tolist()):
            try:
                results.append(read(index, items[row]))
            except RequestError as error:
                self._add(index, error)
                is_bad[row] = True
        self.kept = self.kept[~is_bad]
        return results

    def refuse(
        self, is_bad: Bool[np.ndarray, " kept"], error: Callable[[int, int], RequestError]
    ) -> Int64[np.ndarray, " rows"]:
        """Refuse some of the kept items; return the rows of the others among them.

        Args:
            is_bad: Which.
            error: Makes the error of one, from its row and its place in the request.

        Raises:
            RequestError: of the first item that is wrong, unless `per_item`.
        """
        for row in np.flatnonzero(is_bad).tolist():
            index = int(self.kept[row])
            self._add(index, error(row, index))
        self.kept = self.kept[~is_bad]
        return np.flatnonzero(~is_bad)

    @property
    def errors(self) -> tuple[ItemError, ...]:
        """One for each item that is not kept, in their order."""
        return tuple(sorted(self._errors, key=lambda error: error.index))

    def spread(self, values: Float32[np.ndarray, "kept columns"]) -> Float32[np.ndarray, "items columns"]:
        """Return a row for every item of the request: NaN for those that are not kept."""
        if not self._errors:
            return values
        rows = np.full((self.count, values.shape[1]), np.nan, np.float32)
        rows[self.kept] = values
        return rows

    def _add(self, index: int, error: RequestError) -> None:
        if not self.per_item:
            raise error
        self._errors.append(ItemError(index, error.code, error.message, self._param))
