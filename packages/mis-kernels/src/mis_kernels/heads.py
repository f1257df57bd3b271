"""Head layouts of the models we care about, whole and as one device of a tensor-parallel group sees them."""

from typing import NamedTuple

TENSOR_PARALLEL = (1, 4, 8)


class HeadLayout(NamedTuple):
    """Heads of one attention layer."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    def spread(self, devices: int) -> "HeadLayout":
        """Return the layout with as many KV heads as `devices` need; the same layout if there are enough.

        With fewer KV heads than devices, each KV head is copied and its query heads are divided among the copies,
        padded where they do not divide; so every device has one KV head.

        Raises:
            ValueError: KV heads and devices do not divide each other.
        """
        if self.kv_heads % devices == 0:
            return self
        if devices % self.kv_heads:
            raise ValueError(f"{devices} devices and {self.kv_heads} KV heads do not divide each other")
        group = -(-self.group // (devices // self.kv_heads))
        return HeadLayout(devices * group, devices, self.head_dim)

    def on_device(self, devices: int) -> "HeadLayout":
        """Return the layout of one of `devices` tensor-parallel devices.

        Raises:
            ValueError: KV heads and devices do not divide each other.
        """
        whole = self.spread(devices)
        return HeadLayout(whole.heads // devices, whole.kv_heads // devices, self.head_dim)


HEAD_LAYOUTS: dict[str, HeadLayout] = {
    "qwen3-0.6b": HeadLayout(16, 8, 128),
    "qwen3-1.7b": HeadLayout(16, 8, 128),
    "qwen3-4b": HeadLayout(32, 8, 128),
    "qwen3-8b": HeadLayout(32, 8, 128),
    "qwen3-32b": HeadLayout(64, 8, 128),
    "qwen2.5-0.5b": HeadLayout(14, 2, 64),
    "qwen2.5-1.5b": HeadLayout(12, 2, 128),
    "qwen2.5-3b": HeadLayout(16, 2, 128),
    "qwen2.5-7b": HeadLayout(28, 4, 128),
    "llama-3.2-1b": HeadLayout(32, 8, 64),
    "llama-3.2-3b": HeadLayout(24, 8, 128),
}


def device_layouts() -> list[HeadLayout]:
    """Return each distinct layout that a device sees, over all models and tensor-parallel sizes."""
    found = {layout.on_device(devices): None for layout in HEAD_LAYOUTS.values() for devices in TENSOR_PARALLEL}
    return list(found)
