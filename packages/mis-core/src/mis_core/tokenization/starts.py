"""Where in a text each of its tokens begins, by the tokenizer's own offsets.

What tokens spell is not enough: a tokenizer may normalise the text first, and add tokens that are not in it.
"""

import json

import numpy as np
import tokenizers
from jaxtyping import Int32

from mis_core.checkpoints.components import components
from mis_core.tokenization.encoder import Encoder

_SPACE = "Ġ"  # how byte-level vocabularies write a space


class Starts:
    """Tells the places of tokens. Thread-safe."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        state = None if backend.post_processor is None else json.loads(backend.post_processor.__getstate__())
        self._trims = any(each.get("trim_offsets") for each in components(state))

    def __call__(
        self, encoder: Encoder, text: str, add_special_tokens: bool
    ) -> tuple[Int32[np.ndarray, " tokens"], Int32[np.ndarray, " tokens"]]:
        """Return the tokens that the library makes of a text, and how many of its characters come before each.

        What is put before the text is at 0, and what is put behind it at its end.
        """
        encoding = encoder.encoding(text, add_special_tokens)
        tokens = np.array(encoding.ids, np.int32)
        starts = np.array([begin for begin, _ in encoding.offsets], np.int32)
        if self._trims:  # then leading spaces of a token are not in its offsets, but they are in the token
            starts = np.maximum(starts - np.array(list(map(_leading_spaces, encoding.tokens)), np.int32), 0)
        own = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
        if not len(own):
            return tokens, np.zeros_like(starts)
        starts[: own[0]], starts[own[-1] + 1 :] = 0, len(text)
        return tokens, starts


def _leading_spaces(token: str) -> int:
    return next((index for index, each in enumerate(token) if each != _SPACE and not each.isspace()), len(token))
