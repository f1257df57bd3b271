"""Words and codes that answer questions: each is one token behind the prompt, and no two are the same token."""

import itertools
import string
from collections.abc import Iterable

import numpy as np
from jaxtyping import Int32

from mis_core.errors import RequestError
from mis_core.tasks.prompts import Prompter
from mis_core.tasks.questions import Question
from mis_core.tokenization import Tokenizer

_UPPER, _LOWER = string.ascii_uppercase, string.ascii_lowercase
_CODES = (
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
    """Finds the labels of questions, those of one kind of ending once.

    Args:
        tokenizer: The model's.
        prompter: Makes the prompts behind which they are.
        vocab_size: Tokens are below this.
    """

    def __init__(self, tokenizer: Tokenizer, prompter: Prompter, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._prompter = prompter
        self._vocab_size = vocab_size
        self._found: dict[tuple[str, int], Labels | None] = {}

    def labels(self, question: Question, place: str) -> Labels:
        """Return the words for yes and no for a predicate, otherwise one code for each option.

        Args:
            question: The question.
            place: Where it is, for errors.

        Raises:
            RequestError: `too_few_label_tokens`.
        """
        key = question.kind, len(question.options)
        if key not in self._found:
            self._found[key] = self._codes(question) if question.options else self._words(question)
        found = self._found[key]
        if found is None:
            answers = f"{len(question.options)} options" if question.options else "yes and no"
            message = f"{place}: this model's vocabulary has no single tokens for {answers} behind the prompt."
            raise RequestError("too_few_label_tokens", message, "questions")
        return found

    def _words(self, question: Question) -> Labels | None:
        for words in _WORDS:
            found = self._single_tokens(self._prompter.tail(question.ending(words)), [words])
            if len(found) == len(words):
                return _labels(found, len(words))
        return None

    def _codes(self, question: Question) -> Labels | None:
        wanted = len(question.options)
        found = self._single_tokens(self._prompter.tail(question.ending(())), _CODES, wanted)
        return _labels(found, wanted) if len(found) >= wanted else None

    def _single_tokens(self, tail: str, groups: Iterable[tuple[str, ...]], wanted: int = 2) -> dict[int, str]:
        """Return those texts by their token, group after group until there are as many as wanted."""
        found: dict[int, str] = {}
        for texts in groups:
            items = [self._prompter.lead + text for text in texts]
            joined = self._tokenizer.join(tail, items, add_special_tokens=False)
            adds_one = (np.diff(joined.item_starts) == 1) & (joined.context_lens == len(joined.query))
            for index in np.flatnonzero(adds_one):
                token = int(joined.item_tokens[joined.item_starts[index]])
                if token < self._vocab_size:
                    found.setdefault(token, texts[index])
            if len(found) >= wanted:
                break
        return found


def _labels(found: dict[int, str], count: int) -> Labels:
    return list(found.values())[:count], np.array(list(found)[:count], np.int32)
