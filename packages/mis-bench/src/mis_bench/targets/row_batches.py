"""Batches of rows that callers of a model share."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Row = TypeVar("Row")
Found = TypeVar("Found")


class RowBatches(Generic[Row, Found]):
    """Computes rows in batches, whoever's they are, in order of arrival; safe to call from several threads.

    A caller who waits for his rows computes the next batch himself once nobody else computes one.

    Args:
        compute: Returns what is found for each row of a batch.
        size: Most rows of a batch.
    """

    def __init__(self, compute: Callable[[Sequence[Row]], Sequence[Found]], size: int) -> None:
        self._compute, self._size = compute, size
        self._waiting: deque[tuple[Row, Future[Found]]] = deque()
        self._computing = threading.Lock()

    def find(self, rows: Sequence[Row]) -> list[Found]:
        """Return what is found for each row; raises what computing its batch raised."""
        mine = [Future[Found]() for _ in rows]
        self._waiting.extend(list(zip(rows, mine, strict=True)))
        for each in mine:
            while not each.done():
                with self._computing:
                    if not each.done():  # nor taken: who takes rows computes them before others may
                        self._next_batch()
        return [each.result() for each in mine]

    def _next_batch(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
        try:
            found = self._compute([row for row, _ in batch])
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), each in zip(batch, found, strict=True):
            future.set_result(each)
