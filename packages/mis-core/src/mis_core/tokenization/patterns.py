"""Where matches of a regular expression must end: what the pre-tokenisers that split by a pattern are judged by.

A pattern is read as Glushkov reads it (The abstract theory of automata, 1961): as *places*, each of which
consumes one character of a class, and a relation "may come next". From these follows, for two characters
`left` and `right`:

    no match holds `left` and then `right`  if no place for `left` may be followed by one for `right`.

Then a match that begins in a text which ends in `left` is the same whatever follows, if that begins with
`right`: the engine tries the same paths in the same order, and none reaches further. Look-ahead would
tell the difference, and so it may not come after a place for `left`. Patterns that look behind, refer
back, are anchored or may be empty are not read. Whether a character is in a class is asked of the
library's own engine, with its own Unicode tables.
"""

import functools
import re
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_LOOK = -1
_MOST_PLACES = 512  # what may follow is kept for each; published patterns have less than a hundred
_QUANTIFIER = re.compile(r"([?*+]|\{(?:\d+,?\d*|,\d+)\})[?+]?")
_ESCAPED = re.compile(
    r"\\(?:[pP]\{[^{}]*\}|[sSdDwWnrtf]|x[0-7][0-9a-fA-F]|x\{[0-9a-fA-F]+\}|u[0-9a-fA-F]{4}|[^0-9A-Za-z])"
)


class Pattern:
    """A regular expression of the library's own dialect, or a literal text."""

    def __init__(self, source: str, literal: bool = False) -> None:
        """Read a pattern.

        Raises:
            ValueError: nothing is claimed about patterns of this form.
        """
        if literal:
            source = re.sub(r"[\\^$.|?*+()\[\]{}]", r"\\\g<0>", source)
        reader = _Reader(source)
        try:
            is_nullable = reader.read().nullable
        except RecursionError:
            raise ValueError("Brackets within brackets without end.") from None
        if is_nullable:
            raise ValueError("The pattern matches the empty text.")
        self._follows = reader.follows
        self._classes = [_whole(text) for text in reader.classes]
        self._without_case = reader.without_case
        self._whole = _whole(source)
        self._places = functools.lru_cache(4096)(self._find_places)

    def ignores(self, left: str, right: str) -> bool:
        """Whether no match holds either of two characters."""
        return not self._places(left) and not self._places(right)

    def parts(self, left: str, right: str) -> bool:
        """Whether a match ends or begins between these characters wherever they meet, whatever is around them."""
        before, after = self._places(left), self._places(right)
        if any(_LOOK in self._follows[place] or self._follows[place] & after for place in before):
            return False
        # One of the two is always in a match, if it is one alone, and no look-ahead behind it sees what follows.
        return _matches(self._whole, left) or (
            _matches(self._whole, right) and not any(_LOOK in self._follows[place] for place in after)
        )

    def _find_places(self, char: str) -> frozenset[int]:
        return frozenset(
            place
            for place, pattern in enumerate(self._classes)
            if _matches(pattern, char) or (place in self._without_case and char.isalpha())
        )


def _whole(source: str) -> pre_tokenizers.Split:
    try:
        return pre_tokenizers.Split(Regex(source), behavior="removed")
    except Exception as error:  # the library has no other type for it
        raise ValueError(str(error)) from None


def _matches(pattern: pre_tokenizers.Split, char: str) -> bool:
    return not pattern.pre_tokenize_str(char)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a pattern: whether it may be empty, and at which places it may begin and end."""

    nullable: bool
    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()


class _Reader:
    """Reads a pattern from left to right, by recursive descent."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._ignores_case = False
        self.classes: list[str] = []
        self.without_case: set[int] = set()
        self.follows: list[set[int]] = []

    def read(self) -> _Part:
        part = self._alternatives()
        if self._at != len(self._source):
            raise ValueError("A bracket is closed that was not opened.")
        return part

    def _alternatives(self) -> _Part:
        part = self._sequence()
        while self._skip("|"):
            other = self._sequence()
            part = _Part(part.nullable or other.nullable, part.first | other.first, part.last | other.last)
        return part

    def _sequence(self) -> _Part:
        part = _Part(nullable=True)
        while self._at < len(self._source) and self._source[self._at] not in "|)":
            item = self._repeated()
            self._connect(part, item)
            part = _Part(
                part.nullable and item.nullable,
                part.first | item.first if part.nullable else part.first,
                part.last | item.last if item.nullable else item.last,
            )
        return part

    def _repeated(self) -> _Part:
        item = self._item()
        while found := _QUANTIFIER.match(self._source, self._at):
            self._at = found.end()
            if found[1] != "?":
                self._connect(item, item)
            if found[0][0] in "?*" or found[0].startswith(("{0", "{,")) or found[0].endswith("}?"):
                item = _Part(True, item.first, item.last)
        return item

    def _connect(self, before: _Part, after: _Part) -> None:
        for place in before.last:
            self.follows[place] |= after.first

    def _item(self) -> _Part:
        if self._skip("(?=") or self._skip("(?!"):
            return self._look_ahead()
        if self._skip("(?i:"):
            return self._in_brackets(ignores_case=True)
        if self._skip("(?:") or self._skip("("):
            return self._in_brackets(self._ignores_case)
        if self._skip("$"):
            return _Part(nullable=True, first=frozenset({_LOOK}))
        return self._class(self._one_character())

    def _in_brackets(self, ignores_case: bool) -> _Part:
        if self._source[self._at : self._at + 1] == "?":
            raise ValueError("A group of an unknown kind.")
        outer, self._ignores_case = self._ignores_case, ignores_case
        part = self._alternatives()
        self._ignores_case = outer
        self._close()
        return part

    def _look_ahead(self) -> _Part:
        """Read one that sees a single character."""
        self._one_character()
        self._close()
        return _Part(nullable=True, first=frozenset({_LOOK}))

    def _class(self, text: str) -> _Part:
        place = len(self.classes)
        if place == _MOST_PLACES:
            raise ValueError("A pattern of too many characters.")
        if self._ignores_case:  # then "ss" is "\u00df": one place may stand for two letters, and two for one
            self.without_case.add(place)
        self.classes.append(f"(?i:{text})" if self._ignores_case else text)
        self.follows.append(set())
        return _Part(False, frozenset({place}), frozenset({place}))

    def _one_character(self) -> str:
        """Read what consumes exactly one character."""
        begin, source = self._at, self._source
        if source[begin : begin + 1] == "[":
            self._at = self._end_of_brackets(begin)
        elif found := _ESCAPED.match(source, begin):
            self._at = found.end()
        elif begin == len(source) or source[begin] in "\\^$()|?*+{":
            raise ValueError(f"Not read: {source[begin : begin + 4]!r}.")
        else:
            self._at += 1
        return source[begin : self._at]

    def _end_of_brackets(self, begin: int) -> int:
        source, depth, at = self._source, 0, begin
        while at < len(source):
            if source[at] == "[":
                depth += 1
                if source[at + 1 :].lstrip("^").startswith("]"):
                    raise ValueError("A class that begins with a bracket.")
            elif source[at] == "]":
                depth -= 1
            elif source[at] == "\\":
                at += 1
            at += 1
            if depth == 0:
                return at
        raise ValueError("A class that is not closed.")

    def _skip(self, text: str) -> bool:
        taken = self._source.startswith(text, self._at)
        self._at += len(text) * taken
        return taken

    def _close(self) -> None:
        if not self._skip(")"):
            raise ValueError("A group that is not closed.")
