"""Recording of a trace: of this process, or of a server through its /start_profile."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import jax

from mis_bench.profile.records import ProfileError


@contextmanager
def recording_here(folder: Path, *, python_calls: bool) -> Iterator[None]:
    """Record this process until the block ends; every Python call as well slows the host down.

    Raises:
        ProfileError: a profile is under way in this process.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = int(python_calls)
    options.enable_hlo_proto = True  # has the scopes of every operation
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError:
        raise ProfileError("A profile is under way in this process; stop it first.") from None
    try:
        yield
    finally:
        jax.profiler.stop_trace()


@contextmanager
def recording_server(folder: Path, url: str, profile_dir: Path, key: str | None) -> Iterator[None]:
    """Record a server's engine until the block ends, and copy the files from its `--profile-dir`.

    Raises:
        ProfileError: a profile is under way there, the administrator's key is wrong, or the server does not answer.
        OSError: its files cannot be copied.
    """
    there = _post(url, "/start_profile", key)["folder"]
    try:
        yield
    finally:
        _post(url, "/stop_profile", key)
    shutil.copytree(profile_dir / there, folder)


def _post(url: str, path: str, key: str | None) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx.post(url.rstrip("/") + path, headers=headers, timeout=300)  # large traces take a while to write
    except httpx.HTTPError as error:
        raise ProfileError(f"{url} does not answer: {error}.") from None
    if reply.is_error:
        is_locked = reply.status_code == 401
        why = "give its key with --option admin_key=KEY." if is_locked else f"{reply.status_code} {reply.text[:300]}"
        raise ProfileError(f"{url} refuses {path}: {why}")
    return reply.json()
