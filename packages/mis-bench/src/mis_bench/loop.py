"""The one loop that all measurements use: closed, open, or open with a limit on what is under way."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np

from mis_bench.targets.base import Answer, CallFailed, Prepared, Scores, Target

ENCODED_AHEAD = 256
"""Requests that are encoded before the clock starts. Of a longer load the rest is encoded while it runs."""

MOST_AT_ONCE = 1024
"""Requests under way in an open load without a limit of its own; a later one is sent late, which its latency shows."""


@dataclass(frozen=True, slots=True)
class Asked:
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


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of a request. Times are seconds after the beginning.

    Attributes:
        asked: The request.
        sent_s: When its first part was sent.
        done_s: When its last part was answered, or failed.
        scores: Of all items; None of a failed request.
        error: Code of the failure, or None.
        message: One sentence about it.
        cached_tokens: Query tokens that the target had kept before the first part, where it tells.
        chunks_s: Of each part, where there are several.
        stages_ms: Of all parts together, where the target tells.
    """

    asked: Asked
    sent_s: float
    done_s: float
    scores: Scores | None = None
    error: str | None = None
    message: str = ""
    cached_tokens: int | None = None
    chunks_s: list[float] = field(default_factory=list)
    stages_ms: dict[str, float] = field(default_factory=dict)


async def drive(
    target: Target,
    requests: Iterable[Asked],
    *,
    max_concurrency: int | None,
    timeout_s: float,
    seconds: float | None = None,
    on_sent: Callable[[Sent], None] = lambda _: None,
) -> tuple[list[Sent], float]:
    """Send requests, each when it is due and fewer than the limit are under way.

    The clock of a closed loop starts when its first request is sent, that of an open one when the first could be due.

    Without times of arrival that is a closed loop of `max_concurrency` callers; with them an open one. A limit as well
    makes requests wait for a free caller; they are late then, and their latency counts from when they were due.

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

    async def send(place: int, asked: Asked) -> None:
        try:
            found[place] = await _sent(target, asked, began, timeout_s)
        finally:
            permits.release()
        on_sent(found[place])

    async with asyncio.TaskGroup() as group:
        for place, asked in enumerate(waiting):
            if asked.due_s is not None:
                await asyncio.sleep(max(0.0, began + asked.due_s - time.perf_counter()))
            await permits.acquire()
            if seconds is not None and time.perf_counter() - began >= seconds:
                permits.release()
                break
            group.create_task(send(place, asked))
            await asyncio.sleep(0)  # let it go out before the next one is encoded
    sent = [found[place] for place in sorted(found)]
    is_closed = all(each.asked.due_s is None for each in sent)
    start = min((each.sent_s for each in sent), default=0.0) if is_closed else 0.0
    sent = [replace(each, sent_s=each.sent_s - start, done_s=each.done_s - start) for each in sent]
    return sent, max((each.done_s for each in sent), default=0.0)


async def _sent(target: Target, asked: Asked, began: float, timeout_s: float) -> Sent:
    answers: list[Answer] = []
    sent = time.perf_counter() - began
    try:
        if asked.refusal is not None:
            raise asked.refusal
        async with asyncio.timeout(timeout_s):
            for part in asked.parts:
                answers.append(await target.call(part))  # noqa: PERF401 - the next waits for its answer
    except TimeoutError:
        message = f"No answer within {timeout_s:g} s."
        return Sent(asked, sent, time.perf_counter() - began, error="timeout", message=message)
    except CallFailed as error:
        return Sent(asked, sent, time.perf_counter() - began, error=error.reason, message=str(error)[:300])
    stages: dict[str, float] = {}
    for answer in answers:
        for stage, milliseconds in answer.reply.stages_ms.items():
            stages[stage] = stages.get(stage, 0.0) + milliseconds
    return Sent(
        asked,
        answers[0].sent_s - began,
        answers[-1].done_s - began,
        scores=np.concatenate([answer.reply.scores for answer in answers]),
        cached_tokens=answers[0].reply.cached_tokens,
        chunks_s=[answer.done_s - answer.sent_s for answer in answers] if len(answers) > 1 else [],
        stages_ms=stages,
    )
