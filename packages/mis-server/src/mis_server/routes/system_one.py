"""`POST /v1/systemone`, also `/api/v1/systemone` and `/api/alpha/decisions`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.tasks.decide.system_one.body import SystemOneBody
from mis_core.tasks.decide.system_one.task import SYSTEM_ONE
from mis_server.model import in_thread_if_large
from mis_server.schemas.bodies import described
from mis_server.schemas.system_one import EXAMPLE, PATHS, SystemOneError, SystemOneReply
from mis_server.service import json_reply, service_of

router = APIRouter()


async def system_one(request: Request) -> Response:
    """Answer questions about a state, as TypeSafe's System One does: is it so, which is it, how much is it.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    service = service_of(request)
    answered = await service.handle(SYSTEM_ONE, request)
    result = answered.result
    reply = SystemOneReply(
        model=service.name,
        answers=result.answers,
        usage=result.usage,
        x_abstained=result.x_abstained,
        x_joint=result.x_joint,
        x_errors=result.x_errors,
    )
    values = sum(each.label_ids.size for each in answered.parsed.requests)
    return await in_thread_if_large(values, json_reply, reply, answered)


for _path in PATHS:
    router.post(
        _path,
        response_model=SystemOneReply,
        responses={"default": {"model": SystemOneError, "description": "An error."}},
        openapi_extra=described(SystemOneBody, EXAMPLE),
    )(system_one)
