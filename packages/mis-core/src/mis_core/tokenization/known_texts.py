"""Ids of long texts that were tokenised lately: a state or query that is asked about again is not tokenised again."""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from threading import Lock

import numpy as np
from jaxtyping import Int32

LONG = 2048
"""Characters of a text worth remembering: it takes the library about a millisecond."""

MOST_TOKENS = 1 << 22
"""Tokens remembered at most: 16 MiB."""


class KnownTexts:
    """Remembers ids by a digest of their text, of which it keeps nothing else. Thread-safe.

    What was not asked for longest is forgotten first.
    """

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._tokens = 0
        self._found: OrderedDict[bytes, Int32[np.ndarray, " tokens"]] = OrderedDict()
        self._lock = Lock()

    def ids(self, text: str, encode: Callable[[str], list[int]]) -> Int32[np.ndarray, " tokens"]:
        """Return what `encode` makes of a text, now or when it was last asked for. The array is read-only."""
        if len(text) < LONG:
            return np.array(encode(text), np.int32)
        key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).digest()
        with self._lock:
            known = self._found.get(key)
            if known is not None:
                self._found.move_to_end(key)
                return known
        ids = np.array(encode(text), np.int32)
        ids.flags.writeable = False
        with self._lock:
            self._keep(key, ids)
        return ids

    def _keep(self, key: bytes, ids: Int32[np.ndarray, " tokens"]) -> None:
        if key in self._found or len(ids) > self._most_tokens:
            return
        self._found[key] = ids
        self._tokens += len(ids)
        while self._tokens > self._most_tokens:
            _, forgotten = self._found.popitem(last=False)
            self._tokens -= len(forgotten)
