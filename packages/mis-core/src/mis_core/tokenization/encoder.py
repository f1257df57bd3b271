"""Ids of many texts, what they cost, and the special tokens that a tokenizer adds at their ends."""

import contextlib
import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from hashlib import blake2b
from threading import Lock
from typing import Self

import numpy as np
import tokenizers
from jaxtyping import Bool, Int32, Int64

from mis_core.errors import RequestError, shown

TEXT = 2
"""Encoding an empty text takes about as long as encoding so many characters of the costliest kind."""

LONG = 2048
"""Characters of a text worth remembering: it takes the library about a millisecond."""

MOST_TOKENS = 1 << 22
"""Tokens remembered at most, 16 MiB; a text counts `_ENTRY` more, so that those of hardly any tokens end, too."""

_ENTRY = 64

_CHUNK_CHARACTERS = 1 << 20  # per call of the batch encoder, whose results are large objects
_PROBE = "a"
_REASON_CHARACTERS = 200


class TooMuchWork(Exception):
    """A request would have more tokenised than it may. It is no `RequestError`: no item of a request is at fault."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.most = most


class Meter:
    """Counts the cost of all that is tokenised for one request: its characters, and `TEXT` for each text.

    Everything counts whenever it is tokenised: a query that is tokenised once more with each item counts with each of
    them. So time and memory of the request have a bound before any of it is spent. Each request has a meter of its own.

    Attributes:
        cost: The sum so far.
        most: What it must not exceed; None for no limit.
    """

    def __init__(self, most: int | None = None) -> None:
        self.cost = 0
        self.most = most

    def count(self, characters: int, texts: int = 1) -> None:
        """Add texts that are about to be tokenised.

        Raises:
            TooMuchWork: it would be more than is allowed; nothing is added.
        """
        cost = self.cost + characters + TEXT * texts
        if self.most is not None and cost > self.most:
            raise TooMuchWork(self.most)
        self.cost = cost


class KnownTexts:
    """Remembers ids of long texts by a digest, and nothing else of a text. Thread-safe.

    A state or query that is asked about again is not tokenised again. The least recently asked is forgotten first.
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
        if key in self._found or len(ids) + _ENTRY > self._most_tokens:
            return
        self._found[key] = ids
        self._tokens += len(ids) + _ENTRY
        while self._tokens > self._most_tokens:
            _, forgotten = self._found.popitem(last=False)
            self._tokens -= len(forgotten) + _ENTRY


class Encoder:
    """Encodes texts; whatever is encoded for a request passes here, and is counted first. Thread-safe.

    Attributes:
        frame: What the tokenizer adds before and after a single text; None if that cannot be recognised.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.frame = _added_at_the_ends(backend)
        self._backend = backend
        self._known = KnownTexts()
        self._meter = Meter()
        self._watch: Callable[[int], None] | None = None

    def metered(self, meter: Meter) -> Self:
        """Return the same encoder for one request, whose texts `meter` counts."""
        own = copy.copy(self)
        own._meter = meter
        return own

    def watched(self, watch: Callable[[int], None]) -> Self:
        """Return the same encoder, which calls `watch` with the number of characters before it has any tokenised."""
        own = copy.copy(self)
        own._watch = watch
        return own

    def encoding(self, text: str, special: bool = False) -> tokenizers.Encoding:
        """Return what the library makes of a text, with the special tokens that it adds or without.

        Raises:
            TooMuchWork: the request has had as much tokenised as it may; all methods raise it.
            RequestError: `tokenizer_failed`; all methods raise it.
        """
        self._count(len(text), 1)
        with _failures_refused():
            return self._backend.encode(text, add_special_tokens=special)

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text; no special tokens are added."""
        return self._bare(text).tolist()

    def encode(self, text: str, special: bool) -> Int32[np.ndarray, " tokens"]:
        """Return the ids of a text, with the special tokens that are added to it or without."""
        if special and self.frame is None:
            return np.array(self.encoding(text, special=True).ids, np.int32)
        tokens = self._bare(text)
        lens = np.array([len(tokens)])
        if not special or self.frame is None or begin_with(tokens, lens, self.frame[0]).all():
            return tokens
        return framed(tokens, lens, *self.frame, np.ones(1, bool))[0]

    def _bare(self, text: str) -> Int32[np.ndarray, " tokens"]:
        """Return the ids of a text; one that is known counts as if it were not, so that limits are the same for all."""
        self._count(len(text), 1)
        with _failures_refused():
            return self._known.ids(text, lambda text: self._backend.encode(text, add_special_tokens=False).ids)

    def encode_all(
        self, texts: Iterator[str], typical_len: int, count: int, special: bool
    ) -> tuple[Int32[np.ndarray, " tokens"], Int64[np.ndarray, " items"]]:
        """Return the ids of all texts, one after the other, and how many each has.

        Args:
            texts: The texts.
            typical_len: Characters of most of them.
            count: How many there are, at least one.
            special: Whether special tokens are added at the ends.
        """
        tokens, lens = [], []
        by_library = special and self.frame is None
        for encodings in self._encodings(self._backend.encode_batch_fast, texts, typical_len, count, by_library):
            rows = [encoding.ids for encoding in encodings]
            tokens.append(np.array(list(itertools.chain.from_iterable(rows)), np.int32))
            lens.extend(map(len, rows))
        every, counts = np.concatenate(tokens), np.array(lens, np.int64)
        if not special or self.frame is None:
            return every, counts
        return framed(every, counts, *self.frame, ~begin_with(every, counts, self.frame[0]))

    def encode_with_spans(
        self, texts: Iterator[str], typical_len: int, count: int, special: bool
    ) -> tuple[Int32[np.ndarray, " tokens"], Int64[np.ndarray, " items"], Int32[np.ndarray, "tokens columns"]]:
        """Return what `encode_all` returns, and the library's offsets of each token: begin and end.

        Both are 0 for tokens that are added. Each text counts twice, since its offsets cost as much as its ids.
        """
        tokens: list[np.ndarray] = []
        bounds: list[np.ndarray] = []
        by_library = special and self.frame is None
        for encodings in self._encodings(self._backend.encode_batch, texts, typical_len, count, by_library, times=2):
            tokens += [np.array(encoding.ids, np.int32) for encoding in encodings]
            bounds += [np.array(encoding.offsets, np.int32).reshape(-1, 2) for encoding in encodings]
        lens = np.array(list(map(len, tokens)), np.int64)
        every = np.concatenate(tokens)
        if not special or self.frame is None:
            return every, lens, np.concatenate(bounds)
        wanted = ~begin_with(every, lens, self.frame[0])
        added = [len(each) for each in self.frame]
        padded = [np.pad(own, (added, (0, 0))) if frames else own for own, frames in zip(bounds, wanted, strict=True)]
        return *framed(every, lens, *self.frame, wanted), np.concatenate(padded)

    def _encodings(
        self,
        encode: Callable[..., list[tokenizers.Encoding]],
        texts: Iterator[str],
        typical_len: int,
        count: int,
        by_library: bool,
        *,
        times: int = 1,
    ) -> Iterator[list[tokenizers.Encoding]]:
        """Yield what the library makes of texts, some of them at a time, each counted so many times."""
        size = max(1, _CHUNK_CHARACTERS // (typical_len + 64))
        for _ in range(0, count, size):
            chunk = list(itertools.islice(texts, size))
            self._count(times * sum(map(len, chunk)), times * len(chunk))
            with _failures_refused():
                encodings = encode(chunk, add_special_tokens=by_library)
            yield encodings

    def _count(self, characters: int, texts: int) -> None:
        self._meter.count(characters, texts)
        if self._watch is not None:
            self._watch(characters)


@contextlib.contextmanager
def _failures_refused() -> Iterator[None]:
    """Refuse texts with which the library fails, such as those of which a regular expression of it tries too much."""
    try:
        yield
    except BaseException as error:
        if not is_failure_of_library(error):
            raise
        reason = shown(str(error), _REASON_CHARACTERS)
        message = f"The model's tokenizer fails on a text of this request: {reason}"
        raise RequestError("tokenizer_failed", message) from None


def is_failure_of_library(error: BaseException) -> bool:
    """Whether the library gave up: by a plain `Exception`, or by a panic, which cannot be imported and is none."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


def begin_with(tokens: np.ndarray, lens: np.ndarray, before: list[int]) -> Bool[np.ndarray, " rows"]:
    """Whether rows that lie one after the other begin with some ids; none does with no ids."""
    found = np.full(len(lens), bool(before)) & (lens >= len(before))
    begins = (np.cumsum(lens) - lens)[found]
    for index, token in enumerate(before):
        found[found] = tokens[begins + index] == token
        begins = (np.cumsum(lens) - lens)[found]
    return found


def framed(
    tokens: np.ndarray, lens: np.ndarray, before: list[int], after: list[int], wanted: np.ndarray
) -> tuple[Int32[np.ndarray, " tokens"], Int64[np.ndarray, " rows"]]:
    """Put ids before and after the wanted rows."""
    ends = np.cumsum(lens)
    count = int(np.count_nonzero(wanted))
    # Of ids put at one place, `insert` keeps the order: those after a row come before those before the next.
    inserts = np.stack([ends - lens, ends], 1)[wanted].repeat([len(before), len(after)], 1)
    framed = np.insert(tokens, inserts.ravel(), np.tile([*before, *after], count))
    return framed.astype(np.int32), lens + wanted * (len(before) + len(after))


def _added_at_the_ends(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]] | None:
    """Return what the post-processor puts before and after a single text, such as BOS; it is constant.

    None if it cannot be recognised; then every text is encoded whole, by the library alone.
    """
    bare = backend.encode(_PROBE, add_special_tokens=False).ids
    full = backend.encode(_PROBE).ids
    for begin in range(len(full) - len(bare) + 1):
        if full[begin : begin + len(bare)] == bare:
            return full[:begin], full[begin + len(bare) :]
    return None
