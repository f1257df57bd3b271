"""What an operator's probes ask: is the front alive, can the engine answer."""

from fastapi import APIRouter

from mis_core.errors import EngineUnavailable
from mis_server.service import ServiceOfApp

router = APIRouter()


@router.get("/health")
async def health() -> dict[str, str]:
    """Answer as long as this process lives, also while the engine starts."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(service: ServiceOfApp) -> dict[str, str]:
    """Answer 200 when requests can be scored now, 503 otherwise."""
    if not service.client.ready:
        raise EngineUnavailable("The engine is not ready.")
    return {"status": "ready"}
