"""The dense float32 oracle: what the materialised mask of a step means."""
