"""`POST /v1/classify`."""

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.tasks.classify import CLASSIFY, ClassifyBody, ClassifyResult
from mis_server.model import in_thread_if_large
from mis_server.schemas.bodies import described
from mis_server.schemas.classify import EXAMPLES, Classification, ClassifyReply
from mis_server.schemas.score import PromptTokensDetails, ScoreUsage
from mis_server.service import ServiceOfApp, json_reply

router = APIRouter(tags=["classify"])

_DOCUMENT = described(ClassifyBody, *EXAMPLES)


@router.post("/v1/classify", response_model=ClassifyReply, openapi_extra=_DOCUMENT)
@router.post("/classify", include_in_schema=False)
async def classify(request: Request, service: ServiceOfApp) -> Response:
    """Classify texts by the model's classification head.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    answered = await service.handle(CLASSIFY, request)
    result, usage = answered.result, answered.result.usage
    reply = ClassifyReply(
        id=f"classify-{request.state.request_id}",
        created=int(time.time()),
        model=service.settings.model_name,
        data=await in_thread_if_large(result.probabilities.size, _data, result),
        usage=ScoreUsage(
            prompt_tokens=usage.prompt_tokens,
            total_tokens=usage.prompt_tokens,
            prompt_tokens_details=PromptTokensDetails(usage.cached_tokens),
        ),
    )
    return json_reply(reply, answered)


def _data(result: ClassifyResult) -> list[Classification]:
    rows = zip(result.labels, result.probabilities.tolist(), strict=True)
    return [Classification(index, label, probs, len(probs)) for index, (label, probs) in enumerate(rows)]
