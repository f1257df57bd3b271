"""The playground's files: one page for browsers, as it is served, without a build step."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath

PAGE = "/playground"
"""Path of the page itself."""

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class File:
    """A file of the page.

    Attributes:
        content: What it holds.
        media_type: What browsers are told it is.
        etag: Changes with its content; in quotes, as the header has it.
    """

    content: bytes
    media_type: str
    etag: str


def read_files() -> dict[str, File]:
    """Read the files of the page; each has its URL's path as its name, and the page itself is `PAGE`."""
    found = {}
    for file in files(__name__).joinpath("files").iterdir():
        content = file.read_bytes()
        path = PAGE if file.name == "index.html" else f"{PAGE}/{file.name}"
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        found[path] = File(content, _MEDIA_TYPES[PurePath(file.name).suffix], etag)
    return found
