"""Gates: what a figure must be at least or at most, `accuracy>=0.9` or `ece@films<=0.05`."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mis_bench.evaluate.figures import NAMES, is_figure

_EXPRESSION = re.compile(
    r"\s*(?P<name>.+?)\s*(?P<sign>>=|<=)\s*(?P<limit>[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?)\s*", re.IGNORECASE
)


class GateError(Exception):
    """A gate cannot be read, or names what is not there; one sentence."""


@dataclass(frozen=True, slots=True)
class FigureGate:
    """A limit of a figure.

    Attributes:
        text: As it was written.
        figure: Its name.
        slice: Of which slice, or None.
        is_least: Whether the limit is the least that passes, or the most.
        limit: Itself.
    """

    text: str
    figure: str
    slice: str | None
    is_least: bool
    limit: float

    @classmethod
    def parse(cls, text: str) -> "FigureGate":
        """Read `FIGURE>=LIMIT`, `FIGURE@SLICE<=LIMIT`; raises `GateError`.

        What follows the first `@` of `coverage` and `ndcg` is their number.
        """
        match = _EXPRESSION.fullmatch(text)
        if match is None:
            raise GateError(
                f"{text[:80]!r} is not a gate; write FIGURE>=LIMIT or FIGURE<=LIMIT, such as accuracy>=0.9."
            )
        words = match["name"].split("@")
        size = 2 if words[0] in ("coverage", "ndcg") else 1
        figure, part = "@".join(words[:size]), "@".join(words[size:])
        if not is_figure(figure) or (len(words) > size and not part):
            raise GateError(
                f"{text[:80]!r} names no known figure; known are {', '.join(NAMES)}, each also with @SLICE."
            )
        return cls(text.strip(), figure, part or None, match["sign"] == ">=", float(match["limit"]))

    def check(self, slices: Collection[str]) -> None:
        """Look whether there is its slice; raises `GateError`."""
        if self.slice is not None and self.slice not in slices:
            known = ", ".join(sorted(slices)[:20]) or "none"
            raise GateError(
                f"The gate {self.text[:80]!r} names a slice that the data does not have; known are {known}."
            )

    def why_not(self, values: Mapping[str, float]) -> str | None:
        """Return why figures do not pass, or None if they do."""
        value = values.get(self.figure)
        if value is None:
            return f"{self.text}: there is no {self.figure} of these rows"
        passes = value >= self.limit if self.is_least else value <= self.limit
        return None if passes else f"{self.text}: it is {value:.4g}"
