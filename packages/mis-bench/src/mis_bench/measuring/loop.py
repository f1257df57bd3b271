"""The one loop that all measurements use: closed, open, or open with a limit on what is under way."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from mis_bench.results.records import Sent
from mis_bench.targets.target import CallFailed, Prepared, Target, TargetReply

ENCODED_AHEAD = 256
"""Requests that are encoded before the clock starts. Of a longer load the rest is encoded while it runs."""

MOST_AT_ONCE = 1024
"""Requests under way in an open load without a limit of its own; a later one is sent late, which its latency shows."""


@dataclass(frozen=True, slots=True)
class DueRequest:
    """One request, encoded.

    Attributes:
        number: Which.
        items: Of all its parts.
        tokens: Likewise.
        parts: Calls that it takes, one after the other; more than one where a client cuts it.
        due_s: When it is to be sent, in seconds after the beginning; None: as soon as a caller is free.
        refusal: Why it could not be encoded, so that it fails without being sent.
    """

    number: int
    items: int
    tokens: int
    parts: Sequence[Prepared]
    due_s: float | None = None
    refusal: CallFailed | None = None


async def drive(
    target: Target,
    requests: Iterable[DueRequest],
    *,
    max_concurrency: int | None,
    timeout_s: float,
    seconds: float | None = None,
    on_sent: Callable[[Sent], None] = lambda _: None,
) -> tuple[list[Sent], float]:
    """Send requests, each when it is due and fewer than the limit are under way.

    Without times of arrival that is a closed loop of `max_concurrency` callers, whose clock starts when the first
    request is sent; with them an open one. A limit as well makes requests wait for a free caller; they are late then,
    and their latency counts from when they were due.

    Args:
        target: Whom to ask.
        requests: What, in order; may be endless if `seconds` is given.
        max_concurrency: Requests under way; None: `MOST_AT_ONCE`.
        timeout_s: A request that takes longer has failed, code `timeout`.
        seconds: No request is sent later than this.
        on_sent: Told of every finished request.

    Returns:
        What came of the requests, in their order, and the seconds from the start until the last was over.
    """
    waiting = iter(requests)
    waiting = chain(list(islice(waiting, ENCODED_AHEAD)), waiting)
    permits = asyncio.Semaphore(max_concurrency or MOST_AT_ONCE)
    found: dict[int, Sent] = {}
    began = time.perf_counter()

    async def send(index: int, asked: DueRequest) -> None:
        try:
            found[index] = await _sent(target, asked, began, timeout_s)
        finally:
            permits.release()
        on_sent(found[index])

    async with asyncio.TaskGroup() as sending:
        for index, asked in enumerate(waiting):
            if asked.due_s is not None:
                await asyncio.sleep(max(0.0, began + asked.due_s - time.perf_counter()))
            await permits.acquire()
            if seconds is not None and time.perf_counter() - began >= seconds:
                break
            sending.create_task(send(index, asked))
            await asyncio.sleep(0)  # let it go out before the next one is encoded
    sent = [found[index] for index in sorted(found)]
    if all(each.due_s is None for each in sent):
        start = min((each.sent_s for each in sent), default=0.0)
        sent = [each.model_copy(update={"sent_s": each.sent_s - start, "done_s": each.done_s - start}) for each in sent]
    return sent, max((each.done_s for each in sent), default=0.0)


async def ask_one(target: Target, asked: DueRequest, timeout_s: float) -> Sent:
    """Send one request by itself."""
    (sent,), _ = await drive(target, [asked], max_concurrency=1, timeout_s=timeout_s)
    return sent


async def _sent(target: Target, asked: DueRequest, began: float, timeout_s: float) -> Sent:
    answers: list[TargetReply] = []
    stages: dict[str, float] = {}
    sent, error, message = time.perf_counter(), None, ""
    try:
        if asked.refusal is not None:
            raise asked.refusal
        async with asyncio.timeout(timeout_s):
            for part in asked.parts:
                answers.append(await target.call(part))  # noqa: PERF401 - the next waits for its answer
    except TimeoutError:
        error, message = "timeout", f"No answer within {timeout_s:g} s."
    except CallFailed as failure:
        error, message = failure.reason, str(failure)[:300]
    for answer in answers:
        for stage, milliseconds in answer.reply.stages_ms.items():
            stages[stage] = stages.get(stage, 0.0) + milliseconds
    return Sent(
        number=asked.number,
        items=asked.items,
        tokens=asked.tokens,
        due_s=asked.due_s,
        sent_s=(sent if error else answers[0].sent_s) - began,
        done_s=(time.perf_counter() if error else answers[-1].done_s) - began,
        cached_tokens=answers[0].reply.cached_tokens if answers else None,
        error=error,
        message=message,
        stages_ms=stages,
        scores=None if error else np.concatenate([answer.reply.scores for answer in answers]),
    )
