"""Workloads: the same name gives the same tokens, on every machine and with every version.

A name is `KIND-Q-N-L`, Q query tokens and N items of L tokens each, or one of `PRODUCTION`; `@8` at its end asks
for 8 labels. The canonical one is `canonical-2000-500-20`. Token ids are read off SHAKE-256 of the name, not drawn
from a library's random generator, whose stream may change between releases; `Workload.sha256` proves it.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int32

from mis_bench.workloads.kinds import KINDS, PRODUCTION, Sizes, labels, uniform
from mis_bench.workloads.seeded import TOKEN_IDS

CANONICAL = "canonical-2000-500-20"

MAX_TOKENS = 2_000_000
"""Most tokens of a workload, query and items together; what a server accepts by default."""

MAX_LABELS = 1024
"""Most labels of a workload; what a server accepts by default."""

_NAME = re.compile(r"([a-z][a-z0-9_]*)-([1-9][0-9]{0,17})-([1-9][0-9]{0,17})-([1-9][0-9]{0,17})")
_LABELS = re.compile(r"[1-9][0-9]{0,17}")


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
        vocab_size: Size of the vocabulary that ids were folded into (`within`), if they were.
    """

    name: str
    query: Int32[np.ndarray, " query_tokens"] | str
    items: tuple[Int32[np.ndarray, " item_tokens"] | str, ...]
    label_token_ids: Int32[np.ndarray, " labels"]
    apply_softmax: bool = False
    vocab_size: int | None = None

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

    def within(self, vocab_size: int | None) -> "Workload":
        """Return the workload with every token id folded into a vocabulary, for tiny checkpoints; texts stay.

        None changes nothing.
        """
        if vocab_size is None:
            return self
        label_token_ids = self.label_token_ids % vocab_size
        if isinstance(self.query, str):
            return replace(self, label_token_ids=label_token_ids, vocab_size=vocab_size)
        return replace(
            self,
            query=self.query % vocab_size,
            items=tuple(np.asarray(item, np.int32) % vocab_size for item in self.items),
            label_token_ids=label_token_ids,
            vocab_size=vocab_size,
        )

    def with_labels(self, count: int) -> "Workload":
        """Return the workload with another number of labels, as `@COUNT` in its name asks for."""
        return replace(self, label_token_ids=labels(count))

    def another(self, number: int) -> "Workload":
        """Return a workload of the same sizes whose query and items no earlier one had; 0 is this one.

        Ids are shifted within `TOKEN_IDS`, or within the vocabulary that they were folded into; texts get the number
        in front.
        """
        if number == 0:
            return self
        if isinstance(self.query, str):
            items = tuple(f" {number}{item}" for item in self.items)
            return replace(self, query=f"{number} {self.query}", items=items)
        ids = TOKEN_IDS if self.vocab_size is None else range(self.vocab_size)
        items = tuple(_shifted(np.asarray(item, np.int32), number, ids) for item in self.items)
        return replace(self, query=_shifted(self.query, number, ids), items=items)


def build_workload(name: str = CANONICAL) -> Workload:
    """Build the workload that a name describes.

    Args:
        name: `KIND-Q-N-L`, such as `canonical-2000-500-20`, or a name of `PRODUCTION`, such as `track_low`; both may
            end in `@` and a number of labels. The KINDs `ragged`, `duplicates` and `text` are explained in
            `mis_bench.workloads.kinds`; any other word stands for other tokens.

    Raises:
        WorkloadNameError: the name has another form, or asks for more than `MAX_TOKENS` tokens or `MAX_LABELS` labels.
    """
    inputs, at, digits = name.partition("@")
    kind, sizes = _sizes(inputs)
    if at and _LABELS.fullmatch(digits) is None:
        raise WorkloadNameError(f"Write {inputs}@8 for 8 labels: a number of at least 1 after the @.")
    label_count = int(digits) if at else 2
    if label_count > MAX_LABELS:
        raise WorkloadNameError(f"{inputs} has {label_count:,} labels; at most {MAX_LABELS:,} are allowed.")
    query, items = KINDS.get(kind, uniform)(inputs, sizes)
    return Workload(name, query, items, labels(label_count))


def _sizes(name: str) -> tuple[str, Sizes]:
    """Return the kind and sizes."""
    if name in PRODUCTION:
        return name, PRODUCTION[name]
    match = _NAME.fullmatch(name)
    if match is None:
        raise WorkloadNameError(
            f"{name[:80]!r} is not a workload. Write KIND-Q-N-L for Q query tokens and N items of L tokens, "
            f"all at least 1, such as {CANONICAL}; or one of {', '.join(PRODUCTION)}."
        )
    sizes = Sizes(*(int(digits) for digits in match.groups()[1:]))
    if sizes.total > MAX_TOKENS:
        raise WorkloadNameError(f"{name} has {sizes.total:,} tokens; at most {MAX_TOKENS:,} are allowed.")
    return match[1], sizes


def _shifted(tokens: Int32[np.ndarray, " count"], number: int, ids: range) -> Int32[np.ndarray, " count"]:
    return (ids.start + (tokens - ids.start + number) % len(ids)).astype(np.int32)


def _plain(value: Int32[np.ndarray, " count"] | str) -> list[int] | str:
    return value if isinstance(value, str) else value.tolist()


def _canonical_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
