"""A decoder's layers: a row of data for each, and what follows from all rows together.

Weights have the same shapes in all layers of a kind, which are stacked and scanned. A row says what a layer has
besides: in which values it differs from its neighbours (decision 29). There are two kinds, layers that attend and
recurrent ones. In a model that has both, the same number of recurrent layers comes before each that attends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mis_core.models.rope import RopeConfig
from mis_kernels.heads import HeadShape
from mis_kernels.recurrence import RecurrentShape


@dataclass(frozen=True)
class Layer:
    """What a layer's attention sees, what it keeps, and how it knows positions.

    One that attends sees both intervals of `mis_kernels.segments`, or what a window leaves of them. It keeps each
    token's keys and values in pages, as many of these as any other layer. One that is recurrent keeps a state of fixed
    size for each sequence, and knows positions by it.

    Attributes:
        heads: Heads of its attention; keys and values are those of the KV heads. A recurrent layer has those of the
            model's others, and does not use them.
        rope: By which queries and keys are turned; None: they are not, and the layer knows no positions.
        window: Positions that a token sees, its own the last; None: all.
        recurrence: What is recurrent in place of attention; None: it attends.
    """

    heads: HeadShape
    rope: RopeConfig | None
    window: int | None = None
    recurrence: RecurrentShape | None = None


def attention_layers(layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers that attend, which have pages; their numbers count these alone."""
    return [layer for layer in layers if layer.recurrence is None]


def recurrent_per_block(layers: Sequence[Layer]) -> int:
    """Return how many recurrent layers there are before each that attends."""
    attending = len(attention_layers(layers))
    return (len(layers) - attending) // attending


def kept_elements(layers: Sequence[Layer], head_dim: int) -> int:
    """Return the elements that all layers together keep of a token, in heads as wide as the cache's `head_dim`."""
    return sum(2 * layer.heads.kv_heads * head_dim for layer in attention_layers(layers))


def rope_kinds(layers: Sequence[Layer]) -> dict[RopeConfig | None, list[int]]:
    """Return the numbers of the layers that have each kind of RoPE; last, of those that have none.

    They count layers that attend.
    """
    kinds: dict[RopeConfig | None, list[int]] = {}
    for number, layer in enumerate(attention_layers(layers)):
        kinds.setdefault(layer.rope, []).append(number)
    return dict(sorted(kinds.items(), key=lambda kind: kind[0] is None))


def windows_of(layers: Sequence[Layer]) -> tuple[int | None, ...]:
    """Return the windows that there are, each once; none if no layer slides."""
    windows = tuple(dict.fromkeys(layer.window for layer in attention_layers(layers)))
    return () if windows == (None,) else windows
