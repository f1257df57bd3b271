"""`POST /v1/score`."""

import time

import msgspec
import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.errors import EngineUnavailable
from mis_core.request import ScoreRequest
from mis_server.bodies import read_json_body
from mis_server.patience import Patience, seconds_of
from mis_server.schemas.score import ScoreBody, ScoreReply
from mis_server.service import Service

router = APIRouter()

_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": ScoreBody.model_json_schema()}}}}


@router.post("/v1/score", response_model=ScoreReply, openapi_extra=_BODY)
async def score(request: Request) -> Response:
    """Score every item behind the query: the probabilities of the label tokens after `query + item`.

    The header `x-request-timeout` names the seconds after which the client no longer needs an answer; it is 504 then.
    """
    service: Service = request.app.state.service
    if not service.client.ready:
        raise EngineUnavailable("The engine is not ready.")
    settings = service.settings
    seconds = seconds_of(request, settings.request_timeout)
    with Patience(request, seconds, settings.body_timeout) as patience:
        with service.admission.body():
            body = await read_json_body(request)
        patience.body_arrived()
        with service.admission.place() as place:
            scored, result = await service.score(body, place)
    usage = result.usage
    reply = {  # the words of `ScoreReply`
        "id": f"score-{request.scope['state']['request_id']}",
        "object": "scoring",
        "created": int(time.time()),
        "model": settings.model_name,
        "scores": _rows(scored, result.scores),
        "token_logprobs": None if result.token_logprobs is None else _rows(scored, result.token_logprobs),
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": 0,
            "total_tokens": usage.prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
    }
    timing = ", ".join(f"{stage};dur={milliseconds:.1f}" for stage, milliseconds in result.timings_ms.items())
    return Response(msgspec.json.encode(reply), headers={"server-timing": timing}, media_type="application/json")


def _rows(request: ScoreRequest, values: np.ndarray) -> list[list[float]]:
    """Return one list per item, as long as the item's list of labels."""
    if len(request.label_ids) == 1:
        _check_finite(values)
        return values.tolist()
    is_label = request.label_ids >= 0
    _check_finite(values[is_label])
    rows = values.tolist()
    return [row[:count] for row, count in zip(rows, is_label.sum(axis=1), strict=True)]


def _check_finite(values: np.ndarray) -> None:
    if np.count_nonzero(np.isfinite(values)) < values.size:
        raise FloatingPointError("The engine returned scores that are not finite.")
