"""`POST /v1/score`, also `/score`."""

import time

import msgspec
import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.scoring.request import ScoreRequest, ScoreResult
from mis_core.scoring.service import SCORE
from mis_server.schemas.score import PromptTokensDetails, ScoreBody, ScoreReply, ScoreUsage
from mis_server.service import ModelService, in_thread_if_large, json_reply

router = APIRouter()

_PIECE_SCORES = 8192  # encoded within a millisecond or two

_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": ScoreBody.model_json_schema()}}}}


@router.post("/score", response_model=ScoreReply, openapi_extra=_BODY)
@router.post("/v1/score", response_model=ScoreReply, openapi_extra=_BODY)
async def score(request: Request) -> Response:
    """Score every item behind the query: the probabilities of the label tokens after `query + item`.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    service: ModelService = request.app.state.service  # resolving a dependency costs a tenth of a small request
    answered = await service.handle(SCORE, request)
    result = answered.result
    scores, logprobs = await in_thread_if_large(result.scores.size, _encode_both, answered.parsed, result)
    usage = result.usage
    reply = ScoreReply(
        id=f"score-{request.state.request_id}",
        created=int(time.time()),
        model=service.settings.model_name,
        scores=scores,
        token_logprobs=logprobs,
        usage=ScoreUsage(
            prompt_tokens=usage.prompt_tokens,
            total_tokens=usage.prompt_tokens,
            prompt_tokens_details=PromptTokensDetails(usage.cached_tokens),
        ),
    )
    return json_reply(reply, answered)


def _encode_both(request: ScoreRequest, result: ScoreResult) -> tuple[msgspec.Raw, msgspec.Raw | None]:
    logprobs = None if result.token_logprobs is None else _encode(request, result.token_logprobs)
    return _encode(request, result.scores), logprobs


def _encode(request: ScoreRequest, values: np.ndarray) -> msgspec.Raw:
    """Return one list per item, as long as the item's list of labels; in pieces, so that other threads get a turn."""
    is_label = request.label_ids >= 0
    is_cut = len(is_label) > 1
    if not np.isfinite(values[is_label] if is_cut else values).all():
        raise FloatingPointError("The engine returned scores that are not finite.")
    lens = is_label.sum(axis=1).tolist()
    step = max(1, _PIECE_SCORES // values.shape[1])
    pieces = []
    for begin in range(0, len(values), step):
        rows = values[begin : begin + step].tolist()
        if is_cut:
            rows = [row[:count] for row, count in zip(rows, lens[begin : begin + step], strict=True)]
        pieces.append(msgspec.json.encode(rows)[1:-1])
    return msgspec.Raw(b"[" + b",".join(pieces) + b"]")
