"""Folders with a pointer head, as the package any2jev 0.1 writes them: `any2jev.json`, and what it names.

Such a folder has an adapter of a language model, which it names; a tokenizer; and two linear layers, `q` and `k`. A
question is a branch behind the state: an option is as probable as `k` of the token at its end points at `q` of the
branch's last token.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mis_core.checkpoints.decision_files import converted, warn_of_unknown
from mis_core.checkpoints.files import Files, is_there
from mis_core.errors import ModelError

SETTINGS, WEIGHTS = "any2jev.json", "head.safetensors"
ADAPTER, TOKENIZER = "adapter", "tokenizer"

_HARMLESS = {"any2jev_version", "base", "revision", "delimiters_added", "hybrid", "mode", "compute_dtype", "meta"}
"""Settings without a meaning here: what was trained, where, and two layouts in which all values are the same."""
_DELIMITERS = ("state", "question", "option", "end of an option", "decision")
_MOST_DIMENSIONS = 1 << 14


@dataclass(frozen=True, slots=True)
class StoredPointer:
    """A pointer head beside a language model.

    Attributes:
        embed: Numbers of a token's hidden state that it was trained on.
        delimiters: Tokens that begin a state, a question and an option, end an option, and end a question.
        dimensions: Numbers that `q` and `k` make of a token.
        temperature: What logits are divided by.
        max_state: Most tokens of a state, its delimiter included.
        max_branch: Most tokens of a question with its options, delimiters included.
    """

    embed: int
    delimiters: tuple[str, ...]
    dimensions: int
    temperature: float
    max_state: int
    max_branch: int


class _Settings(msgspec.Struct, frozen=True):
    """What is read of `any2jev.json`."""

    delimiters: list[str]
    hidden_size: int
    head_dim: int
    temperature: float = 1.0
    max_state: int = 1024
    max_branch: int = 1024


def read_pointer(folder: Path, files: Files) -> StoredPointer:
    """Read what a folder says of its head.

    Raises:
        ModelError: the file is missing or broken, or says what is not understood.
    """
    path = folder / SETTINGS
    if not is_there(path):
        raise ModelError(f"{path}: missing; a folder with a pointer head needs one.")
    given = files.read_object(path)
    warn_of_unknown(given.keys() - _HARMLESS, _Settings, path)
    found = converted(given, _Settings, path)
    if len(found.delimiters) != len(_DELIMITERS) or len(set(found.delimiters)) < len(_DELIMITERS):
        raise ModelError(f"{path}: delimiters must name five different tokens, for: {', '.join(_DELIMITERS)}.")
    if not 0 < found.head_dim <= _MOST_DIMENSIONS:
        raise ModelError(f"{path}: head_dim must be from 1 to {_MOST_DIMENSIONS:,}, not {found.head_dim:,}.")
    if not 0 < found.temperature < math.inf:
        raise ModelError(f"{path}: temperature must be a number above 0, not {found.temperature}.")
    if found.max_state < 1 or found.max_branch < 1:
        raise ModelError(f"{path}: max_state and max_branch must be at least 1.")
    return StoredPointer(
        embed=found.hidden_size,
        delimiters=tuple(found.delimiters),
        dimensions=found.head_dim,
        temperature=found.temperature,
        max_state=found.max_state,
        max_branch=found.max_branch,
    )
