"""Which requests belong together: those that share a query, whose tokens some replica has cached."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

HEADER = "x-mis-prefix"
"""A client's own name for what its requests share; it counts before the body."""


class _Fields(msgspec.Struct):
    """What requests of all routes may share; the rest, such as items, is skipped unread."""

    query: Any = None  # score, rerank
    input: Any = None  # decisions, classify
    state: Any = None  # System One
    states: Any = None  # a batch of System One; the same list goes to the same replica
    prompt: Any = None  # completions
    messages: list[Any] | None = None  # chat
    cache_salt: Any = None
    x_cache_salt: Any = None


_DECODER = msgspec.json.Decoder(_Fields)


def routing_key(headers: Mapping[str, str], body: bytes) -> str | None:
    """Return the same text for requests that share a query, however their JSON is written.

    Args:
        headers: Of the request, names in lower case.
        body: The whole body, expanded.

    Returns:
        A key; None if nothing is shared, and any replica will do.
    """
    try:
        fields = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # whichever replica gets it refuses it
    shared: Any = headers.get(HEADER)
    if not shared:
        named = (fields.query, fields.input, fields.state, fields.states, fields.prompt)
        shared = next((each for each in named if each is not None), None)
        if shared is None and fields.messages:
            shared = fields.messages[0]  # most often the system's
    if shared is None:
        return None
    return hashlib.blake2b(
        msgspec.json.encode([shared, fields.cache_salt or fields.x_cache_salt]), digest_size=16
    ).hexdigest()
