"""`GET /v1/models` and `/v1/models/{id}`."""

import datetime

import msgspec
from fastapi import APIRouter

from mis_core.errors import RequestError
from mis_core.tasks.decide.system_one.task import SYSTEM_ONE
from mis_server.schemas.operations import DescribedModel, ModelCard, ModelList, PartOfModel
from mis_server.service import HttpService, ServiceOfApp

router = APIRouter()


@router.get("/v1/models")
async def list_models(service: ServiceOfApp) -> ModelList:
    """List the names of the served model, as OpenAI's clients read them, and in `models` as TypeSafe's do."""
    names = service.settings.model_names
    return ModelList(data=[_card(service, name) for name in names], models=_described(service, names))


@router.get("/v1/models/{model_id:path}")
async def get_model(model_id: str, service: ServiceOfApp) -> ModelCard:
    """Describe the served model; names may contain slashes."""
    if model_id not in service.settings.model_names:
        raise RequestError("model_not_found", "This model is not served; GET /v1/models lists the served one.", "model")
    return _card(service, model_id)


def _card(service: HttpService, name: str) -> ModelCard:
    info = service.model.client.info
    return ModelCard(
        id=name,
        created=0 if info is None else info.created,
        root=service.settings.engine.model,
        max_model_len=None if info is None else info.context_length,
        tasks=list(service.model.tasks),
        recipe=service.model.recipe,
        parts=[] if info is None else [PartOfModel(**msgspec.structs.asdict(part)) for part in info.parts],
    )


def _described(service: HttpService, names: tuple[str, ...]) -> list[DescribedModel]:
    """Return the names that System One's routes take."""
    info = service.model.client.info
    if info is None or "decide" not in service.model.tasks:
        return []
    date = datetime.datetime.fromtimestamp(info.created, datetime.UTC).date().isoformat()
    about = f"{service.name}, served by MIS."
    return [
        DescribedModel(name=name, description=about, release_date=date)
        for name in dict.fromkeys((*names, *SYSTEM_ONE.model_names))
    ]
