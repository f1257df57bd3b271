"""Words and codes that answer questions: each is one token behind the prompt, and no two are the same token."""

import itertools
import string
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from mis_core.errors import RequestError
from mis_core.tasks.decide.prompts import Prompter
from mis_core.tasks.decide.questions import Question
from mis_core.tokenization import Tokenizer

_UPPER, _LOWER = string.ascii_uppercase, string.ascii_lowercase
CODES = (
    tuple(_UPPER),
    *(tuple(map("".join, itertools.product(*letters))) for letters in ((_UPPER, _UPPER), (_UPPER, _LOWER))),
    tuple(map("".join, itertools.product(_LOWER, _LOWER))),
)
"""All codes in the order they are taken: `A` to `Z`, `AA` to `ZZ`, `Aa` to `Zz`, `aa` to `zz`."""

_WORDS = (("Yes", "No"), ("yes", "no"), ("Y", "N"))
"""Words for yes and no, the first pair that can be used."""

Labels = tuple[list[str], Int32[np.ndarray, " labels"]]
"""Texts and the token that each is."""


class Codes:
    """Finds the labels of the questions of a request.

    Args:
        tokenizer: The model's.
        prompter: Makes the prompts behind which they are.
        vocab_size: Tokens are below this.
    """

    def __init__(self, tokenizer: Tokenizer, prompter: Prompter, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._prompter = prompter
        self._vocab_size = vocab_size
        self._words: dict[int, str] | None = None
        self._codes: dict[int, str] = {}
        self._codes_left = iter(CODES)

    def labels(self, question: Question, path: str) -> Labels:
        """Return the words for yes and no for a predicate, otherwise one code for each option.

        Args:
            question: The question.
            path: Where it is, for errors.

        Raises:
            RequestError: `too_few_label_tokens`.
        """
        wanted = len(question.options) or 2
        found = self._find_codes(question, wanted) if question.options else self._find_words(question)
        if len(found) < wanted:
            answers = f"{wanted} options" if question.options else "yes and no"
            message = f"{path}: this model's vocabulary has no single tokens for {answers} after the prompt."
            raise RequestError("too_few_label_tokens", message, "questions")
        return list(found.values())[:wanted], np.array(list(found)[:wanted], np.int32)

    def _find_words(self, question: Question) -> dict[int, str]:
        if self._words is None:
            pairs = (self._single_tokens(question.ending(words), words) for words in _WORDS)
            self._words = next((found for found in pairs if len(found) == 2), {})
        return self._words

    def _find_codes(self, question: Question, wanted: int) -> dict[int, str]:
        """Return codes, at least as many as wanted if there are so many; each is looked up once in a request."""
        while len(self._codes) < wanted and (texts := next(self._codes_left, None)) is not None:
            more = self._single_tokens(question.ending(()), texts)
            self._codes |= {token: text for token, text in more.items() if token not in self._codes}
        return self._codes

    def _single_tokens(self, ending: str, texts: Sequence[str]) -> dict[int, str]:
        """Return by its token each text that is one behind prompts whose questions end like this."""
        items = [self._prompter.lead + text for text in texts]
        joined = self._tokenizer.join(self._prompter.tail(ending), items, add_special_tokens=False)
        adds_one = (np.diff(joined.item_starts) == 1) & (joined.context_lens == len(joined.query))
        found: dict[int, str] = {}
        for index in np.flatnonzero(adds_one).tolist():
            token = int(joined.item_tokens[joined.item_starts[index]])
            if token < self._vocab_size:
                found.setdefault(token, texts[index])
        return found
