"""`POST /v1/rerank`, also `/v2/rerank` and `/rerank`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from mis_core.tasks.rerank import RERANK
from mis_server.schemas.bodies import described
from mis_server.schemas.rerank import RerankBody, RerankReply
from mis_server.service import ServiceOfApp, in_thread_if_large, json_reply

router = APIRouter()

_BODY = described(RerankBody)


@router.post("/v1/rerank", response_model=RerankReply, openapi_extra=_BODY)
@router.post("/v2/rerank", response_model=RerankReply, openapi_extra=_BODY)
@router.post("/rerank", response_model=RerankReply, openapi_extra=_BODY)
async def rerank(request: Request, service: ServiceOfApp) -> Response:
    """Sort documents by how well each answers a query.

    The header `x-request-timeout` gives a deadline in seconds, after which the reply is 504.
    """
    answered = await service.handle(RERANK, request)
    ranking = answered.result
    reply = RerankReply(
        id=f"rerank-{request.state.request_id}",
        model=service.settings.model_name,
        recipe=ranking.recipe,
        results=ranking.results,
        errors=ranking.errors,
        usage=ranking.usage,
        meta=ranking.meta,
    )
    texts = answered.parsed.texts or {}
    characters = sum(map(len, texts.values()))
    return await in_thread_if_large(characters + len(ranking.results), json_reply, reply, answered)
