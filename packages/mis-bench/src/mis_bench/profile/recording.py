"""Recording of a trace: of this process, or of a server through its /start_profile."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mis_bench.profile.trace import TraceError

_HOST_TRACER_LEVEL = 2  # as `jax.profiler.ProfileOptions` has it


class ProfileError(Exception):
    """A scenario cannot be profiled; one sentence says why and what would help."""


@dataclass(slots=True)
class Recording:
    """A trace under way, or ended.

    Attributes:
        folder: Where its files are, or will be.
        python_calls: Whether it has every Python call.
        server_folder: Its folder under the server's `--profile-dir`.
        is_here: Whether the files are in `folder`, which those of a server need not be.
    """

    folder: Path
    python_calls: bool
    server_folder: str | None = None
    is_here: bool = field(default=True)


@contextmanager
def recording_here(folder: Path, *, python_calls: bool) -> Iterator[Recording]:
    """Record this process until the block ends.

    Args:
        folder: For the files.
        python_calls: Also record every Python call, which slows the host down.

    Raises:
        ProfileError: a profile is under way in this process.
    """
    import jax

    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = _HOST_TRACER_LEVEL
    options.python_tracer_level = int(python_calls)
    options.enable_hlo_proto = True  # has the scopes of every operation
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError:
        raise ProfileError("A profile is under way in this process; stop it first.") from None
    try:
        yield Recording(folder, python_calls)
    finally:
        jax.profiler.stop_trace()


@contextmanager
def recording_server(folder: Path, url: str, *, key: str | None, profile_dir: Path | None) -> Iterator[Recording]:
    """Record a server's engine until the block ends.

    Args:
        folder: For a copy of the files.
        url: Of the server, without a path.
        key: Its administrator's key, or its API key if it has no other.
        profile_dir: Its `--profile-dir`, if that can be read here.

    Raises:
        ProfileError: a profile is under way there, the key is wrong, or the server does not answer.
        TraceError: the files are not where `profile_dir` says.
    """
    started = _post(url, "/start_profile", key)
    recording = Recording(folder, python_calls=True, server_folder=str(started.get("folder")), is_here=False)
    try:
        yield recording
    finally:
        _post(url, "/stop_profile", key)
    if profile_dir is not None:
        try:
            shutil.copytree(profile_dir / str(recording.server_folder), folder, dirs_exist_ok=True)
        except OSError as error:
            raise TraceError(f"The server's trace cannot be copied from {profile_dir}: {error}") from None
        recording.is_here = True


def _post(url: str, path: str, key: str | None) -> dict[str, Any]:
    import httpx

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx.post(url.rstrip("/") + path, headers=headers, timeout=300)  # large traces take a while to write
    except httpx.HTTPError as error:
        raise ProfileError(f"{url} does not answer: {error}.") from None
    if reply.status_code == 401:
        raise ProfileError(f"{url} refuses {path}: give its key with --option admin_key=KEY.")
    try:
        body = reply.json()
    except ValueError:
        body = {}
    if reply.status_code != 200:
        message = body.get("error", {}).get("message") if isinstance(body.get("error"), dict) else None
        raise ProfileError(f"{url} refuses {path}: {message or f'status {reply.status_code}'}")
    return body
