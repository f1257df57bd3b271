"""The reference as a backend: chosen by name alone, since plain XLA fits everything before it."""

from mis_kernels.backends.laid_out import LaidOut, Limits
from mis_kernels.backends.protocol import Backend
from mis_kernels.backends.reference.attention import reference_attention
from mis_kernels.segments import Segments


class ReferenceBackend(Backend):
    """Attends densely; takes segments that were laid out for any backend."""

    name = "reference"
    platforms = ("cpu", "gpu", "tpu")

    def tile_capacity(self, tokens: int, limits: Limits) -> tuple[int, ...]:
        """No tiles."""
        return ()

    def lay_out(self, segments: Segments, page_size: int, capacity: tuple[int, ...] | None = None) -> LaidOut:
        """Add nothing."""
        return LaidOut(**vars(segments), tiles=None, backend=self)

    attend = staticmethod(reference_attention)


BACKENDS = (ReferenceBackend,)
