"""What a calibration belongs to: the model whose logits it was fitted on, and what the model was asked."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import msgspec


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the logits of a model depend on, whatever it is asked. What a model does not have is None.

    Attributes:
        weights: Digest of its settings and of every byte of its files of weights.
        tokenizer: Digest of its tokenizer.
        dtype: The type it computes in.
        quantization: As of `EngineConfig`.
        head: Digest of a trained head beside its weights.
        adapter: Digest of the adapters that are merged into its weights.
    """

    weights: str
    tokenizer: str
    dtype: str
    quantization: str
    head: str | None = None
    adapter: str | None = None

    def differences(self, other: "ModelIdentity") -> list[str]:
        """Return the names of what differs."""
        return [name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name)]


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """What a model is asked, besides the texts themselves. What has no meaning for a task is None.

    Attributes:
        task: Name of the task.
        labels: Token ids of each label, or rows of a head, in the order in which they are read.
        template: Digest of what makes the prompts of a rerank.
        decision_prompt: Digest of what makes the prompts of decisions.
        question: Digest of a question as it is read.
        orders: The further orders in which options are read, as places in the first one.
        item_first: Whether items come before the query.
        add_special_tokens: Whether the tokenizer's special tokens are added.
        delimiter: Token between query and item.
    """

    task: str
    labels: tuple[tuple[int, ...], ...]
    template: str | None = None
    decision_prompt: str | None = None
    question: str | None = None
    orders: tuple[tuple[int, ...], ...] | None = None
    item_first: bool | None = None
    add_special_tokens: bool | None = None
    delimiter: int | None = None

    @cached_property
    def digest(self) -> str:
        """A digest of all of it."""
        return digest_of(self)

    @property
    def num_labels(self) -> int:
        """How many labels there are."""
        return len(self.labels)


def digest_of(value: Any) -> str:
    """Return the first 128 bits of the SHA-256 of a value as `msgspec` writes it as JSON, in hexadecimal."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:32]


def label_tuples(labels: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """Return labels of a token each as an `Identity` has them."""
    return tuple((label,) for label in labels)


def relative_orders(orders: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return all orders but the first as places in the first, so that the order of sending has no part in them."""
    first = {option: index for index, option in enumerate(orders[0])}
    return tuple(tuple(first[option] for option in order) for order in orders[1:])
