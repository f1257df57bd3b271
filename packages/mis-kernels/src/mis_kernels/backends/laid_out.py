"""A step as a backend takes it: its segments, and the tile lists that the backend cut them into."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mis_kernels.segments import Segments


class StepLimits(NamedTuple):
    """The most that a step of one compiled shape may hold.

    Attributes:
        contexts: Contexts of a step.
        context_tokens: Tokens of the longest context.
        segment_tokens: Tokens of the longest segment that is not paged.
        decoding: Whether every row has a context of its own; else segments of one have runs of their own, as long as
            `Backend.alignment` says.
        context_tiles: Tiles of contexts that all blocks visit together, see `Backend.context_tile`; None: any number.
    """

    contexts: int
    context_tokens: int
    segment_tokens: int
    decoding: bool = False
    context_tiles: int | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LaidOut(Segments):
    """Segments with what a backend needs to visit them.

    Attributes:
        tiles: The same facts cut into the tiles that it visits, or None if it needs none.
    """

    tiles: Any

    def of_window(self, number: Array | int) -> Self:
        """Return what layers of one of several windows see, by its number in what was `stacked`."""
        tiles, window = jax.tree.map(lambda x: jnp.asarray(x)[number], (self.tiles, self.window))
        return dataclasses.replace(self, tiles=tiles, window=window)


def stacked(windows: Sequence[LaidOut]) -> LaidOut:
    """Put together what a step's layers see that have several windows: of one capacity, in host memory.

    Lists of tiles and the window itself get a leading axis; all else is the same for every window.
    """
    tiles, window = jax.tree.map(lambda *each: np.stack(each), *((each.tiles, each.window) for each in windows))
    return dataclasses.replace(windows[0], tiles=tiles, window=window)
