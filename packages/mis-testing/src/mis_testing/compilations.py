"""Counts XLA compilations, to show that nothing compiles once an engine is ready."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# JAX reports this once for every executable that enters the process, compiled or read from the
# persistent cache; both mean that a shape was not prepared.
_EVENT = "/jax/core/compile/backend_compile_duration"


@dataclass(slots=True)
class CompilationCounter:
    """What was compiled while the counter was active.

    Attributes:
        names: Names of the compiled functions, in order, as JAX reports them.
    """

    names: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of compilations."""
        return len(self.names)


@contextmanager
def count_compilations() -> Iterator[CompilationCounter]:
    """Count compilations in this process, on all threads, until the block ends.

    A counter that hears nothing would make every test of absence pass, so it first compiles a trivial
    function and insists on hearing of that (a few milliseconds).

    Yields:
        The growing record; it stays readable after the block.

    Raises:
        RuntimeError: this version of JAX does not report compilations in the known way.
    """
    import jax
    import jax.monitoring

    compilations = CompilationCounter()

    def listen(event: str, duration_secs: float, **details: str | float) -> None:
        if event == _EVENT:
            compilations.names.append(str(details.get("fun_name", "?")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.jit(lambda: 0).lower().compile()
        if not compilations.count:
            raise RuntimeError(f"JAX {jax.__version__} does not report {_EVENT}; compilations cannot be counted.")
        compilations.names.clear()
        yield compilations
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
