"""Scores batches of rows with an engine process, as the server would, without HTTP.

A batch is one request, or several if its kind of question needs that. Each may ask for what `Limits` allows by default;
no option changes that. The processes that tokenise it bound its time and memory as those of a body of its size. What
else a server bounds has no part here: the bytes of bodies, what may wait, deadlines.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from mis_core.config import EngineConfig
from mis_core.errors import EngineUnavailable, RequestError
from mis_core.process.client import EngineFault
from mis_core.process.quarantine import RequestRefused
from mis_server.model import Model, running_model, some_at_a_time
from mis_server.offline.asked import OfflineTask
from mis_server.offline.rows import InputRow

_ATTEMPTS = 3  # at a batch whose engine process ended
_RESTART_S = 900.0


class Scorer:
    """Scores rows. Made by `running_scorer`.

    Attributes:
        dtype: The type that the engine computes in.
    """

    def __init__(self, asked: OfflineTask, model: Model, dtype: str) -> None:
        self.dtype = dtype
        self._asked = asked
        self._model = model

    async def score(self, rows: list[InputRow]) -> None:
        """Give every row of a batch that shares a query its answer or its error.

        Raises:
            EngineUnavailable: the engine ended again and again.
        """
        requests = self._asked.requests([row for row in rows if row.error is None])
        if requests:
            await self._score(requests[0])
        if requests[1:]:  # which now find the query in the prefix cache
            await some_at_a_time(self._score, requests[1:])

    async def _score(self, rows: list[InputRow]) -> None:
        """Give every row of a request its answer or its error."""
        try:
            answers = await self._ask(rows)
        except (RequestError, RequestRefused, EngineFault) as error:
            if len(rows) > 1:  # one row is at fault: ask for parts, so that the others are scored
                # Where the engine's process ended, each further attempt with that row may end it again.
                size = 1 if isinstance(error, RequestRefused) else -(-len(rows) // 2)
                for begin in range(0, len(rows), size):
                    await self._score(rows[begin : begin + size])
                return
            code = error.code if isinstance(error, RequestError) else "internal_error"
            rows[0].error = {"code": code, "message": str(error.args[0])}
            return
        for row, answer in zip(rows, answers, strict=True):
            row.answer = answer

    async def _ask(self, rows: list[InputRow]) -> list[Any]:
        """Return the answers to rows."""
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(EngineUnavailable):
                return await self._asked.answer(self._model, rows)
            async with asyncio.timeout(_RESTART_S):
                while not self._model.ready:
                    await asyncio.sleep(0.1)
        return await self._asked.answer(self._model, rows)


@contextlib.asynccontextmanager
async def running_scorer(asked: OfflineTask, config: EngineConfig) -> AsyncIterator[Scorer]:
    """Bring the model up, and check what is asked with it.

    Raises:
        ConfigError: an option would be wrong with every row.
        ModelError: the model cannot be served as it stands.
        EngineUnavailable: the engine could not start.
    """
    async with running_model(config) as model:
        info = await model.wait_ready()
        await asked.check(model)
        yield Scorer(asked, model, str(info.summary["dtype"]))
