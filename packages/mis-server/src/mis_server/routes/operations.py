"""Routes for probes, dashboards and people on call: liveness, readiness, versions, settings, metrics."""

import asyncio
import dataclasses
from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.responses import Response

import mis_core
import mis_server
from mis_core.errors import EngineUnavailable
from mis_core.requests import ScoreRequest
from mis_server.schemas.operations import FlatServerInfo, Load, ModelInfo, ServerInfo, Status, Version
from mis_server.service import HttpService, ServiceOfApp
from mis_server.telemetry.metrics import CONTENT_TYPE

router = APIRouter(tags=["operations"])

_GENERATE_S = 30.0
_SECRETS = ("api_key", "admin_api_key", "ssl_keyfile_password")


@router.get("/health")
@router.get("/ping")
async def health() -> Status:
    """Answer 200 as long as this process runs, even while the engine starts."""
    return Status(status="ok")


@router.get("/ready")
async def ready(service: ServiceOfApp) -> Status:
    """Answer 200 if requests can be scored now, 503 otherwise."""
    if not service.model.ready:
        raise EngineUnavailable("The engine is not ready.")
    service.model.tokenizers.check()
    if not service.model.tokenizers.ready:
        raise EngineUnavailable("The tokenizer is not ready.")
    return Status(status="ready")


@router.get("/health_generate")
async def health_generate(service: ServiceOfApp) -> Status:
    """Score one token on the device; answer 503 if that fails or takes more than 30 s."""
    try:
        async with asyncio.timeout(_GENERATE_S):
            await service.model.client.score(_ONE_TOKEN)
    except TimeoutError:
        raise EngineUnavailable("The engine does not answer.") from None
    return Status(status="ok")


@router.get("/version")
async def version() -> Version:
    """Return the versions of the packages."""
    return Version(version=mis_server.__version__, mis_core=mis_core.__version__)


@router.get("/server_info")
async def server_info(service: ServiceOfApp) -> ServerInfo:
    """Return every setting except secrets, what was loaded, and the engine's statistics."""
    return ServerInfo(
        version=mis_server.__version__,
        model=service.name,
        settings=_settings(service),
        engine=_loaded(service),
        statistics=await service.statistics(),
    )


@router.get("/get_server_info")
async def get_server_info(service: ServiceOfApp) -> FlatServerInfo:
    """Return what `/server_info` has in the shape of SGLang: flat, with the statistics as `internal_states`."""
    named = {
        "model_path": service.settings.engine.model,
        "tokenizer_path": service.settings.engine.tokenizer,
        "served_model_name": service.name,
        "version": mis_server.__version__,
        "internal_states": [await service.statistics()],
    }
    return FlatServerInfo.model_validate(_settings(service) | _loaded(service) | named)


@router.get("/model_info")
@router.get("/get_model_info")
async def model_info(service: ServiceOfApp) -> ModelInfo:
    """Describe the served model with the names of SGLang."""
    info = service.model.client.info
    tasks = service.model.tasks
    return ModelInfo(
        model_path=service.settings.engine.model,
        tokenizer_path=service.settings.engine.tokenizer,
        served_model_name=service.name,
        is_generation=info is None or not info.head_labels,
        tasks=list(tasks),
        context_length=None if info is None else info.context_length,
        vocab_size=None if info is None else info.vocab_size,
    )


@router.get("/load")
async def load(service: ServiceOfApp) -> Load:
    """Return how many requests and tokens are under way; asks neither the engine nor the device."""
    admission, reported = service.admission, service.model.client.statistics
    states, free = (int(reported.get(name, 0)) for name in ("states", "free_states"))
    return Load(
        server_load=admission.requests,
        requests_waiting=service.requests_waiting,
        tokens_under_way=admission.tokens,
        states_used=states - free,
        states_free=free,
    )


def _settings(service: HttpService) -> dict[str, Any]:
    """Return every setting, the engine's too, except secrets."""
    settings = {
        field.name: getattr(service.settings, field.name)
        for field in dataclasses.fields(service.settings)
        if field.name not in (*_SECRETS, "engine")
    }
    return settings | dataclasses.asdict(service.settings.engine)


def _loaded(service: HttpService) -> dict[str, str | int | float]:
    info = service.model.client.info
    return {} if info is None else dict(info.summary)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(service: ServiceOfApp) -> Response:
    """Return the metrics in Prometheus' text format."""
    await service.statistics()
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)


_ONE_TOKEN = ScoreRequest(
    query=np.zeros(1, np.int32),
    item_tokens=np.zeros(1, np.int32),
    item_starts=np.array([0, 1], np.int32),
    context_lens=np.ones(1, np.int32),
    label_ids=np.zeros((1, 1), np.int32),
    apply_softmax=True,
)
