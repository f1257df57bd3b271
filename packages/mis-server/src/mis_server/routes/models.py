"""`GET /v1/models` and `/v1/models/{id}`."""

from fastapi import APIRouter

from mis_core.errors import RequestError
from mis_server.schemas.operations import ModelCard, ModelList
from mis_server.service import HttpService, ServiceOfApp

router = APIRouter()


@router.get("/v1/models")
async def list_models(service: ServiceOfApp) -> ModelList:
    """List the served model."""
    return ModelList(data=[_card(service)])


@router.get("/v1/models/{model_id:path}")
async def get_model(model_id: str, service: ServiceOfApp) -> ModelCard:
    """Describe the served model; names may contain slashes."""
    if model_id != service.name:
        raise RequestError("model_not_found", "This model is not served; GET /v1/models lists the served one.", "model")
    return _card(service)


def _card(service: HttpService) -> ModelCard:
    info = service.model.client.info
    return ModelCard(
        id=service.name,
        created=0 if info is None else info.created,
        root=service.settings.engine.model,
        max_model_len=None if info is None else info.context_length,
        tasks=list(service.model.tasks),
        recipe=service.model.recipe,
    )
