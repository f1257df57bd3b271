"""`POST /v1/decisions`, also `/decisions`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.tasks.decide.body import DecisionBody
from mis_core.tasks.decide.task import DECIDE
from mis_server.model import in_thread_if_large
from mis_server.schemas.bodies import described
from mis_server.schemas.decisions import EXAMPLE, DecisionReply
from mis_server.service import json_reply, service_of

router = APIRouter()

_BODY = described(DecisionBody, EXAMPLE)


@router.post("/v1/decisions", response_model=DecisionReply, openapi_extra=_BODY)
@router.post("/decisions", response_model=DecisionReply, openapi_extra=_BODY)
async def decide(request: Request) -> Response:
    """Answer questions about an input: is it so, which is it, how much is it.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    service = service_of(request)
    answered = await service.handle(DECIDE, request)
    reply = DecisionReply(
        **service.head("decision", request),
        answers=answered.result.answers,
        usage=answered.result.usage,
        calibration=answered.result.calibration,
    )
    values = sum(each.label_ids.size for each in answered.parsed.requests)
    return await in_thread_if_large(values, json_reply, reply, answered)
