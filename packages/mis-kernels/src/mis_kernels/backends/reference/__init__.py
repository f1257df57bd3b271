"""The dense float32 oracle."""
