"""What JAX compiles in this process: kept for the next start, and counted.

The count shows that a ready engine compiles nothing.
"""

import contextlib
import hashlib
import logging
import platform
from pathlib import Path

import jax
import jax.monitoring
from filelock import FileLock, Timeout

from mis_core.config import cache_folder

logger = logging.getLogger(__name__)

_MOST_BYTES = 4 * 2**30  # of compiled steps that are kept; the least recently used go first

_SECONDS_FOR_OTHERS = 10  # who hold JAX's lock of the folder, to read or write a step

_COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX reports this once for each executable, whether compiled or read from the persistent cache."""


class Compilations:
    """Counts executables that enter this process, on all threads, from now until `stop`."""

    def __init__(self) -> None:
        self._heard = 0
        self._is_listening = True
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        # A counter that hears nothing would prove any claim that nothing compiles.
        jax.jit(lambda: 0).lower().compile()
        self._can_hear = self._heard > 0
        self._heard = 0

    @property
    def count(self) -> int | None:
        """How many so far; None if this version of JAX does not report them in the known way."""
        return self._heard if self._can_hear else None

    def stop(self) -> None:
        """Stop counting; twice is fine."""
        if self._is_listening:
            self._is_listening = False
            jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **details: str | float) -> None:
        self._heard += event == _COMPILED


def keep_compiled(directory: str | None) -> None:
    """Keep compiled steps in a folder, and read those of earlier starts from it.

    Args:
        directory: The folder; by default that of `JAX_COMPILATION_CACHE_DIR`, or else `~/.cache/mis`.
    """
    if directory is None and jax.config.jax_compilation_cache_dir is not None:  # pyrefly: ignore[missing-attribute]
        return
    folder = cache_folder(directory)
    if jax.default_backend() == "cpu":
        folder /= f"cpu-{_executable_here()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logger.warning("Compiled steps are not kept: %s: %s.", folder, error.strerror)
        return
    _forget_torn(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", _MOST_BYTES)  # with a limit JAX also locks the folder
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _forget_torn(folder: Path) -> None:
    """Remove entries of processes that were killed while they wrote: JAX would write no other behind them."""
    with contextlib.suppress(Timeout, OSError), FileLock(folder / ".lockfile", timeout=_SECONDS_FOR_OTHERS):
        for entry in folder.glob("*-cache"):
            if not entry.with_name(f"{entry.name.removesuffix('-cache')}-atime").exists():
                entry.unlink(missing_ok=True)


def _executable_here() -> str:
    """Return a name for what this CPU can execute: a step that was compiled for another may end the process."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else [platform.processor()]
    said = next((line for line in lines if line.startswith(("flags", "Features"))), lines[0])
    words = " ".join([platform.machine(), *sorted(said.split())])
    return hashlib.blake2b(words.encode(), digest_size=8).hexdigest()
