"""Where a query's text may be cut so that no continuation can change the tokens before the cut.

Joining `query + item` can change more of the query's tokens than its last one: white space merges with
the item's newlines, an added token such as `<|im_end|>` forms across the seam, Unicode normalisation
composes or reorders. This module finds a cut, between `left`, a letter or an ASCII digit, and `right`, a
white space or punctuation character, for which two things follow from the tokenizer's own definition:

    ids(before + behind) == ids(before) + T(behind)
    for every `before` that ends in `left` and every `behind` that begins with `right`.

`T` is the same for every such `before`. So it can be had from the shortest of them, `left` alone:
T(behind) is ids(left + behind) without its first ids(left). That is right as well where a tokenizer puts
something before a text, such as a space: it does so before `left`.

A text goes through the stages below. Each either parts it at the cut, so that the rest of the stages see two texts; or
leaves both characters, or what it makes of them, as neighbours; or nothing is known, and this is no
cut. In the first two cases it does the same with what is before the cut, whatever is behind it, and the
other way round, as far as `left` and `right` tell.

1. *Added tokens* are found in the raw text, leftmost first. None holds `left` and then `right`, so none crosses
   the cut. None ends in `left`, so both characters are in one stretch between added
   tokens, or the cut is such a stretch's end. Those that take the white space beside them stop at `left`, which is
   none; those that look at their neighbours see `left` or what is on their own side.
2. *Normalisers* work on each such stretch, most of them on one character for itself (`stages`). Unicode's forms
   keep both characters; `right` is a starter and no second character of a composition, and so is
   `left`, so the form of the whole is that of the parts. What is stripped from the ends stops at `left`.
3. *Added tokens* marked `normalized` are found in the normalised text. As in 1.
4. *Pre-tokenisers* work on each part that the ones before have made. What a regular expression does is
   read from it (`patterns`).
5. *The model* works on each part. If the cut is inside one, then only byte-pair merges without a
   prefix or suffix are understood. They start from characters, of which `left` and `right` are two, because the
   vocabulary has both. A merge across the cut would make a token that holds `left` and then `right`; the
   vocabulary has none. Merges on either side never depend on the other's: they are taken by rank,
   then from left to right. (Unigram adds the scores from the text's beginning on, and rounds.)

The tokens that a post-processor adds at the ends do not depend on the text (see `tokenizer`). Sources:
`added_vocabulary.rs`, `normalizer.rs`, `pre_tokenizers/`, `models/bpe/` of `tokenizers` 0.23.
"""

import functools
import re
import unicodedata
from itertools import islice
from typing import Any

import tokenizers
from tokenizers import models

from mis_core.tokenization.stages import SPLIT, Stage, Step, stages

# Starters (combining class 0) that are stable under NFC in every position: none occurs as the second
# character of a canonical composition. None is a letter, a digit or a combining mark.
_CUT_CHARACTERS = frozenset(" \t\n\r" + ',.;:!?()"' + "，。、；：！？（）「」“”")  # noqa: RUF001 - meant as written
_ORDINARY = "abcdefghijklmnopqrstuvwxyz0123456789"

# A text without any cut in so many characters, or at so many places that might be one, is joined whole.
_LONGEST_SEARCH = 1 << 16
_MOST_PLACES = 1 << 12


class Seam:
    """The cuts that one tokenizer allows. Thread-safe."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Read what the tokenizer does; quick, for nothing is read of its vocabulary unless it is needed."""
        normalizer = backend.normalizer
        raw, normalized = set(), set()
        for token in backend.get_added_tokens_decoder().values():
            if not token.normalized:
                raw.add(token.content)
            else:
                normalized.add(token.content if normalizer is None else normalizer.normalize_str(token.content))
        self._stages = [
            _between_added(raw),
            *stages(normalizer),
            _between_added(normalized),
            *stages(backend.pre_tokenizer),
            _model_stage(backend),
        ]
        if _draws(backend.model):
            self._stages = [lambda left, right: None]
        self._allows = functools.lru_cache(4096)(self._follow)

    def __bool__(self) -> bool:
        """Whether there is a cut in any ordinary text."""
        return any(self._allows(left, right) for right in sorted(_CUT_CHARACTERS) for left in _ORDINARY)

    def cut(self, text: str) -> int | None:
        """Return the last place where `text` may be cut, or None; a letter or digit is before it."""
        last = len(text) - 1
        backwards = range(last, max(0, last - _LONGEST_SEARCH), -1)
        places = (place for place in backwards if text[place] in _CUT_CHARACTERS and _is_settled(text[place - 1]))
        allowed = (place for place in islice(places, _MOST_PLACES) if self._allows(text[place - 1], text[place]))
        return next(allowed, None)

    def _follow(self, left: str, right: str) -> bool:
        """Whether two characters are a cut: what becomes of them, stage by stage."""
        for stage in self._stages:
            step = stage(left, right)
            if not isinstance(step, tuple):
                return step == SPLIT
            left, right = step
        return False


def _draws(model: Any) -> bool:
    """Whether the model tokenises at random."""
    return bool(getattr(model, "dropout", None)) or getattr(model, "alpha", None) is not None


def _between_added(contents: set[str]) -> Stage:
    """Return the stage that finds added tokens."""
    pairs = {content[at : at + 2] for content in contents for at in range(len(content) - 1)}
    ends = {content[-1:] for content in contents}

    def find(left: str, right: str) -> Step:
        return None if left + right in pairs or left in ends else (left, right)

    return find


def _model_stage(backend: tokenizers.Tokenizer) -> Stage:
    """Return the stage in which a part of the text that holds the cut becomes tokens."""
    model = backend.model
    # A whole part that is a token is taken as it is with `ignore_merges`: so for the part before the cut alone.
    if (
        not isinstance(model, models.BPE)
        or model.continuing_subword_prefix
        or model.end_of_word_suffix
        or model.ignore_merges
    ):
        return lambda left, right: None

    @functools.cache
    def vocabulary() -> tuple[set[str], str, bool]:
        """Return the characters that are tokens, all tokens in one text, and whether there is one for every byte."""
        ids = backend.get_vocab(with_added_tokens=False)
        has_bytes = model.byte_fallback and all(f"<0x{byte:02X}>" in ids for byte in range(256))
        if len(set(ids.values())) < len(ids):  # merges are kept by id
            return set(), "", False
        return {token for token in ids if len(token) == 1}, "\0".join(ids), has_bytes

    @functools.cache
    def before(right: str) -> set[str]:
        """Return the characters that come directly before this one in any token."""
        return set(re.findall("(?s).(?=" + re.escape(right) + ")", vocabulary()[1]))

    def merge(left: str, right: str) -> Step:
        characters, _, has_bytes = vocabulary()
        if left not in characters and has_bytes:
            left = ">"  # the last of its bytes, as the vocabulary spells it
        elif left not in characters:
            return None
        return SPLIT if right in characters and left not in before(right) else None

    return merge


def _is_settled(char: str) -> bool:
    """Whether this is a letter in every Unicode version, and no form but a compatible one changes or composes it."""
    if char.isascii():
        return char.isalnum()
    return (
        unicodedata.category(char)[0] == "L"
        and unicodedata.ucd_3_2_0.category(char)[0] == "L"  # regular expression engines bring their own tables
        and unicodedata.normalize("NFC", char) == char
        and not "\u1160" <= char <= "\u11ff"  # parts of syllables compose with the part before
    )
