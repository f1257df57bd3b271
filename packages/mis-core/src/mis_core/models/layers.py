"""A decoder's layers: a row of data for each, and what follows from all rows together.

Weights have the same shapes in all layers, which are stacked and scanned. A row says what a layer has besides: in
which values it differs from its neighbours (decision 29).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mis_core.models.rope import RopeConfig
from mis_kernels.heads import HeadShape


@dataclass(frozen=True)
class Layer:
    """What a layer's attention sees, what it keeps, and how it knows positions.

    It sees both intervals of `mis_kernels.segments`, or what a window leaves of them. It keeps each token's keys and
    values in pages, as many of these as any other layer.

    Attributes:
        heads: Heads of its attention; keys and values are those of the KV heads.
        rope: By which queries and keys are turned; None: they are not, and the layer knows no positions.
        window: Positions that a token sees, its own the last; None: all.
    """

    heads: HeadShape
    rope: RopeConfig | None
    window: int | None = None


def kept_elements(layers: Sequence[Layer], head_dim: int) -> int:
    """Return the elements that all layers together keep of a token, in heads as wide as the cache's `head_dim`."""
    return sum(2 * layer.heads.kv_heads * head_dim for layer in layers)


def rope_kinds(layers: Sequence[Layer]) -> dict[RopeConfig | None, list[int]]:
    """Return the numbers of the layers that have each kind of RoPE; last, of those that have none."""
    kinds: dict[RopeConfig | None, list[int]] = {}
    for number, layer in enumerate(layers):
        kinds.setdefault(layer.rope, []).append(number)
    return dict(sorted(kinds.items(), key=lambda kind: kind[0] is None))


def windows_of(layers: Sequence[Layer]) -> tuple[int | None, ...]:
    """Return the windows that there are, each once; none if no layer slides."""
    windows = tuple(dict.fromkeys(layer.window for layer in layers))
    return () if windows == (None,) else windows
