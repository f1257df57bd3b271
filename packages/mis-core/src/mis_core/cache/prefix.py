"""Prefix cache: a tree of pages, so that a query computed once is not computed again.

A node is one page of tokens behind its parent's; the path from the root to it is a prefix. Nodes are
found by a keyed hash of that path (BLAKE2b, RFC 7693; the key is drawn per process, so nobody can aim
at a collision, and the tokens are compared all the same). A request's salt changes the root, so
requests share prefixes only with requests of the same salt.

The last page of a query is usually partial. It is a node too, found by a query that ends with exactly
these tokens; a longer query computes that page again, in a page of its own, because pages in use are
never written.

A node enters the tree when the step that computes it is planned: steps run in order, so whoever finds
it there is planned into the same step or a later one. Nodes on the path of a held prefix stay; all
others are evicted, least recently used first and children before parents, when pages are needed.
"""

import dataclasses
import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from mis_core.cache.pages import OutOfPages, PagePool

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Counts since the cache was made, and its state now.

    Attributes:
        hit_tokens: Query tokens found in the cache.
        missed_tokens: Query tokens that had to be computed.
        evicted_pages: Pages whose prefix was forgotten because another needed room.
        free_pages: Pages that hold nothing.
        cached_pages: Pages in the tree, held or not.
        held_pages: Pages in the tree that requests hold.
        pages: All pages.
    """

    hit_tokens: int = 0
    missed_tokens: int = 0
    evicted_pages: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    held_pages: int = 0
    pages: int = 0


@dataclass(slots=True, eq=False)
class _Node:
    digest: bytes
    parent: "_Node | None"
    tokens: bytes
    page: int
    holders: int = 0


class PrefixCache:
    """The tree, the free pages, and what is held."""

    def __init__(self, pages: int, page_size: int, *, enabled: bool = True) -> None:
        """Start empty.

        Args:
            pages: Pages of the KV cache.
            page_size: Tokens in a page.
            enabled: Whether prefixes are kept and found; otherwise pages are free as soon as nobody holds them.
        """
        self.page_size = page_size
        self.enabled = enabled
        self._pool = PagePool(pages)
        self._nodes: dict[bytes, _Node] = {}
        # Nodes nobody holds, least recently used first. A release appends a path's last node first, so a
        # child always lies before its parent.
        self._idle: OrderedDict[bytes, _Node] = OrderedDict()
        self._key = secrets.token_bytes(32)
        self._counts = CacheStatistics()

    @property
    def available(self) -> int:
        """Pages that can be had: free ones and those that may be evicted."""
        return self._pool.free + len(self._idle)

    @property
    def statistics(self) -> CacheStatistics:
        """Counts since the cache was made, and its state now."""
        cached = len(self._nodes)
        return dataclasses.replace(
            self._counts,
            free_pages=self._pool.free,
            cached_pages=cached,
            held_pages=cached - len(self._idle),
            pages=self._pool.pages,
        )

    def take(self, count: int) -> Int32[np.ndarray, " count"]:
        """Return `count` pages for private use, evicting what nobody holds if need be.

        Raises:
            OutOfPages: too many are held. Nothing was evicted.
        """
        if count > self.available:
            raise OutOfPages(f"{count} pages are needed, but only {self.available} can be had")
        evicted = max(count - self._pool.free, 0)
        for _ in range(evicted):
            self._forget(self._idle.popitem(last=False)[1])
        self._counts = dataclasses.replace(self._counts, evicted_pages=self._counts.evicted_pages + evicted)
        return self._pool.take(count)

    def give(self, pages: Int32[np.ndarray, " count"]) -> None:
        """Return private pages."""
        self._pool.give(pages)

    def hold(self, tokens: Int32[np.ndarray, " tokens"], salt: str | None = None) -> "Prefix":
        """Begin to hold a prefix; nothing of it is found or allocated yet.

        Args:
            tokens: The whole query.
            salt: Only requests of the same salt share pages.
        """
        return Prefix(self, np.ascontiguousarray(tokens, np.int32), self._root(salt))

    def flush(self) -> int:
        """Forget every prefix that nobody holds; return how many pages that freed."""
        count = len(self._idle)
        while self._idle:
            self._forget(self._idle.popitem(last=False)[1])
        return count

    def check(self, private: int = 0) -> None:
        """Assert that every page is accounted for.

        Args:
            private: Pages that callers took with `take` and have not given back.
        """
        pages = [node.page for node in self._nodes.values()]
        free = self._pool.free_pages().tolist()
        assert len(set(pages + free)) == len(pages) + len(free), "a page is in two places"
        assert len(pages) + len(free) + private == self._pool.pages, "a page leaked"
        assert all(self._nodes.get(digest) is node for digest, node in self._idle.items()), "a forgotten node idles"
        assert all((node.holders == 0) == (digest in self._idle) for digest, node in self._nodes.items()), "holders"
        parents = [node.parent for node in self._nodes.values() if node.parent is not None]
        assert all(self._nodes.get(parent.digest) is parent for parent in parents), "a child outlived its parent"

    def _root(self, salt: str | None) -> bytes:
        text = b"" if salt is None else b"salt" + salt.encode()
        return self._hash(b"", text) if self.enabled else secrets.token_bytes(_DIGEST_BYTES)

    def _hash(self, parent: bytes, tokens: bytes) -> bytes:
        return hashlib.blake2b(parent + tokens, digest_size=_DIGEST_BYTES, key=self._key).digest()

    def _find(self, digest: bytes, tokens: bytes) -> _Node | None:
        node = self._nodes.get(digest)
        return node if node is not None and node.tokens == tokens else None

    def _grip(self, node: _Node) -> None:
        node.holders += 1
        self._idle.pop(node.digest, None)

    def _insert(self, node: _Node) -> None:
        assert node.digest not in self._nodes, "computed though cached: adopt first"
        node.holders = 1
        self._nodes[node.digest] = node

    def _release(self, path: list[_Node]) -> None:
        for node in reversed(path):
            node.holders -= 1
            if node.holders == 0:
                self._idle[node.digest] = node
                if not self.enabled:
                    self._forget(self._idle.pop(node.digest))

    def _forget(self, node: _Node) -> None:
        del self._nodes[node.digest]
        self._pool.give(np.array([node.page], np.int32))

    def _count(self, hit: int = 0, missed: int = 0) -> None:
        counts = self._counts
        self._counts = dataclasses.replace(
            counts, hit_tokens=counts.hit_tokens + hit, missed_tokens=counts.missed_tokens + missed
        )


class Prefix:
    """One request's hold on the pages of its query, from the first page to as far as it is computed.

    Attributes:
        tokens: The whole query, `[tokens]`.
        done: Tokens whose pages are computed or planned.
        cached: Those of them that this prefix found instead of computing.
    """

    def __init__(self, cache: PrefixCache, tokens: Int32[np.ndarray, " tokens"], root: bytes) -> None:
        self.tokens = tokens
        self.done = 0
        self.cached = 0
        self._cache = cache
        self._root = root
        self._path: list[_Node] = []

    @property
    def pages(self) -> Int32[np.ndarray, " pages"]:
        """Pages of the first `done` tokens, in order."""
        return np.array([node.page for node in self._path], np.int32)

    @property
    def missing_pages(self) -> int:
        """Pages that computing the rest will take, if nobody else computes any of it."""
        return -(-len(self.tokens) // self._cache.page_size) - len(self._path)

    def adopt(self) -> int:
        """Hold what the cache has of the tokens after `done`; return how many tokens that is."""
        adopted = 0
        while self.done < len(self.tokens):
            digest, tokens = self._next()
            node = self._cache._find(digest, tokens)
            if node is None:
                break
            self._cache._grip(node)
            self._append(node)
            adopted += len(tokens) // 4
        self.cached += adopted
        return adopted

    def extend(self, count: int) -> None:
        """Take pages for the next `count` tokens, which the step being planned computes.

        Args:
            count: Tokens; whole pages, or all that is left.

        Raises:
            OutOfPages: too many pages are held. Nothing changed.
        """
        page_size = self._cache.page_size
        assert count == len(self.tokens) - self.done or count % page_size == 0, "a chunk ends on a page boundary"
        for page in self._cache.take(-(-count // page_size)):
            digest, tokens = self._next()
            node = _Node(digest, self._path[-1] if self._path else None, tokens, int(page))
            self._cache._insert(node)
            self._append(node)

    def release(self, *, count: bool = True) -> None:
        """Hold nothing any more. Releasing twice is fine.

        Args:
            count: Whether what was found and computed enters the statistics.
        """
        if count:
            self._cache._count(hit=self.cached if self._path else 0, missed=max(self.done - self.cached, 0))
        self._cache._release(self._path)
        self._path = []
        self.done = 0

    def _append(self, node: _Node) -> None:
        self._path.append(node)
        self.done += len(node.tokens) // 4

    def _next(self) -> tuple[bytes, bytes]:
        parent = self._path[-1].digest if self._path else self._root
        tokens = self.tokens[self.done : self.done + self._cache.page_size].tobytes()
        return self._cache._hash(parent, tokens), tokens
