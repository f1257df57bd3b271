"""What one device of each TPU can do at most, for the roofline."""

from typing import NamedTuple


class Chip(NamedTuple):
    """Nominal rates of one JAX device.

    Attributes:
        flops: Products and sums in bfloat16, a second.
        bytes: Bytes to and from its memory, a second.
        memory: Bytes of its memory.
        link_bytes: Bytes a second to other chips of the slice, all links of one chip together, one way.
    """

    flops: float
    bytes: float
    memory: float
    link_bytes: float


# FLOPs, memory and its rate: JAX's `TpuInfo`. Links: the bidirectional rate of a chip in Google's pages of each TPU
# (docs.cloud.google.com/tpu/docs/v5e, v6e and tpu7x: 400, 800 and 1200 GB/s), halved for one way; 7x has two devices a
# chip.
CHIPS = {
    "v5e": Chip(197e12, 0.82e12, 17.2e9, 200e9),
    "v6e": Chip(918e12, 1.64e12, 34.4e9, 400e9),
    "v7x": Chip(1155e12, 3.7e12, 103e9, 300e9),
}
