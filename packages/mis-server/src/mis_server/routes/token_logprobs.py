"""What a completion says of its tokens, encoded as OpenAI's parallel lists."""

import codecs
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import numpy as np
from jaxtyping import Float32, Int32, Int64, Integer

from mis_core.tokenization import Tokenizer
from mis_server.schemas.completions import Logprobs

_PIECE_VALUES = 4096  # encoded within a millisecond or two, after which other threads get a turn


class Spelled:
    """The texts of some tokens, each looked up once."""

    def __init__(self, tokenizer: Tokenizer, arrays: list[np.ndarray]) -> None:
        """Look up tokens.

        Args:
            tokenizer: Spells them.
            arrays: Their ids.
        """
        self._ids = np.unique(np.concatenate([ids.ravel() for ids in arrays]))
        data = [tokenizer.token_bytes(each) for each in self._ids.tolist()]
        self._data = np.array(data, object)
        self._names = np.array([_name(*each) for each in zip(self._ids.tolist(), data, strict=True)], object)

    def names(self, ids: np.ndarray) -> list[Any]:
        """Return what each token is called, in lists shaped like the ids; part of a character has its bytes."""
        return self._names[self._at(ids)].tolist()

    def text(self, ids: Int32[np.ndarray, " tokens"]) -> str:
        """Return the text of tokens that follow each other."""
        return b"".join(self._data[self._at(ids)].tolist()).decode(errors="replace")

    def offsets(self, ids: Int32[np.ndarray, " tokens"], offsets: "TextOffsets") -> Int64[np.ndarray, " tokens"]:
        """Return where tokens that follow each other begin."""
        return np.array([offsets.advance(data) for data in self._data[self._at(ids)]], np.int64)

    def _at(self, ids: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._ids, ids)


class TextOffsets:
    """Counts the characters of a text while its tokens are taken one by one, as they are decoded to that text."""

    def __init__(self, begin: int) -> None:
        """Begin where so many characters are there already."""
        self._offset = begin
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def advance(self, data: bytes) -> int:
        """Read the bytes of a token; return how many whole characters are before it."""
        offset = self._offset
        self._offset += len(self._decoder.decode(data))
        return offset


@dataclass(frozen=True, slots=True)
class Entries:
    """What is said of tokens that follow each other: runs of elements of the four lists, encoded, without brackets."""

    runs: tuple[tuple[bytes, ...], ...] = ()

    @classmethod
    def of(
        cls,
        spelled: Spelled,
        ids: Int32[np.ndarray, " tokens"],
        logprobs: Float32[np.ndarray, " tokens"],
        top_ids: Int32[np.ndarray, "tokens top_logprobs"],
        top_logprobs: Float32[np.ndarray, "tokens top_logprobs"],
        offsets: Integer[np.ndarray, " tokens"],
        *,
        has_first: bool = True,
    ) -> Self:
        """Encode what is said of tokens that follow each other.

        Args:
            spelled: Their texts.
            ids: The tokens.
            logprobs: Their log-probabilities.
            top_ids: The most probable tokens in place of each; the token itself is added.
            top_logprobs: Their log-probabilities.
            offsets: Characters of the text before each.
            has_first: Whether something is said of the first token, not null.
        """
        # The token has one value in both lists: clients compare it with the highest.
        shown = np.where(top_ids == ids[:, None], logprobs[:, None], top_logprobs)
        names = np.concatenate([top_ids, ids[:, None]], 1)
        values = np.concatenate([shown, logprobs[:, None]], 1)
        step = max(1, _PIECE_VALUES // values.shape[1])
        runs: list[tuple[bytes, ...]] = []
        for begin in range(0, len(ids), step):
            piece = slice(begin, begin + step)
            own: list[float | None] = logprobs[piece].tolist()
            tops: list[dict[str, float] | None] = [
                _by_name(*row) for row in zip(spelled.names(names[piece]), values[piece].tolist(), strict=True)
            ]
            if begin == 0 and not has_first:
                own[0] = tops[0] = None
            lists = spelled.names(ids[piece]), own, tops, offsets[piece].tolist()
            runs.append(tuple(msgspec.json.encode(each)[1:-1] for each in lists))
        return cls(tuple(runs))

    def __add__(self, other: "Entries") -> "Entries":
        """Return the elements of both."""
        return Entries(self.runs + other.runs)

    def logprobs(self) -> Logprobs:
        """Return the lists."""
        lists = zip(*self.runs, strict=True) if self.runs else [()] * 4
        return Logprobs(*(msgspec.Raw(b"[" + b",".join(each) + b"]") for each in lists))


def _name(token: int, data: bytes) -> str:
    if not data:
        return f"token_id:{token}"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _by_name(names: list[str], values: list[float]) -> dict[str, float]:
    """Return values by name: of tokens that are spelled alike, the first."""
    found: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        found.setdefault(name, value)
    return found
