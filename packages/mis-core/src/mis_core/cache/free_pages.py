"""Free pages, given out so that those of one context follow one another where they can.

A kernel copies a tile of a context in one piece where its pages follow one another. Pages that are given out just as
they become free soon never do: queries differ in length. So a context's pages come in aligned groups of a tile's size,
and what does not fill a group shares other groups; a page that becomes free again completes its own group.
"""

from collections.abc import Iterator

GROUP = 8
"""Pages of a group: with 64 tokens a page, a tile of 512 keys, as the TPU kernel has them."""

_WHOLE = (1 << GROUP) - 1


class FreePages:
    """Which pages are free, by group."""

    def __init__(self, pages: int) -> None:
        """Start with all pages free, the lowest to be given out first; those behind the last whole group are single."""
        self._masks = [0] * -(-pages // GROUP)
        self._count = 0
        self._whole: dict[int, None] = {}  # groups, the next to give out last
        self._partial: dict[int, None] = {}
        for page in range(pages - 1, -1, -1):
            self.add(page)

    def __len__(self) -> int:
        """Return how many pages are free."""
        return self._count

    def __iter__(self) -> Iterator[int]:
        """Yield them, by number."""
        return (
            group * GROUP + index
            for group, mask in enumerate(self._masks)
            for index in range(GROUP)
            if mask >> index & 1
        )

    @property
    def groups(self) -> int:
        """How many groups are free as a whole."""
        return len(self._whole)

    def add(self, page: int) -> None:
        """Take a page back."""
        group, index = divmod(page, GROUP)
        self._masks[group] |= 1 << index
        self._count += 1
        if self._masks[group] == _WHOLE:
            self._partial.pop(group, None)
            self._whole[group] = None
        else:
            self._partial[group] = None

    def draw(self, count: int, first: int) -> list[int]:
        """Give out pages number `first`, `first + 1` and so on of a context; so many are free.

        Pages that make a whole group get one, as long as there are any.
        """
        pages: list[int] = []
        while len(pages) < count:
            index = first + len(pages)
            if self._whole and index % GROUP == 0 and count - len(pages) >= GROUP:
                group = self._whole.popitem()[0]
                self._masks[group] = 0
                self._count -= GROUP
                pages += range(group * GROUP, (group + 1) * GROUP)
            else:
                pages.append(self._draw_single())
        return pages

    def _draw_single(self) -> int:
        """Give out one page, of a group that is broken already if there is any."""
        if not self._partial:
            self._partial[self._whole.popitem()[0]] = None
        group = next(reversed(self._partial))
        mask = self._masks[group]
        lowest = mask & -mask
        self._masks[group] ^= lowest
        self._count -= 1
        if not self._masks[group]:
            del self._partial[group]
        return group * GROUP + lowest.bit_length() - 1


def groups_within(first: int, count: int) -> int:
    """Return how many whole groups the pages from `first` on make."""
    return max((first + count) // GROUP - -(-first // GROUP), 0)
