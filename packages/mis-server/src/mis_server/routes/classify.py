"""`POST /v1/classify`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.tasks.classify.body import ClassifyBody
from mis_core.tasks.classify.task import CLASSIFY, ClassifyResult
from mis_server.model import in_thread_if_large
from mis_server.schemas.bodies import described
from mis_server.schemas.classify import EXAMPLES, Classification, ClassifyReply
from mis_server.service import json_reply, service_of, usage_of

router = APIRouter(tags=["classify"])


@router.post("/v1/classify", response_model=ClassifyReply, openapi_extra=described(ClassifyBody, *EXAMPLES))
@router.post("/classify", include_in_schema=False)
async def classify(request: Request) -> Response:
    """Classify texts by the model's classification head.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    service = service_of(request)
    answered = await service.handle(CLASSIFY, request)
    result = answered.result
    reply = ClassifyReply(
        **service.head("classify", request),
        data=await in_thread_if_large(result.probabilities.size, _data, result),
        usage=usage_of(result.usage),
        calibration=result.calibration,
    )
    return json_reply(reply, answered)


def _data(result: ClassifyResult) -> list[Classification]:
    rows = zip(result.labels, result.probabilities.tolist(), strict=True)
    return [Classification(index, label, probs, len(probs)) for index, (label, probs) in enumerate(rows)]
