"""What a model's files hold, whatever their format."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from mis_core.checkpoints.decision_files import StoredHead
from mis_core.checkpoints.digests import ModelPart
from mis_core.checkpoints.pointer_files import StoredPointer
from mis_core.checkpoints.signs import Signs


class StoredTensor(ABC):
    """One tensor of a checkpoint, not read yet.

    Attributes:
        shape: As Hugging Face checkpoints have it: `[outputs, inputs]` of a projection.
        stored_type: Name of its type in the file, such as `BF16`.
    """

    shape: tuple[int, ...]
    stored_type: str

    @abstractmethod
    def read(self) -> np.ndarray:
        """Return the elements, of a float type; nothing is kept of them."""


@dataclass(frozen=True)
class StoredTokenizer:
    """A tokenizer as a checkpoint has it.

    Attributes:
        backend: What encodes and decodes.
        special_tokens: Texts of special tokens by the names that chat templates use, such as `bos_token`.
        end_ids: Tokens with which an answer ends.
        chat_template: Jinja template that turns messages into text; None if there is none.
    """

    backend: tokenizers.Tokenizer
    special_tokens: dict[str, str]
    end_ids: frozenset[int]
    chat_template: str | None


@dataclass(frozen=True)
class StoredDecision:
    """What a checkpoint says of decisions.

    Attributes:
        settings: Of `decision.json`; None if there is none.
        template: Of `decision_template.jinja`; None if there is none.
        head: What is said of a trained head; None if there is none. Its files may say what those two do.
        source: Name of what says so, for errors; None: `decision.json`.
        as_llama_cpp: As of `DecisionContract`.
        pointer: How a head is read that is of a folder with a pointer head; None of all others.
    """

    settings: dict[str, Any] | None = None
    template: str | None = None
    head: StoredHead | None = None
    source: str | None = None
    as_llama_cpp: bool = False
    pointer: StoredPointer | None = None


class Checkpoint(ABC):
    """A model's files; nothing is read before it is asked for.

    Attributes:
        path: The directory or file, for messages about tensors.
        settings_path: The file that holds the settings, for messages about them.
    """

    path: Path
    settings_path: Path

    @property
    def has_windows(self) -> bool:
        """Whether layers slide that the settings say slide."""
        return True

    @property
    def norms_have_one(self) -> bool:
        """Whether norms whose factor is `1 + weight`, as Gemma's, are stored as that sum instead of the weight.

        To add 1 to a difference need not give the stored sum again, so who reads such norms adds nothing.
        """
        return False

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return what `config.json` of a Hugging Face checkpoint holds.

        Raises:
            ModelError: it is missing or broken.
        """

    @abstractmethod
    def signs(self) -> Signs:
        """Return what the checkpoint says it was made for."""

    @abstractmethod
    def stored_types(self) -> tuple[str, ...]:
        """Return the names of the types that tensors may be stored as."""

    @abstractmethod
    def tensors(self) -> AbstractContextManager[Mapping[str, StoredTensor]]:
        """Open the tensors, by the names that Hugging Face checkpoints give them.

        Raises:
            ModelError: a file is missing, truncated or of another format.
        """

    @abstractmethod
    def parts(self, *, with_head: bool) -> tuple[ModelPart, ...]:
        """Return what the model is made of: its weights, and a decision head beside them.

        Args:
            with_head: Whether a head belongs to it, where there is one.

        Raises:
            ModelError: a file is missing or broken, or cannot be read.
        """

    @abstractmethod
    def weight_paths(self) -> list[Path]:
        """Return the files of the weights, without a head or adapters beside them.

        Raises:
            ModelError: as `tensors`.
        """

    @abstractmethod
    def tokenizer(self) -> StoredTokenizer:
        """Read the tokenizer.

        Raises:
            ModelError: a file is missing or broken; it is named.
        """

    def head_tensors(self, head: StoredHead | None) -> AbstractContextManager[Mapping[str, StoredTensor]]:
        """Open the tensors of a decision head that is not among the model's own: `proj.weight`, and `proj.bias`.

        There are none without a head.

        Raises:
            ModelError: a file is missing, truncated or of another format.
        """
        return contextlib.nullcontext({})

    def decision(self) -> StoredDecision:
        """Read what the files say of decisions.

        Raises:
            ModelError: a file is broken; it is named.
        """
        return StoredDecision()
