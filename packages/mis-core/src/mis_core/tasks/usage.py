"""What a request has cost."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request, in tokens."""

    prompt_tokens: int
    cached_tokens: int = 0
