"""Where a query's text may be cut so that no continuation can change the tokens before the cut.

Joining `query + item` can change more of the query's tokens than its last one: white space merges with
the item's newlines, an added token such as `<|im_end|>` forms across the seam, Unicode normalisation
composes or reorders. This module finds a cut `B` for which

    ids(query + item) == ids(query[:B]) + ids(query[B:] + item)      for every string `item`

follows from the tokenizer's own definition. A cut lies between `left`, a letter or an ASCII digit, and
`right`, one of a few white space and punctuation characters. The tokenizer works in four stages, and
each of them splits exactly there:

1. *Added tokens* are found in the raw text, leftmost first, and those marked `normalized` again in the
   normalised text. A match that crosses the cut contains `right` after its first character. Characters
   that occur so in any added token are not used. Added tokens that look at or swallow their neighbours
   (`lstrip`, `rstrip`, `single_word`) rule out every cut.
2. *Normalisation* is none or NFC. `right` is a starter that composes with nothing before it, so NFC of
   the whole is NFC of the parts, and `left` is still the last character before the cut.
3. *Pre-tokenisation* is one of the regular expressions below, matched from left to right. None looks
   behind, so the match that begins at a place depends only on the text from there on. Every
   alternative that can consume `left` ends at the cut: runs of letters or of digits stop before
   `right`, contractions such as `'re` need a letter. No alternative that matches wholly before the cut
   can tell `right` from the end of the text: the only look-ahead follows white space, and `left` is
   none. So a match ends at the cut with and without a continuation, and the next one begins there.
4. *The model* (byte-pair merges) sees one pre-token at a time, and the tokens that a post-processor
   adds at the ends do not depend on the text (see `tokenizer`).

Where a tokenizer is not of this kind (SentencePiece style, unknown patterns), no cut is offered, and the
joined strings are tokenised whole.
"""

import json
import unicodedata
from typing import Any

import tokenizers
from tokenizers import models

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLIT_PATTERNS = frozenset(
    {
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST,  # Qwen2, Qwen2.5, Qwen3
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST,  # Llama 3
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    }
)
"""Patterns for which stage 3 of the argument was checked by hand; add one only after checking it."""

# Starters (combining class 0) that are stable under NFC in every position: none occurs as the second
# character of a canonical composition. None is a letter, a digit or a combining mark.
_CUT_CHARACTERS = frozenset(" \t\n\r" + ',.;:!?()"' + "，。、；：！？（）「」“”")  # noqa: RUF001 - meant as written

_LONGEST_SEARCH = 1 << 16  # characters; a text without any cut in so many is joined whole


def cut_characters(backend: tokenizers.Tokenizer) -> frozenset[str]:
    """Return the characters before which a text may be cut; none if nothing can be proven."""
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip or token.single_word for token in added):
        return frozenset()
    if not _is_plain_normalizer(_state(backend.normalizer)) or not _splits_as_known(_state(backend.pre_tokenizer)):
        return frozenset()
    if not isinstance(backend.model, models.BPE) or backend.model.dropout:
        return frozenset()
    inside = {char for token in added for char in token.content[1:]}
    inside |= {char for token in added for char in unicodedata.normalize("NFC", token.content)[1:]}
    return _CUT_CHARACTERS - inside


def find_cut(text: str, characters: frozenset[str]) -> int | None:
    """Return the last place where `text` may be cut, or None.

    Args:
        text: The query.
        characters: What `cut_characters` returned for the tokenizer.
    """
    last = len(text) - 1
    for place in range(last, max(0, last - _LONGEST_SEARCH), -1):
        if text[place] in characters and _is_settled(text[place - 1]):
            return place
    return None


def _is_settled(char: str) -> bool:
    """Whether every Unicode version agrees that this is a letter, and NFC leaves it alone."""
    if char.isascii():
        return char.isalnum()
    return (
        unicodedata.category(char)[0] == "L"
        and unicodedata.ucd_3_2_0.category(char)[0] == "L"  # regular expression engines bring their own tables
        and unicodedata.normalize("NFC", char) == char
    )


def _state(component: Any) -> dict[str, Any] | None:
    """Return the `tokenizer.json` form of a normaliser or pre-tokeniser."""
    return None if component is None else json.loads(component.__getstate__())


def _is_plain_normalizer(state: dict[str, Any] | None) -> bool:
    if state is not None and state["type"] == "Sequence":
        return all(_is_plain_normalizer(part) for part in state["normalizers"])
    return state is None or state["type"] == "NFC"


def _splits_as_known(state: dict[str, Any] | None) -> bool:
    """Whether this is one known split and then bytes as characters, with nothing put before the text."""
    if state is None:
        return False
    if state["type"] == "ByteLevel":
        return state["use_regex"] and not state["add_prefix_space"]
    if state["type"] != "Sequence" or len(state["pretokenizers"]) != 2:
        return False
    split, byte_level = state["pretokenizers"]
    return (
        split["type"] == "Split"
        and split["pattern"].get("Regex") in SPLIT_PATTERNS
        and split["behavior"] == "Isolated"
        and not split["invert"]
        and byte_level["type"] == "ByteLevel"
        and not byte_level["use_regex"]
        and not byte_level["add_prefix_space"]
    )
