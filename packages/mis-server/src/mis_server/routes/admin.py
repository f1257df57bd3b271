"""Routes for administrators: flush the prefix cache, record profiles."""

import time

from fastapi import APIRouter

from mis_server.schemas.operations import Flushed, Profiling, Status
from mis_server.service import ServiceOfApp

router = APIRouter(tags=["administration"])


@router.post("/flush_cache")
async def flush_cache(service: ServiceOfApp) -> Flushed:
    """Empty the prefix cache, except for what requests are using."""
    flushed = await service.model.client.operate("flush_cache")
    return Flushed(freed_pages=int(flushed["freed_pages"]))


@router.post("/start_profile")
async def start_profile(service: ServiceOfApp) -> Profiling:
    """Start a JAX profile of the engine, in a new folder under `--profile-dir`."""
    name = time.strftime("%Y-%m-%d-%H-%M-%S")
    await service.model.client.operate("start_profile", f"{service.settings.profile_dir}/{name}")
    return Profiling(status="started", folder=name)


@router.post("/stop_profile")
async def stop_profile(service: ServiceOfApp) -> Status:
    """Stop the profile; the reply comes when it is written."""
    await service.model.client.operate("stop_profile")
    return Status(status="stopped")
