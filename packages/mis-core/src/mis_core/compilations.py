"""Counts what JAX compiles in this process, to show that a ready engine compiles nothing."""

import jax
import jax.monitoring

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
