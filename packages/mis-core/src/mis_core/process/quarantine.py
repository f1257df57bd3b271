"""Quarantine for requests that may have crashed the engine process, so that none can crash it again and again.

Every request that was in flight when the process ended is quarantined: when it is sent again, no other request in
quarantine is computed with it. The end of the process counts against the requests in flight if they were few, or if
only one of them was in quarantine; of many it says nothing about each. When two ends count against it, a request is
refused for some minutes and then tried once more. A request that is answered is released. So an innocent neighbour of
a poisoned request gets its answer, killing the process from outside condemns no request, and a poisoned one rarely
crashes the engine.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from mis_core.requests import GenerateRequest, ScoreRequest

_REFUSED_AFTER = 2  # ends that count
_FEW = 4  # requests in flight
_REFUSED_S = 600.0
_REMEMBERED = 4096  # requests, the latest


@dataclass(slots=True)
class _Record:
    num_ends: int = 0  # ends of the engine process that count against the request
    last_s: float = 0.0  # when it last ended


class RequestRefused(RuntimeError):
    """The engine process ended twice while it worked on this request, which is refused for some minutes."""


class Quarantine:
    """Knows requests by what they compute, and how often the engine process ended with them. For one event loop."""

    def __init__(self) -> None:
        self._records: OrderedDict[bytes, _Record] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()

    @asynccontextmanager
    async def watched(self, request: ScoreRequest | GenerateRequest) -> AsyncIterator[None]:
        """Surround the computation of a request, until its answer is there.

        Raises:
            RequestRefused: on entering; the engine ended too often with it.
        """
        key = _key(request) if self._records else b""
        if key not in self._records:
            yield
            return
        async with self._one_at_a_time:
            record = self._records.get(key, _Record())
            if record.num_ends >= _REFUSED_AFTER and time.monotonic() - record.last_s < _REFUSED_S:
                raise RequestRefused(f"The engine ended {record.num_ends} times while it worked on this request.")
            yield
            self._records.pop(key, None)

    def blame(self, requests: Iterable[ScoreRequest | GenerateRequest]) -> None:
        """Record that the engine process ended with these requests in flight."""
        keys = {_key(request) for request in requests}
        known = [key for key in keys if key in self._records]
        for key in keys:
            counts = len(keys) <= _FEW or known == [key]
            record = self._records.pop(key, _Record())
            self._records[key] = _Record(record.num_ends + counts, time.monotonic())
        while len(self._records) > _REMEMBERED:
            self._records.popitem(last=False)


def _key(request: ScoreRequest | GenerateRequest) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    sampling = request.sampling
    if isinstance(request, GenerateRequest):
        arrays = [request.prompt]
        said: tuple[object, ...] = (request.max_new_tokens, sorted(request.end_ids))
    else:
        arrays = [request.query, request.item_tokens, request.item_starts, request.context_lens, request.label_ids]
        arrays += [request.read_starts, request.read_within]
        said = (request.needs_log_sum_exp, request.layout)
    if sampling is not None:
        arrays += [sampling.keys, sampling.bias_ids, sampling.bias.view(np.int32)]
        drawn = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
        said += (*drawn, sampling.presence_penalty, sampling.frequency_penalty)
    for array in arrays:
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array, np.int32).data)
    digest.update(repr((*said, request.cache_salt, request.top_tokens)).encode())
    return digest.digest()
