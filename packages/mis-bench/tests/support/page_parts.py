"""Elements of a page, in HTML or in Markdown, for tests of the report."""

import re
from html.parser import HTMLParser

from markdown_it import MarkdownIt

TableRow = dict[str, str]
"""Cells by heading."""


class Page(HTMLParser):
    """What a page would load, and the plots that are drawn on it.

    Attributes:
        loaded: Addresses.
        marks: Lines, points and bars by the identifiers of plots that have an SVG.
        areas: Width and height of the area between the axes, in pixels, likewise.
        body: Attributes of the body.
        text: All text of the page.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.plots: list[str] = []
        self.marks: dict[str, int] = {}
        self.areas: dict[str, tuple[float, float]] = {}
        self.body: dict[str, str] = {}
        self.text = ""
        self._tag = ""
        self._is_in_point = self._is_in_clip = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        classes = set(found.get("class", "").split())
        self._tag = tag
        self.loaded += [found[name] for name in ("src", "srcset", "poster", "data", "action") if name in found]
        self.loaded += [found["href"]] if tag == "link" else []
        self.loaded += re.findall(r"url\(([^)]*)\)", found.get("style", ""))
        if tag == "body":
            self.body = found
        if tag == "div" and "plot" in classes:
            self.plots.append(found["id"])
        if tag == "svg" and "main-svg" in classes and self.plots:
            self.marks.setdefault(self.plots[-1], 0)
        if tag == "rect" and self.plots and self._is_in_clip:
            self.areas[self.plots[-1]] = (float(found["width"]), float(found["height"]))
        self._is_in_clip = tag == "clippath" and "plotclip" in classes
        if tag == "path" and self.plots and ({"point", "js-line"} & classes or self._is_in_point) and found.get("d"):
            self.marks[self.plots[-1]] += 1
        self._is_in_point = tag == "g" and "point" in classes

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._tag == "style":
            self.loaded += ["".join(each) for each in re.findall(r"@import\s*([^;\s]+)|url\(([^)]*)\)", data)]


class _Tables(HTMLParser):
    """Tables of a page, by the caption before each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: dict[str, list[TableRow]] = {}
        self._caption = self._text = ""
        self._header: list[str] = []
        self._row: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            assert self._caption not in self.found
            self.found[self._caption], self._header = [], []
        elif tag == "tr":
            self._row = []
        elif tag in ("summary", "p", "th", "td"):
            self._text = ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("summary", "p"):
            self._caption = self._text.removesuffix(":")
        elif tag == "th":
            self._header.append(self._text)
        elif tag == "td":
            self._row.append(self._text)
        elif tag == "tr" and self._row:
            self.found[self._caption].append(dict(zip(self._header, self._row, strict=True)))

    def handle_data(self, data: str) -> None:
        self._text += data


def tables_of_html(text: str) -> dict[str, list[TableRow]]:
    """Return the tables of an HTML page by their captions, which differ."""
    return _Tables(text).found


def tables_of_markdown(text: str) -> dict[str, list[TableRow]]:
    """Return the tables of a page in Markdown by their captions, as GitHub shows them."""
    return tables_of_html(MarkdownIt("commonmark").enable("table").render(text))
