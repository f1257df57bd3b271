"""What the stages of a tokenizer do where two characters meet: the cases of the argument in `seam`.

A stage is a function of the two characters at a cut. It returns the two that stand there after it, `SPLIT`
if the text is always parted there, or None if nothing is known. Both other answers promise that the
stage does the same to the text before the cut whatever follows it, and the same to the text behind it
whatever comes before `left`. References are to the library's sources.
"""

import functools
import json
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any, Literal

from tokenizers import pre_tokenizers

from mis_core.checkpoints.components import components
from mis_core.tokenization.patterns import Pattern

SPLIT: Literal["split"] = "split"
Step = tuple[str, str] | Literal["split"] | None
Stage = Callable[[str, str], Step]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # byte_level.rs
_BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_SPACES = "\t\n\r"
_MOST_CHARACTERS = 4096  # of patterns, which take time by the square to read


def stages(*found: Any) -> list[Stage]:
    """Return the stages of normalisers and pre-tokenisers, in their order; None is none."""
    states = [json.loads(each.__getstate__()) for each in found if each is not None]
    parts = [part for part in components(states) if part["type"] != "Sequence"]
    if sum(map(_pattern_characters, parts)) > _MOST_CHARACTERS:
        return [_unknown]
    return [stage for part in parts for stage in _stages_of(part)]


def _pattern_characters(part: dict[str, Any]) -> int:
    return sum(map(len, part.get("pattern", {}).values()))


def _stages_of(state: dict[str, Any]) -> Iterator[Stage]:
    if state["type"] == "ByteLevel":
        if state.get("use_regex"):
            yield functools.partial(_split, Pattern(_GPT2))
        yield _bytes  # a space put before the text, or before each part of it, is put before `left`, too
    elif state["type"] in _FORMS:
        yield functools.partial(_unicode, state["type"])
    elif state["type"] in ("Split", "Replace"):
        yield _by_pattern(state)
    else:
        make = _STAGES.get(state["type"])
        yield _unknown if make is None else functools.partial(make, state)


def _unknown(left: str, right: str) -> Step:
    return None


def _same(state: dict[str, Any], left: str, right: str) -> Step:
    """What is done at the ends of the text only, or to characters that are none of these."""
    return left, right


def _unicode(form: Literal["NFC", "NFD", "NFKC", "NFKD"], left: str, right: str) -> Step:
    """Neither character changes, and neither composes with what comes before it (see `seam`)."""
    return (left, right) if unicodedata.is_normalized(form, left) and unicodedata.is_normalized(form, right) else None


def _lower(state: dict[str, Any], left: str, right: str) -> Step:
    """Each character for itself (normalizer.rs)."""
    lower = left.lower()
    return None if right.isalpha() or not (left.isascii() or lower == left) else (lower, right)


def _nmt(state: dict[str, Any], left: str, right: str) -> Step:
    return left, " " if right in _SPACES + "▁" else right


def _bert(state: dict[str, Any], left: str, right: str) -> Step:
    """Each character for itself, if accents and Chinese characters, which get spaces around, are left out."""
    if not left.isascii() or right.isalpha():  # bytes as characters may be letters, with accents
        return None
    left = left.lower() if state["lowercase"] else left
    return left, " " if state["clean_text"] and right in _SPACES else right


def _bytes(left: str, right: str) -> Step:
    """Every byte becomes a character."""
    return _BYTE_LEVEL.pre_tokenize_str(left)[0][0][-1], _BYTE_LEVEL.pre_tokenize_str(right)[0][0][0]


def _digits(state: dict[str, Any], left: str, right: str) -> Step:
    if right.isnumeric():
        return None
    return SPLIT if left in "0123456789" else (left, right) if left.isalpha() else None


def _words(state: dict[str, Any], left: str, right: str) -> Step:
    """Runs of word characters, and of others (whitespace.rs)."""
    is_word = left.isalpha() or left in "0123456789"
    return SPLIT if is_word and (right.isspace() or unicodedata.category(right) in _NO_WORD) else None


def _white_space(state: dict[str, Any], left: str, right: str) -> Step:
    return SPLIT if right.isspace() else (left, right)


def _punctuation(state: dict[str, Any], left: str, right: str) -> Step:
    if not _is_punctuation(right):
        return None if _is_punctuation(left) else (left, right)
    return SPLIT if state["behavior"] in ("Isolated", "Removed") else None


def _bert_words(state: dict[str, Any], left: str, right: str) -> Step:
    return SPLIT if right.isspace() or _is_punctuation(right) else (left, right)


def _delimiter(state: dict[str, Any], left: str, right: str) -> Step:
    if left == state["delimiter"]:
        return None
    return SPLIT if right == state["delimiter"] else (left, right)


def _metaspace(state: dict[str, Any], left: str, right: str) -> Step:
    """Spaces become another character, which may be put before the text, and begins a part if `split`."""
    space = state["replacement"]
    if left == space:
        return None
    right = space if right == " " else right
    return SPLIT if right == space and state["split"] else (left, right)


def _by_pattern(state: dict[str, Any]) -> Stage:
    ((kind, source),) = state["pattern"].items()
    try:
        pattern = Pattern(source, literal=kind == "String")
    except ValueError:
        return _unknown
    if state["type"] == "Split":
        return functools.partial(_split, pattern, behavior=state["behavior"])
    return functools.partial(_replace, pattern, source if kind == "String" else None, state["content"])


def _split(pattern: Pattern, left: str, right: str, *, behavior: str = "Isolated") -> Step:
    if pattern.ignores(left, right):
        return left, right
    return SPLIT if behavior in ("Isolated", "Removed") and pattern.parts(left, right) else None


def _replace(pattern: Pattern, text: str | None, content: str, left: str, right: str) -> Step:
    if pattern.ignores(left, right):
        return left, right
    return (left, content[0]) if text == right and content.startswith((" ", "▁")) else None


def _is_punctuation(char: str) -> bool:
    return unicodedata.category(char)[0] == "P"


_NO_WORD = ("Po", "Ps", "Pe", "Pi", "Pf")  # categories; connectors belong to words
_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_STAGES: dict[str, Callable[[dict[str, Any], str, str], Step]] = {
    "Strip": _same,
    "StripAccents": _same,
    "Prepend": _same,
    "Lowercase": _lower,
    "Nmt": _nmt,
    "BertNormalizer": _bert,
    "Digits": _digits,
    "Whitespace": _words,
    "WhitespaceSplit": _white_space,
    "Punctuation": _punctuation,
    "BertPreTokenizer": _bert_words,
    "CharDelimiterSplit": _delimiter,
    "Metaspace": _metaspace,
}
