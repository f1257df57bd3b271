"""Attention for one context and many segments, without masks.

`lay_out` describes the segments of a step by small integer arrays, `write_pages` puts new keys and
values into the paged cache, `segment_attention` attends; `reference_attention` is its oracle. Masks,
for those who want them, come from `intervals_of_lengths` and its neighbours.
"""

from mis_kernels.activations import Gate, capped
from mis_kernels.backends.reference.backend import reference_attention, visibility
from mis_kernels.backends.xla.norms import row_sum
from mis_kernels.backends.xla.rope import rotary_tables
from mis_kernels.masks import (
    Intervals,
    dense_mask,
    intervals_of_delimiters,
    intervals_of_lengths,
    intervals_of_segments,
    positions_of_delimiters,
    positions_of_lengths,
)
from mis_kernels.operations import lay_out, norm_rope, segment_attention, write_pages
from mis_kernels.recurrence import CARRIED, CHUNK, EMPTY, Chunks, RecurrentShape, RecurrentStates
from mis_kernels.recurrent_operations import gated_delta, gated_delta_decode
from mis_kernels.segments import NOWHERE, Segments
from mis_kernels.storage import from_bits, to_bits

__version__ = "0.3.0"

__all__ = [
    "CARRIED",
    "CHUNK",
    "EMPTY",
    "NOWHERE",
    "Chunks",
    "Gate",
    "Intervals",
    "RecurrentShape",
    "RecurrentStates",
    "Segments",
    "capped",
    "dense_mask",
    "from_bits",
    "gated_delta",
    "gated_delta_decode",
    "intervals_of_delimiters",
    "intervals_of_lengths",
    "intervals_of_segments",
    "lay_out",
    "norm_rope",
    "positions_of_delimiters",
    "positions_of_lengths",
    "reference_attention",
    "rotary_tables",
    "row_sum",
    "segment_attention",
    "to_bits",
    "visibility",
    "write_pages",
]
