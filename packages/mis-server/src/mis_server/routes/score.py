"""`POST /v1/score`, also `/score`."""

import msgspec
import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.tasks.score.body import ScoreBody
from mis_core.tasks.score.parsed import ParsedScore
from mis_core.tasks.score.result import ScoreResult
from mis_core.tasks.score.task import SCORE
from mis_server.model import in_thread_if_large
from mis_server.schemas.bodies import described
from mis_server.schemas.score import EXAMPLES, Placement, ScoreLayout, ScoreReply
from mis_server.service import HttpService, json_reply, service_of, usage_of

router = APIRouter()

_BODY = described(ScoreBody, *EXAMPLES)
_PIECE_SCORES = 8192  # encoded within a millisecond or two


@router.post("/score", response_model=ScoreReply, openapi_extra=_BODY)
@router.post("/v1/score", response_model=ScoreReply, openapi_extra=_BODY)
async def score(request: Request) -> Response:
    """Score every item behind the query: the probabilities of the label tokens after `query + item`.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    service = service_of(request)
    answered = await service.handle(SCORE, request)
    result = answered.result
    scores, logprobs = await in_thread_if_large(result.scores.size, _encode_both, answered.parsed, result)
    reply = ScoreReply(
        **service.head("score", request),
        scores=scores,
        token_logprobs=logprobs,
        errors=result.errors if answered.parsed.items.per_item else msgspec.UNSET,
        layout=await _layout(service, result) if answered.parsed.request.return_layout else msgspec.UNSET,
        usage=usage_of(result.usage),
        calibration=result.calibration,
    )
    return json_reply(reply, answered)


async def _layout(service: HttpService, result: ScoreResult) -> ScoreLayout:
    info, rows = service.model.client.info, result.placements
    return ScoreLayout(
        algorithm=result.algorithm,
        reason=result.reason,
        steps=result.steps,
        segments=result.segments,
        contexts=result.contexts,
        cached_tokens=result.usage.cached_tokens,
        query_tokens=result.query_tokens,
        step_tokens=0 if info is None else int(info.summary.get("step_tokens", 0)),
        placements=[] if rows is None else await in_thread_if_large(rows.size, _placements, rows),
    )


def _placements(rows: np.ndarray) -> list[Placement]:
    return [
        Placement(step, shard, row, None if item < 0 else item, tokens, context_tokens)
        for step, shard, row, item, tokens, context_tokens in rows.tolist()
    ]


def _encode_both(parsed: ParsedScore, result: ScoreResult) -> tuple[msgspec.Raw, msgspec.Raw | None]:
    logprobs = None if result.token_logprobs is None else _encode(parsed, result.token_logprobs)
    return _encode(parsed, result.scores), logprobs


def _encode(parsed: ParsedScore, values: np.ndarray) -> msgspec.Raw:
    """Return one list per item, as long as the item's list of labels, null for an item that was not scored.

    It is encoded in pieces, so that other threads get a turn.
    """
    is_label, items = parsed.request.label_ids >= 0, parsed.items
    is_same = len(is_label) == 1 and not items.errors
    scored = values if is_same else values[items.kept][np.broadcast_to(is_label, (len(items.kept), is_label.shape[1]))]
    if not np.isfinite(scored).all():
        raise FloatingPointError("The engine returned scores that are not finite.")
    lens = np.full(items.count, -1)
    lens[items.kept] = is_label.sum(axis=1)
    step = max(1, _PIECE_SCORES // values.shape[1])
    pieces = []
    for begin in range(0, len(values), step):
        rows: list[list[float] | None] = values[begin : begin + step].tolist()
        if not is_same:
            counts = lens[begin : begin + step].tolist()
            rows = [None if count < 0 or row is None else row[:count] for row, count in zip(rows, counts, strict=True)]
        pieces.append(msgspec.json.encode(rows)[1:-1])
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")
