"""Pages that nobody holds."""

import numpy as np
from jaxtyping import Int32


class OutOfPages(RuntimeError):
    """More pages were asked for than are free. Nothing was allocated."""


class PagePool:
    """A stack of free page numbers, `0 .. pages - 1`."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._stack = np.arange(pages - 1, -1, -1, dtype=np.int32)  # low numbers first
        self.num_free = pages

    def allocate(self, count: int) -> Int32[np.ndarray, " count"]:
        """Remove and return `count` pages.

        Raises:
            OutOfPages: fewer are free.
        """
        if count > self.num_free:
            raise OutOfPages(f"{count} pages are needed, but only {self.num_free} of {self.pages} are free")
        self.num_free -= count
        return self._stack[self.num_free : self.num_free + count][::-1].copy()

    def free(self, pages: Int32[np.ndarray, " count"]) -> None:
        """Put pages back."""
        self._stack[self.num_free : self.num_free + len(pages)] = pages[::-1]
        self.num_free += len(pages)

    def free_pages(self) -> Int32[np.ndarray, " free"]:
        """Return the numbers of all free pages."""
        return self._stack[: self.num_free].copy()
