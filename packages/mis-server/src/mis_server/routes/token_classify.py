"""`POST /v1/token_classify`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.tasks.classify.body import ClassifyBody
from mis_core.tasks.classify.token_task import TOKEN_CLASSIFY, TOKEN_VALUES, TokenClassifyResult
from mis_server.model import in_thread_if_large
from mis_server.schemas.bodies import described
from mis_server.schemas.token_classify import EXAMPLES, TokenClassifyReply, TokenLabel, TokenLabels
from mis_server.service import json_reply, service_of, usage_of

router = APIRouter(tags=["classify"])


@router.post("/v1/token_classify", response_model=TokenClassifyReply, openapi_extra=described(ClassifyBody, *EXAMPLES))
@router.post("/token_classify", include_in_schema=False)
async def token_classify(request: Request) -> Response:
    """Label every token of texts by the model's head.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    service = service_of(request)
    answered = await service.handle(TOKEN_CLASSIFY, request)
    result = answered.result
    reply = TokenClassifyReply(
        **service.head("token-classify", request),
        labels=list(result.labels),
        data=await in_thread_if_large(result.probabilities.size + TOKEN_VALUES * len(result.best), _data, result),
        usage=usage_of(result.usage),
    )
    return json_reply(reply, answered)


def _data(result: TokenClassifyResult) -> list[TokenLabels]:
    return [
        TokenLabels(
            index,
            [TokenLabel(each.id, each.text, each.start, each.end, each.label, each.probabilities) for each in tokens],
        )
        for index, tokens in enumerate(result)
    ]
