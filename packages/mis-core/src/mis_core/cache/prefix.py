"""Prefix cache: a tree of pages, so that a query computed once is not computed again.

A node is one page of tokens behind its parent's; the path from the root to it is a prefix. Nodes are
found by a keyed hash of that path (BLAKE2b, RFC 7693; the key is drawn per process, so nobody can aim
at a collision, and the tokens are compared all the same). A request's salt changes the root, so
requests share prefixes only with requests of the same salt.

The last page of a query is usually partial. It is a node too, found by a query that ends with exactly
these tokens; a longer query computes that page again, in a page of its own, because pages in use are
never written.

A node enters the tree when the step that computes it is planned: steps run in order, so whoever finds
it there is planned into the same step or a later one. Nodes on the path of a locked prefix stay; all
others are evicted, least recently used first and children before parents, when pages are needed.
"""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int32

from mis_core.cache.free_pages import GROUP, FreePages, groups_within
from mis_core.cache.nodes import CacheStatistics, Node, PrefixLock

_DIGEST_BYTES = 16
_EARLY = 8 * GROUP  # pages that may be evicted at once though others are free; with half of them groups stay broken


class PrefixCache:
    """The tree of prefixes and the free pages."""

    def __init__(self, pages: int, page_size: int, *, enabled: bool = True) -> None:
        """Start empty.

        Args:
            pages: Pages of the KV cache.
            page_size: Tokens in a page.
            enabled: Whether prefixes are kept and found; otherwise pages are free as soon as nobody locks them.
        """
        self.page_size = page_size
        self.enabled = enabled
        self._num_pages = pages
        self._free = FreePages(pages)
        self._nodes: dict[bytes, Node] = {}
        # Nodes nobody locks, least recently used first. A release appends a path's last node first, so a
        # child always lies before its parent.
        self._idle: OrderedDict[bytes, Node] = OrderedDict()
        self._key = secrets.token_bytes(32)
        self._hit_tokens = self._missed_tokens = self._evicted_pages = 0

    @property
    def available(self) -> int:
        """Pages that can be had: free ones and those that may be evicted."""
        return len(self._free) + len(self._idle)

    @property
    def statistics(self) -> CacheStatistics:
        """Counts since the cache was made, and its state now."""
        cached = len(self._nodes)
        return CacheStatistics(
            cache_hit_tokens=self._hit_tokens,
            cache_missed_tokens=self._missed_tokens,
            evicted_pages=self._evicted_pages,
            free_pages=len(self._free),
            cached_pages=cached,
            held_pages=cached - len(self._idle),
            pages=self._num_pages,
        )

    def allocate(self, count: int, first: int = 0) -> Int32[np.ndarray, " count"]:
        """Return `count` pages for private use, at most `available`, evicting what nobody locks if need be.

        Args:
            count: How many.
            first: Place in its context of the first of them: pages of a tile follow one another where they can.
        """
        assert count <= self.available, "nobody asks for pages that cannot be had"
        needed = max(count - len(self._free), 0)
        for _ in range(needed):
            self._forget_oldest()
        # A few pages early, since those that fill a group with free ones are often the next.
        groups, early = groups_within(first, count), 0
        while self._free.groups < groups and self._idle and early < _EARLY:
            self._forget_oldest()
            early += 1
        self._evicted_pages += needed + early
        return np.array(self._free.draw(count, first), np.int32)

    def free(self, pages: Int32[np.ndarray, " count"]) -> None:
        """Free private pages."""
        for page in pages.tolist():
            self._free.add(page)

    def lock(self, tokens: Int32[np.ndarray, " tokens"], salt: str | None = None, *, anew: bool = False) -> PrefixLock:
        """Begin to lock a prefix; nothing of it is found or allocated yet.

        Args:
            tokens: The whole query.
            salt: Only requests of the same salt share pages.
            anew: Nothing is found of it, and nobody finds it.
        """
        tokens = np.ascontiguousarray(tokens, np.int32)
        is_kept = self.enabled and not anew
        root = self._root(salt) if is_kept else secrets.token_bytes(_DIGEST_BYTES)
        return PrefixLock(tokens, root, -(-len(tokens) // self.page_size), is_kept)

    def match(self, lock: PrefixLock) -> int:
        """Lock what is cached of the tokens after `lock.done`; return how many tokens that is."""
        matched = 0
        for node in self._cached(lock):
            node.locks += 1
            self._idle.pop(node.digest, None)
            matched += lock.append(node)
        lock.cached += matched
        return matched

    def count_cached(self, lock: PrefixLock) -> int:
        """Return how many tokens `match` would lock now; lock none, and leave the order of eviction as it is."""
        return sum(len(node.tokens) for node in self._cached(lock)) // lock.tokens.itemsize

    def insert(self, lock: PrefixLock, count: int) -> None:
        """Allocate pages for the next tokens of a locked prefix, which the step being planned computes.

        Args:
            lock: The prefix, with nothing more to match.
            count: Tokens; whole pages, or all that is left. As many pages can be had.
        """
        assert count == len(lock.tokens) - lock.done or count % self.page_size == 0, "a chunk ends on a page boundary"
        for page in self.allocate(-(-count // self.page_size), first=len(lock.path)):
            digest, tokens = self._next(lock)
            assert digest not in self._nodes, "computed though cached: match first"
            node = self._nodes[digest] = Node(digest, lock.path[-1] if lock.path else None, tokens, int(page), locks=1)
            lock.append(node)

    def keep(
        self, tokens: Int32[np.ndarray, " tokens"], salt: str | None, pages: Int32[np.ndarray, " pages"], first: int
    ) -> None:
        """Take private pages into the tree, where they are found by others; those that are there already are free.

        Args:
            tokens: All tokens of the context, in whole pages.
            salt: Only requests of the same salt share pages.
            pages: Pages of the last of these tokens, which steps that are planned write.
            first: Number of the first of them in the context; those before are in the tree, and locked.
        """
        lock = self.lock(tokens, salt)
        if not lock.is_kept:
            self.free(pages)
            return
        self.match(lock)
        for index, page in enumerate(pages.tolist(), first):
            if index < len(lock.path):
                self._free.add(page)
                continue
            digest, content = self._next(lock)
            node = self._nodes[digest] = Node(digest, lock.path[-1] if lock.path else None, content, page, locks=1)
            lock.append(node)
        self.release(lock, count=False)

    def release(self, lock: PrefixLock, *, count: bool = True) -> None:
        """Lock nothing any more. Releasing twice is fine.

        Args:
            lock: The prefix.
            count: Whether what was found and computed enters the statistics.
        """
        if count and lock.path:
            self._hit_tokens += lock.cached
            self._missed_tokens += lock.done - lock.cached
        for node in reversed(lock.path):
            node.locks -= 1
            if node.locks == 0:
                self._idle[node.digest] = node
                if not lock.is_kept:
                    self._forget(self._idle.pop(node.digest))
        lock.path, lock.done = [], 0

    def flush(self) -> int:
        """Forget every prefix that nobody locks; return how many pages that freed."""
        count = len(self._idle)
        while self._idle:
            self._forget(self._idle.popitem(last=False)[1])
        return count

    def check(self, private: int = 0) -> None:
        """Assert that every page is accounted for.

        Args:
            private: Pages that callers allocated and have not freed.
        """
        pages = [node.page for node in self._nodes.values()]
        assert len({*pages, *self._free}) == len(pages) + len(self._free), "a page is in two places"
        assert len(pages) + len(self._free) + private == self._num_pages, "a page leaked"
        assert all(self._nodes.get(digest) is node for digest, node in self._idle.items()), "a forgotten node idles"
        assert all((node.locks == 0) == (digest in self._idle) for digest, node in self._nodes.items()), "locks"
        parents = [node.parent for node in self._nodes.values() if node.parent is not None]
        assert all(self._nodes.get(parent.digest) is parent for parent in parents), "a child outlived its parent"

    def _root(self, salt: str | None) -> bytes:
        text = b"" if salt is None else b"salt" + salt.encode()
        return self._hash(b"", text)

    def _cached(self, lock: PrefixLock) -> Iterator[Node]:
        """Yield the nodes behind the path of a lock that are in the tree."""
        parent = lock.path[-1].digest if lock.path else lock.root
        for begin in range(lock.done, len(lock.tokens), self.page_size):
            tokens = lock.tokens[begin : begin + self.page_size].tobytes()
            node = self._nodes.get(self._hash(parent, tokens))
            if node is None or node.tokens != tokens:
                return
            yield node
            parent = node.digest

    def _next(self, lock: PrefixLock) -> tuple[bytes, bytes]:
        """Return the digest and the tokens of the page after `lock.done`."""
        parent = lock.path[-1].digest if lock.path else lock.root
        tokens = lock.tokens[lock.done : lock.done + self.page_size].tobytes()
        return self._hash(parent, tokens), tokens

    def _hash(self, parent: bytes, tokens: bytes) -> bytes:
        return hashlib.blake2b(parent + tokens, digest_size=_DIGEST_BYTES, key=self._key).digest()

    def _forget_oldest(self) -> None:
        self._forget(self._idle.popitem(last=False)[1])

    def _forget(self, node: Node) -> None:
        del self._nodes[node.digest]
        self._free.add(node.page)
