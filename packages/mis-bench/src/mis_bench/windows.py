"""One window: a case sends its requests once, and what came of it is written down."""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mis_bench.demand import GATED, Demand
from mis_bench.loop import Asked, Sent, drive
from mis_bench.records import Call, Case, Phase, Window, digest
from mis_bench.targets.base import CallFailed, Scores, Target


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a window.

    Attributes:
        window: Its record.
        calls: Those of its requests, and of the one afterwards.
        scores: By number of a request, of those that were answered.
    """

    window: Window
    calls: list[Call]
    scores: dict[int, Scores]

    @property
    def failed(self) -> bool:
        """Whether no request was answered."""
        return not self.scores


async def measure(
    demand: Demand, target: Target, requests: Iterable[Asked], phase: Phase, turn: int, timeout_s: float
) -> Measured:
    """Make the target forget the queries of a cold case, or know that of a warm one; then send, and count."""
    case, load = demand.case, demand.case.load
    forgot = case.cache == "cold" and await _forgotten(target)
    primed = case.cache == "warm" and await _primed(demand, target, timeout_s)
    before, began = await target.counts(), datetime.datetime.now(datetime.UTC)
    sent, seconds = await drive(
        target,
        requests,
        max_concurrency=load.max_concurrency,
        timeout_s=timeout_s,
        seconds=None if phase == "warmup" else load.seconds,
    )
    after = await target.counts()
    calls = [call_of(case, phase, turn, each) for each in sent]
    if case.must_survive and phase == "timed":
        (last,), _ = await drive(target, [demand.afterwards(target)], max_concurrency=1, timeout_s=timeout_s)
        calls.append(call_of(case, "afterwards", turn, last))
    window = Window(
        case=case.name,
        phase=phase,
        round=turn,
        began=began,
        seconds=seconds,
        calls=len(sent),
        forgot=forgot,
        primed=primed,
        compilations=_risen(before, after, "compilations"),
        steps=_risen(before, after, "steps"),
        memory_bytes=_whole(after.get("memory_bytes")),
        device_memory_bytes=_whole(after.get("device_memory_bytes")),
    )
    scores = {each.asked.number: each.scores for each in sent if each.scores is not None}
    return Measured(window, calls, scores)


def call_of(case: Case, phase: Phase, turn: int, sent: Sent) -> Call:
    """Return the record of a request."""
    return Call(
        case=case.name,
        phase=phase,
        round=turn,
        number=sent.asked.number,
        due_s=sent.asked.due_s,
        sent_s=sent.sent_s,
        done_s=sent.done_s,
        items=sent.asked.items,
        tokens=sent.asked.tokens,
        cached_tokens=sent.cached_tokens,
        error=sent.error,
        message=sent.message,
        scores_sha256=None if sent.scores is None else digest(sent.scores),
        chunks_s=sent.chunks_s,
        stages_ms=sent.stages_ms,
    )


async def _forgotten(target: Target) -> bool:
    try:
        await target.forget()
    except CallFailed:  # it knows no way, or refused: what it had kept shows in the replies
        return False
    return True


async def _primed(demand: Demand, target: Target, timeout_s: float) -> bool:
    """Ask for a warm case's query, which the requests of other cases may have driven out."""
    request = demand.encoded(target, GATED, demand.numbered(GATED))
    (sent,), _ = await drive(target, [request], max_concurrency=1, timeout_s=timeout_s)
    return sent.error is None


def _risen(before: Mapping[str, float], after: Mapping[str, float], name: str) -> int | None:
    """Return how far a count rose; None if the target does not tell, or began to count anew."""
    if name not in before or name not in after or after[name] < before[name]:
        return None
    return int(after[name] - before[name])


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
