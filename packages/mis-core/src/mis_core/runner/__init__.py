"""The runner: compiled steps, the KV cache and the head; the only part that runs models."""
