"""A window of rows: those of one query are asked for together, and all come out in the input's order.

Rows are read ahead, as far as there is room. The oldest that is not asked for yet is asked for next, together with
later ones of its query, so before a row at most as many requests are made as there are rows before it. An answer waits
in the window until those of all rows before it are there.
"""

import asyncio
import marshal
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from mis_server.offline.asked import OfflineTask
from mis_server.offline.rows import InputRow, RowSize
from mis_server.offline.sizes import bytes_of

UNANSWERED_ROWS = 16_384
"""Rows without an answer: those that may be brought together."""

HELD_ROWS = 2 * UNANSWERED_ROWS
"""Rows that are not written yet, answered or not: what a run that is killed has to ask for again, at most."""

HELD_BYTES = 64 * 1024 * 1024
"""Of rows that are not written yet: query and items until they are answered, id and answer until they are written."""

REQUESTS = 512
"""Requests under way: 256, which can share a step, and as many that are prepared meanwhile."""

FULL_BATCHES = 16
"""Requests under way, however large; more if all together have no more items and tokens than so many full ones."""

RUN_ROWS = 512
"""Rows that are written at once."""

_READ_AT_ONCE = 512  # rows, after which a request may start before the window is full
_WITHOUT_PAUSE = 32  # rows, after which others have the event loop
_ROW_BYTES = 512  # of what holds a row's fields, here and in the window

Score = Callable[[list[InputRow]], Coroutine[Any, Any, None]]


async def in_order(rows: Iterable[InputRow], score: Score, asked: OfflineTask) -> AsyncGenerator[list[InputRow]]:
    """Yield runs of rows in the input's order, with their answers but without their query and items.

    Close it, by `contextlib.aclosing`: what is under way ends with it.

    Args:
        rows: The input, read as far as the window has room.
        score: Gives rows of one query their answers; called for several batches at a time.
        asked: How many items and tokens a batch may have, and how large rows and their answers are.

    Raises:
        Exception: what `rows` or `score` raise.
    """
    window = _Window(rows, score, asked)
    try:
        while True:
            while await window.read():
                window.ask(1)  # or nothing is computed until the window is full for the first time
            window.ask()
            if run := window.next_run():
                yield run
            elif window.is_empty:
                return
            else:
                await window.answered()
    finally:
        await window.close()


@dataclass(slots=True)
class _HeldRow:
    """A row in the window.

    Attributes:
        row: The row.
        size: What it adds to a request.
        asked_bytes: Of query and items.
        answer_bytes: Of id and answer.
        is_asked: Whether it is asked for.
        is_answered: Whether it has its answer.
    """

    row: InputRow
    size: RowSize
    asked_bytes: int
    answer_bytes: int
    is_asked: bool = False
    is_answered: bool = False


@dataclass(slots=True)
class _Batch:
    """Rows that are asked for together; tokens are those of their query, too."""

    rows: list[_HeldRow]
    items: int
    tokens: int


class _Window:
    def __init__(self, rows: Iterable[InputRow], score: Score, asked: OfflineTask) -> None:
        self._rows = iter(rows)
        self._score = score
        self._asked = asked
        self._held: deque[_HeldRow] = deque()
        self._line: deque[_HeldRow] = deque()  # those that are not asked for, and later ones that are
        self._by_query: dict[str | bytes, deque[_HeldRow]] = {}  # those that are not asked for
        self._under_way: dict[asyncio.Task[None], _Batch] = {}
        self._ended: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        self._unanswered = self._bytes = 0
        self._items = self._tokens = 0  # of what is under way

    @property
    def is_empty(self) -> bool:
        """Whether no row is held."""
        return not self._held

    async def read(self) -> bool:
        """Read some rows, one at least if none is held; return whether there may be more, and room for them."""
        for number in range(_READ_AT_ONCE):
            if self._held and not self._has_room:
                return False
            row = next(self._rows, None)
            if row is None:
                return False
            self._hold(row)
            if number % _WITHOUT_PAUSE == 0:
                await asyncio.sleep(0)
        return True

    def ask(self, most: int = REQUESTS) -> None:
        """Start requests, the oldest row first, but no more than `most` and than may be under way."""
        for _ in range(most):
            batch = self._next_batch() if self._may_ask else None
            if batch is None:
                return
            task = asyncio.create_task(self._score([held.row for held in batch.rows]))
            task.add_done_callback(self._ended.put_nowait)
            self._under_way[task] = batch
            self._items += batch.items
            self._tokens += batch.tokens

    def next_run(self) -> list[InputRow]:
        """Let the oldest rows go as far as they are answered; return them."""
        run: list[InputRow] = []
        while self._held and self._held[0].is_answered and len(run) < RUN_ROWS:
            held = self._held.popleft()
            self._bytes -= held.answer_bytes
            run.append(held.row)
        return run

    async def answered(self) -> None:
        """Wait for an answer; raises what asking for it raised."""
        task = await self._ended.get()
        batch = self._under_way.pop(task)
        self._items -= batch.items
        self._tokens -= batch.tokens
        task.result()
        for held in batch.rows:
            held.is_answered = True
            held.row.query, held.row.items = None, []
            self._bytes -= held.asked_bytes
        self._unanswered -= len(batch.rows)

    async def close(self) -> None:
        """End what is under way."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    @property
    def _may_ask(self) -> bool:
        if len(self._under_way) < FULL_BATCHES:
            return True
        has_room = self._items < FULL_BATCHES * self._asked.batch_size
        return has_room and self._tokens < FULL_BATCHES * self._asked.batch_tokens and len(self._under_way) < REQUESTS

    @property
    def _has_room(self) -> bool:
        return self._unanswered < UNANSWERED_ROWS and len(self._held) < HELD_ROWS and self._bytes < HELD_BYTES

    def _hold(self, row: InputRow) -> None:
        size = self._asked.size(row)
        answer_bytes = _ROW_BYTES + bytes_of(row.id) + size.answer_bytes
        held = _HeldRow(row, size, bytes_of(row.query) + bytes_of(row.items), answer_bytes)
        self._held.append(held)
        self._line.append(held)
        self._by_query.setdefault(_key(row.query), deque()).append(held)
        self._unanswered += 1
        self._bytes += held.asked_bytes + held.answer_bytes

    def _next_batch(self) -> _Batch | None:
        """Return the oldest row that is not asked for, and as many after it with its query as one request may have."""
        while self._line and self._line[0].is_asked:
            self._line.popleft()
        if not self._line:
            return None
        query = self._line[0].row.query
        same = self._by_query[_key(query)]
        batch = _Batch([], 0, 0)
        while same and (not batch.rows or self._fits(batch, same[0])):
            held = same.popleft()
            held.is_asked = True
            batch.rows.append(held)
            batch.items += held.size.items
            batch.tokens += held.size.tokens
        if not same:
            del self._by_query[_key(query)]
        batch.tokens += batch.rows[0].size.query_tokens
        return batch

    def _fits(self, batch: _Batch, held: _HeldRow) -> bool:
        is_small = batch.items + held.size.items <= self._asked.batch_size
        return is_small and batch.tokens + held.size.tokens <= self._asked.batch_tokens


def _key(query: Any) -> str | bytes:
    """Return what only equal queries have; lists have no hash, and 1, 1.0 and True are equal to Python."""
    return query if isinstance(query, str) else marshal.dumps(query, 2)  # version 2 writes equal values alike
