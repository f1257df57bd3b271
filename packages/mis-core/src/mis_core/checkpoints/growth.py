"""How many characters a tokenizer may make of one, before it looks anything up: those of strangers may multiply texts.

Seven replacements of a letter by ten of it make ten million characters of one, and so of the first token that is added.
So the factor is known before the tokenizer is made. Only what a file says is counted: the forms of Unicode and the
lower case are the same for everybody, and do nothing when they are repeated.
"""

import math
import re
from pathlib import Path
from typing import Any

from mis_core.checkpoints.charsmap import content_of
from mis_core.checkpoints.components import components
from mis_core.errors import ModelError

MOST = 64
"""Characters that may be made of one; published tokenizers make at most 12."""

MOST_ADDED = 1 << 18
"""Tokens that may be added to a vocabulary; tokenizers of speech add some ten thousand."""

_MOST_NORMALIZED, _LONGEST_NORMALIZED = 4096, 64  # XLM-R has one, of six characters
_UNICODE = 18  # the most that a compatibility form makes of one, and so the maps of SentencePiece (Unicode FAQ)
_FACTORS = {"ByteLevel": 4, "BertNormalizer": 3, "Metaspace": 2}

# Regular expressions each of whose parts takes a character: none of their matches is empty.
_CLASS = r"\[\^?(?:\\.|[^\[\]\\])+\]"
_PART = rf"(?:\\[sSdDwWntr]|\\[pP]\{{\w+\}}|\\[^0-9A-Za-z]|[^\\*?+|^$(){{}}\[\]]|{_CLASS})"
_TAKES_CHARACTERS = re.compile(rf"(?:{_PART}(?:\+|\{{[1-9]\d*(?:,\d*)?\}})?)+", re.DOTALL)


def check_growth(path: Path, tokenizer: dict[str, Any]) -> None:
    """Refuse a tokenizer that multiplies texts, or adds tokens without end.

    Args:
        path: The file.
        tokenizer: What `tokenizer.json` says; what is of a wrong type is left to whoever reads it.

    Raises:
        ModelError: it may make more than `MOST` characters of one, adds more than `MOST_ADDED` tokens, or has a regular
            expression where texts of the file itself could keep it busy.
    """
    of_texts, of_tokens = [tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")], [tokenizer.get("decoder")]
    for what, parts in (("normalizers and pre-tokenizers", of_texts), ("decoders", of_tokens)):
        growth = math.prod(map(_growth, components(*parts)))
        if growth > MOST:
            # A number of thousands of digits is no text for people.
            many = f"{growth:,} characters" if growth < 10**9 else "more than a billion characters"
            raise ModelError(
                f"{path}: its {what} may turn one character into {many}; at most {MOST} are allowed. "
                "Use another tokenizer with --tokenizer-path."
            )
    if any(map(_is_expression, components(*of_tokens))):  # it would be tried on every token that is shown
        raise ModelError(f"{path}: a decoder replaces matches of a regular expression, which is not supported.")
    _check_added(path, tokenizer)


def _check_added(path: Path, tokenizer: dict[str, Any]) -> None:
    """Refuse too many added tokens, and those that a regular expression would normalize without end, at load."""
    added = tokenizer.get("added_tokens")
    tokens = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    if len(tokens) > MOST_ADDED:
        raise ModelError(f"{path}: {len(tokens):,} added tokens; at most {MOST_ADDED:,} are allowed.")
    if not any(map(_is_expression, components(tokenizer.get("normalizer")))):
        return
    lens = [len(str(token.get("content"))) for token in tokens if token.get("normalized") is True]
    if len(lens) > _MOST_NORMALIZED or max(lens, default=0) > _LONGEST_NORMALIZED:
        raise ModelError(
            f"{path}: a regular expression normalizes {len(lens):,} added tokens of up to {max(lens):,} characters; at "
            f"most {_MOST_NORMALIZED:,} of {_LONGEST_NORMALIZED} are allowed."
        )


def _is_expression(part: dict[str, Any]) -> bool:
    pattern = part.get("pattern")
    return part.get("type") == "Replace" and isinstance(pattern, dict) and "Regex" in pattern


def _growth(part: dict[str, Any]) -> int:
    content, prefix, charsmap = part.get("content"), part.get("prepend"), part.get("precompiled_charsmap")
    if isinstance(content, str):
        return _of_replacement(part.get("pattern"), len(content))
    if isinstance(prefix, str):
        return 1 + len(prefix)  # a text may be one character, and there may be thousands
    if isinstance(charsmap, str):
        return math.ceil(_longest(charsmap) / _UNICODE)
    return _FACTORS.get(str(part.get("type")), 1)


def _of_replacement(pattern: object, content: int) -> int:
    """Return what becomes of one character where a pattern is replaced by so many characters."""
    kinds = pattern if isinstance(pattern, dict) else {}
    text, expression = kinds.get("String"), kinds.get("Regex")
    if isinstance(text, str) and text:
        return max(1, math.ceil(content / len(text)))
    if isinstance(expression, str) and _TAKES_CHARACTERS.fullmatch(expression):
        return max(1, content)
    return 1 + content  # it may match where nothing is, beside every character


def _longest(charsmap: str) -> int:
    """Return the length of the longest text in a map of SentencePiece: behind a table of a size that comes first."""
    content = content_of(charsmap)
    texts = content[4 + int.from_bytes(content[:4], "little") :].split(b"\0")
    return max(1, *(len(text.decode(errors="replace")) for text in texts))
