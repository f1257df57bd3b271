"""`POST /v1/systemone`, also `/api/v1/systemone` and `/api/alpha/decisions`."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.tasks.decide.system_one.answers import SystemOneResult
from mis_core.tasks.decide.system_one.body import SystemOneBody
from mis_core.tasks.decide.system_one.task import SYSTEM_ONE, ParsedSystemOne
from mis_core.tasks.path.service import Answered
from mis_server.model import in_thread_if_large
from mis_server.schemas.bodies import described
from mis_server.schemas.system_one import EXAMPLE, ONE_STATE_PATHS, SystemOneError, SystemOneReply
from mis_server.service import HttpService, json_reply, service_of

SystemOneAnswered = Answered[ParsedSystemOne, SystemOneResult]

ERRORS: dict[int | str, Any] = {"default": {"model": SystemOneError, "description": "An error."}}
"""What FastAPI's `responses` needs for errors of System One."""

router = APIRouter()


async def system_one(request: Request) -> Response:
    """Answer questions about a state, as TypeSafe's System One does: is it so, which is it, how much is it.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    service = service_of(request)
    answered = await service.handle(SYSTEM_ONE, request)
    return await in_thread_if_large(num_values(answered), json_reply, reply_of(service, answered), answered)


def reply_of(service: HttpService, answered: SystemOneAnswered) -> SystemOneReply:
    """Return the reply to a request about one state."""
    result = answered.result
    return SystemOneReply(
        model=service.name,
        answers=result.answers,
        usage=result.usage,
        x_abstained=result.x_abstained,
        x_joint=result.x_joint,
        x_errors=result.x_errors,
        x_calibration=result.x_calibration,
    )


def num_values(answered: SystemOneAnswered) -> int:
    """Return how many numbers the reply has, for `in_thread_if_large`."""
    return sum(each.label_ids.size for each in answered.parsed.requests)


for _path in ONE_STATE_PATHS:
    router.post(
        _path, response_model=SystemOneReply, responses=ERRORS, openapi_extra=described(SystemOneBody, EXAMPLE)
    )(system_one)
