"""How a pointer head wants questions: as tokens between delimiters, without a template. See `StoredPointer`."""

from typing import Self

import msgspec
import tokenizers

from mis_core.checkpoints.pointer_files import StoredPointer
from mis_core.errors import ModelError, shown


class PointerContract(msgspec.Struct, frozen=True, tag="pointer"):
    """How questions become tokens, and what answers them.

    Attributes:
        state: Token that a state begins with.
        question: Token that a question begins with.
        option: Token that an option begins with.
        option_end: Token that an option ends with, at which `k` is read.
        decide: Token that a question ends with, at which `q` is read.
        dimensions: As of `StoredPointer`, and so are the others.
    """

    state: int
    question: int
    option: int
    option_end: int
    decide: int
    dimensions: int
    temperature: float
    max_state: int
    max_branch: int

    @property
    def delimiters(self) -> frozenset[int]:
        """All five tokens."""
        return frozenset({self.state, self.question, self.option, self.option_end, self.decide})

    @classmethod
    def of(cls, stored: StoredPointer, backend: tokenizers.Tokenizer, vocab_size: int, where: str) -> Self:
        """Look the delimiters up.

        Args:
            stored: What the folder says.
            backend: Its tokenizer.
            vocab_size: Rows of the model's embedding.
            where: The folder's file, for errors.

        Raises:
            ModelError: a delimiter is no token, or one that the model does not have.
        """

        def token_of(text: str) -> int:
            token = backend.token_to_id(text)
            if token is None or token >= vocab_size:
                raise ModelError(f"{where}: the delimiter {shown(text, 60)} is not a token of the model.")
            return token

        state, question, option, option_end, decide = map(token_of, stored.delimiters)
        return cls(
            state,
            question,
            option,
            option_end,
            decide,
            stored.dimensions,
            stored.temperature,
            stored.max_state,
            stored.max_branch,
        )
