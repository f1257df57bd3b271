"""`POST /v1/rerank`, also `/v2/rerank` and `/rerank`."""

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.tasks.path.service import Answered
from mis_core.tasks.rerank.body import RerankBody
from mis_core.tasks.rerank.ranking import Ranking
from mis_core.tasks.rerank.task import RERANK, ParsedRerank
from mis_server.model import OBJECT_VALUES, in_thread_if_large
from mis_server.schemas.bodies import described
from mis_server.schemas.rerank import EXAMPLE, RerankReply, RerankResult
from mis_server.service import json_reply, service_of

router = APIRouter()

_BODY = described(RerankBody, EXAMPLE)


@router.post("/v1/rerank", response_model=RerankReply, openapi_extra=_BODY)
@router.post("/v2/rerank", response_model=RerankReply, openapi_extra=_BODY)
@router.post("/rerank", response_model=RerankReply, openapi_extra=_BODY)
async def rerank(request: Request) -> Response:
    """Sort documents by how well each answers a query.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    service = service_of(request)
    answered = await service.handle(RERANK, request)
    characters = sum(map(len, (answered.parsed.texts or {}).values()))
    values = characters + OBJECT_VALUES * len(answered.result.results)
    name, model = f"rerank-{request.state.request_id}", service.name
    return await in_thread_if_large(values, _reply, name, model, answered)


def _reply(name: str, model: str, answered: Answered[ParsedRerank, Ranking]) -> Response:
    ranking = answered.result
    results = [
        RerankResult(each.index, each.relevance_score, msgspec.UNSET if each.document is None else each.document)
        for each in ranking.results
    ]
    reply = RerankReply(
        id=name,
        model=model,
        recipe=ranking.recipe,
        results=results,
        errors=ranking.errors,
        usage=ranking.usage,
        meta=ranking.meta,
        calibration=ranking.calibration,
    )
    return json_reply(reply, answered)
