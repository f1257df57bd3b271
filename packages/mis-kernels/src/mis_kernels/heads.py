"""Heads of the models we care about, whole and as one device of a tensor-parallel group sees them."""

import itertools
from typing import NamedTuple

TENSOR_PARALLEL = (1, 4, 8)


class HeadShape(NamedTuple):
    """Heads of one attention layer."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    def divides(self, devices: int) -> bool:
        """Whether KV heads can be cut over `devices`, or copied to them."""
        return self.kv_heads % devices == 0 or devices % self.kv_heads == 0

    def spread(self, devices: int) -> "HeadShape":
        """Return the shape with as many KV heads as `devices` need; the same shape if there are enough.

        With fewer KV heads than devices, each KV head is copied and its query heads are divided among the copies,
        padded where they do not divide; so every device has one KV head.

        Raises:
            ValueError: KV heads and devices do not divide each other.
        """
        if not self.divides(devices):
            raise ValueError(f"{devices} devices and {self.kv_heads} KV heads do not divide each other")
        if self.kv_heads % devices == 0:
            return self
        group = -(-self.group // (devices // self.kv_heads))
        return HeadShape(devices * group, devices, self.head_dim)

    def on_device(self, devices: int) -> "HeadShape":
        """Return the shape of one of `devices` tensor-parallel devices.

        Raises:
            ValueError: KV heads and devices do not divide each other.
        """
        whole = self.spread(devices)
        return HeadShape(whole.heads // devices, whole.kv_heads // devices, self.head_dim)


HEAD_SHAPES: dict[str, HeadShape] = {
    "qwen3-0.6b": HeadShape(16, 8, 128),
    "qwen3-1.7b": HeadShape(16, 8, 128),
    "qwen3-4b": HeadShape(32, 8, 128),
    "qwen3-8b": HeadShape(32, 8, 128),
    "qwen3-32b": HeadShape(64, 8, 128),
    "qwen2.5-0.5b": HeadShape(14, 2, 64),
    "qwen2.5-1.5b": HeadShape(12, 2, 128),
    "qwen2.5-3b": HeadShape(16, 2, 128),
    "qwen2.5-7b": HeadShape(28, 4, 128),
    "llama-3.2-1b": HeadShape(32, 8, 64),
    "llama-3.2-3b": HeadShape(24, 8, 128),
    "smollm2-135m": HeadShape(9, 3, 64),
    "smollm3-3b": HeadShape(16, 4, 128),
    "mistral-7b": HeadShape(32, 8, 128),
    "ministral-8b": HeadShape(32, 8, 128),
    "gemma-2-2b": HeadShape(8, 4, 256),
    "gemma-2-9b": HeadShape(16, 8, 256),
    "gemma-3-270m": HeadShape(4, 1, 256),
    "gemma-3-1b": HeadShape(4, 1, 256),
    "gemma-3-4b": HeadShape(8, 4, 256),
    "gemma-3-12b": HeadShape(16, 8, 256),
    "qwen3.5-0.8b": HeadShape(8, 2, 256),
    "qwen3.5-2b": HeadShape(8, 2, 256),
    "qwen3.5-4b": HeadShape(16, 4, 256),
    "qwen3.5-9b": HeadShape(16, 4, 256),
    "qwen3.5-27b": HeadShape(24, 4, 256),
}


def device_head_shapes() -> list[HeadShape]:
    """Return each distinct shape that a device sees, over all models and the tensor-parallel sizes they divide by."""
    pairs = itertools.product(HEAD_SHAPES.values(), TENSOR_PARALLEL)
    return list(dict.fromkeys(shape.on_device(devices) for shape, devices in pairs if shape.divides(devices)))
