"""`POST /v1/score`."""

import time

import msgspec
import numpy as np
from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mis_core.errors import EngineUnavailable
from mis_core.request import ScoreRequest
from mis_server.bodies import read_json_body, unless_disconnected
from mis_server.deadline import deadline
from mis_server.schemas.score import ScoreBody, ScoreReply
from mis_server.service import Service


class _DirectRoute(APIRoute):
    """A route that hands the request to its function as it is; FastAPI's parameters cost a tenth of a millisecond."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of the route's method; others as FastAPI does."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


router = APIRouter(route_class=_DirectRoute)

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
    with service.admission.place() as place:
        async with deadline(request, settings.request_timeout):
            body = await read_json_body(request, settings.body_timeout)
            scored, result = await unless_disconnected(request, service.score(body, place))
    usage = result.usage
    reply = {  # the words of `ScoreReply`
        "id": f"score-{request.state.request_id}",
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
    return Response(msgspec.json.encode(reply), media_type="application/json")


def _rows(request: ScoreRequest, values: np.ndarray) -> list[list[float]]:
    """Return one list per item, as long as the item's list of labels."""
    is_label = request.label_ids >= 0
    if is_label.all():
        _check_finite(values)
        return values.tolist()
    _check_finite(values[is_label])
    rows = values.tolist()
    return [row[:count] for row, count in zip(rows, is_label.sum(axis=1), strict=True)]


def _check_finite(values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise FloatingPointError("The engine returned scores that are not finite.")
