"""Which layers of a hybrid are recurrent, and what they are like, as transformers' classes have it."""

from collections.abc import Mapping
from typing import Any

from mis_core.errors import ModelError
from mis_core.models.settings import positive_integer
from mis_core.models.windows import listed_layers
from mis_kernels.recurrence import RecurrentShape

_SIZES = {  # of a gated delta net, with transformers' defaults
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


def recurrent_layers(raw: Mapping[str, Any], layers: int, interval: int | None) -> list[RecurrentShape | None]:
    """Return what each layer has in place of attention; None for layers that attend.

    The last layer of a model computes chosen rows only, which a recurrent layer could not; and a block of layers is
    scanned. So the same number of recurrent layers must come before each that attends, and none after the last.

    Args:
        raw: What `config.json` holds.
        layers: How many there are.
        interval: Every so many layers one attends where the settings are silent; None: all do, whatever they say.

    Raises:
        ModelError: a setting is broken, or the layers are in another order; names it.
    """
    if interval is None:
        return [None] * layers
    shape = RecurrentShape(*(positive_integer(raw, name, default) for name, default in _SIZES.items()))
    if shape.value_heads % shape.key_heads:
        given = f"({str(shape.value_heads)[:40]}) is not a multiple of linear_num_key_heads ({shape.key_heads})"
        raise ModelError(f"linear_num_value_heads {given}.")
    if shape.taps < 2:
        raise ModelError("linear_conv_kernel_dim must be at least 2.")
    recurrent, by = listed_layers(raw.get("layer_types"), layers, "linear_attention"), "layer_types"
    if recurrent is None:
        interval = positive_integer(raw, "full_attention_interval", interval)
        recurrent = [layer % interval != 0 for layer in range(1, layers + 1)]
        by = f"full_attention_interval = {str(interval)[:40]}"
    block = recurrent.index(False) + 1 if False in recurrent else 0
    if not block or layers % block or recurrent != [index % block != block - 1 for index in range(layers)]:
        raise ModelError(
            f"{by}: the last of the {layers} layers must be full_attention, and the same number of linear_attention "
            "layers must precede each full_attention layer; nothing else is supported."
        )
    return [shape if is_recurrent else None for is_recurrent in recurrent]
