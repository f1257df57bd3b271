"""A step as a backend takes it: its segments, and the tile lists that the backend cut them into."""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import jax

from mis_kernels.segments import Segments

if TYPE_CHECKING:
    from mis_kernels.backends.protocol import Backend


class Limits(NamedTuple):
    """The most that a step of one compiled shape may hold.

    Attributes:
        contexts: Contexts of a step.
        context_tokens: Tokens of the longest context.
        segment_tokens: Tokens of the longest segment that is not paged.
    """

    contexts: int
    context_tokens: int
    segment_tokens: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LaidOut(Segments):
    """Segments with what a backend needs to visit them.

    Attributes:
        tiles: The same facts cut into the tiles that it visits, or None if it needs none.
        backend: Whose tiles these are (static).
    """

    tiles: Any
    backend: "Backend" = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, segments: Segments, tiles: Any, backend: "Backend") -> Self:
        """Put segments and tiles together."""
        facts = {field.name: getattr(segments, field.name) for field in dataclasses.fields(Segments)}
        return cls(**facts, tiles=tiles, backend=backend)
