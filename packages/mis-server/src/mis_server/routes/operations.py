"""Routes for probes, dashboards and people on call: liveness, readiness, versions, settings, metrics."""

import asyncio
import dataclasses

import numpy as np
from fastapi import APIRouter
from starlette.responses import Response

import mis_core
import mis_server
from mis_core.errors import EngineUnavailable
from mis_core.scoring.request import ScoreRequest
from mis_server.schemas.operations import ServerInfo, Status, Version
from mis_server.service import ServiceOfApp
from mis_server.telemetry.metrics import CONTENT_TYPE

router = APIRouter(tags=["operations"])

_GENERATE_S = 30.0
_SECRETS = ("api_key", "admin_api_key", "ssl_keyfile_password")


@router.get("/health")
async def health() -> Status:
    """Answer 200 as long as this process runs, even while the engine starts."""
    return Status(status="ok")


@router.get("/ready")
async def ready(service: ServiceOfApp) -> Status:
    """Answer 200 if requests can be scored now, 503 otherwise."""
    if not service.client.ready:
        raise EngineUnavailable("The engine is not ready.")
    return Status(status="ready")


@router.get("/health_generate")
async def health_generate(service: ServiceOfApp) -> Status:
    """Score one token on the device; answer 503 if that fails or takes more than 30 s."""
    try:
        async with asyncio.timeout(_GENERATE_S):
            await service.client.score(_ONE_TOKEN)
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
    settings = {
        field.name: getattr(service.settings, field.name)
        for field in dataclasses.fields(service.settings)
        if field.name not in (*_SECRETS, "engine")
    }
    info = service.client.info
    return ServerInfo(
        version=mis_server.__version__,
        model=service.settings.model_name,
        settings=settings | dataclasses.asdict(service.settings.engine),
        engine={} if info is None else dict(info.summary),
        statistics=await service.statistics(),
    )


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
