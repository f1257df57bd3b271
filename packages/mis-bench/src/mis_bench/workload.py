"""Workloads: the same name gives the same tokens, on every machine and with every version.

A name is `KIND-Q-N-L`: Q query tokens, N items of L tokens each. The canonical one is
`canonical-2000-500-20`. Token ids are read off SHAKE-256 of the name, not drawn from a library's
random generator, whose stream may change between releases; `Workload.sha256` proves it.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int32

CANONICAL = "canonical-2000-500-20"

LABEL_TOKEN_IDS = (9454, 2753)
"""The labels scored in every workload."""

TOKEN_IDS = range(1000, 100_000)
"""Ids that occur: ordinary tokens, and no special ones, in the vocabularies of Qwen 2, Qwen 3 and Llama 3."""

MAX_TOKENS = 2_000_000
"""Most tokens of a workload, query and items together; what a server accepts by default."""

_NAME = re.compile(r"([a-z][a-z0-9_]*)-([1-9][0-9]*)-([1-9][0-9]*)-([1-9][0-9]*)")


class WorkloadNameError(ValueError):
    """A name that describes no workload; the message says what one looks like."""


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """One request for scores, as token ids or as texts.

    Attributes:
        name: What it was built from.
        query: Shared tokens, `[query_tokens]`, or text.
        items: Tokens of each item, `[item_tokens]` each, or texts.
        label_token_ids: Labels, the same for all items, `[labels]`.
        apply_softmax: Softmax over the labels instead of full-vocabulary probabilities.
    """

    name: str
    query: Int32[np.ndarray, " query_tokens"] | str
    items: tuple[Int32[np.ndarray, " item_tokens"] | str, ...]
    label_token_ids: Int32[np.ndarray, " labels"]
    apply_softmax: bool = False

    @property
    def num_items(self) -> int:
        """Number of items."""
        return len(self.items)

    @property
    def num_tokens(self) -> int:
        """Tokens of the query, once, and of every item; of a text its characters, for want of a tokenizer."""
        return len(self.query) + sum(map(len, self.items))

    @property
    def request(self) -> dict[str, Any]:
        """The body of `POST /v1/score`, and the keywords of `Engine.score`."""
        body: dict[str, Any] = {
            "query": _plain(self.query),
            "items": [_plain(item) for item in self.items],
            "label_token_ids": self.label_token_ids.tolist(),
        }
        return body | {"apply_softmax": True} if self.apply_softmax else body

    @property
    def sha256(self) -> str:
        """Checksum of `request` as JSON with sorted keys and no white space, in UTF-8."""
        return hashlib.sha256(_canonical_json(self.request)).hexdigest()

    def to_json(self) -> str:
        """Return name, checksum and request as one JSON object on one line."""
        document = {"name": self.name, "sha256": self.sha256, "request": self.request}
        return _canonical_json(document).decode()

    def within(self, vocab_size: int) -> "Workload":
        """Return the workload with every token id folded into a vocabulary, for tiny checkpoints; texts stay."""
        if isinstance(self.query, str):
            return self
        items = tuple(np.asarray(item, np.int32) % vocab_size for item in self.items)
        return replace(
            self, query=self.query % vocab_size, items=items, label_token_ids=self.label_token_ids % vocab_size
        )

    def with_labels(self, count: int) -> "Workload":
        """Return the workload with another number of labels: the first of `LABEL_TOKEN_IDS`, then fixed others."""
        more = (int(token) for token in _tokens("labels", 4 * count) if token not in LABEL_TOKEN_IDS)
        labels = list(dict.fromkeys([*LABEL_TOKEN_IDS, *more]))[:count]
        return replace(self, label_token_ids=np.array(labels, np.int32))

    def another(self, number: int) -> "Workload":
        """Return a workload of the same sizes whose query and items no earlier one had; 0 is this one.

        Ids are shifted within `TOKEN_IDS`; texts get the number in front.
        """
        if number == 0:
            return self
        if isinstance(self.query, str):
            items = tuple(f"{number} {item}" for item in self.items)
            return replace(self, query=f"{number} {self.query}", items=items)
        items = tuple(_shifted(np.asarray(item, np.int32), number) for item in self.items)
        return replace(self, query=_shifted(self.query, number), items=items)


def build_workload(name: str = CANONICAL) -> Workload:
    """Build the workload that a name describes.

    Args:
        name: `KIND-Q-N-L`, such as `canonical-2000-500-20`. KIND is a word; another word, other tokens.

    Raises:
        WorkloadNameError: the name has another form, or asks for more than `MAX_TOKENS` tokens.
    """
    query_tokens, items, item_tokens = _geometry(name)
    tokens = _tokens(name, query_tokens + items * item_tokens)
    return Workload(
        name=name,
        query=tokens[:query_tokens],
        items=tuple(tokens[query_tokens:].reshape(items, item_tokens)),
        label_token_ids=np.array(LABEL_TOKEN_IDS, np.int32),
    )


def _geometry(name: str) -> tuple[int, int, int]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise WorkloadNameError(
            f"{name[:80]!r} is not a workload. Write KIND-Q-N-L for Q query tokens and N items of L tokens, "
            f"all at least 1, such as {CANONICAL}."
        )
    query_tokens, items, item_tokens = (int(digits) for digits in match.groups()[1:])
    total = query_tokens + items * item_tokens
    if total > MAX_TOKENS:
        raise WorkloadNameError(f"{name} has {total:,} tokens; at most {MAX_TOKENS:,} are allowed.")
    return query_tokens, items, item_tokens


def _tokens(name: str, count: int) -> Int32[np.ndarray, " count"]:
    words = np.frombuffer(hashlib.shake_256(name.encode()).digest(4 * count), "<u4")
    return (TOKEN_IDS.start + words % len(TOKEN_IDS)).astype(np.int32)


def _shifted(tokens: Int32[np.ndarray, " count"], number: int) -> Int32[np.ndarray, " count"]:
    return (TOKEN_IDS.start + (tokens - TOKEN_IDS.start + number) % len(TOKEN_IDS)).astype(np.int32)


def _plain(value: Int32[np.ndarray, " count"] | str) -> list[int] | str:
    return value if isinstance(value, str) else value.tolist()


def _canonical_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
