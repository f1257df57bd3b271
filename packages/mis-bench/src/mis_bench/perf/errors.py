"""What can go wrong before there is a verdict."""


class PerfError(RuntimeError):
    """The comparison cannot be made; one sentence says why and what would help."""
