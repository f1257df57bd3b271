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

Where layers are recurrent, a node may have the state after its page, in a slot (decision 50). A query goes on from the
deepest node that has one; pages behind it that are there are computed again, and not written. Each query has
states before its last page and at its end, for its items, and one where its last chunk ended, for the next.
"""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

import numpy as np
from jaxtyping import Int32

from mis_core.cache.free_pages import GROUP, FreePages, groups_within
from mis_core.cache.nodes import CacheStatistics, Inserted, Node, PrefixLock
from mis_core.cache.states import StateSlots

_DIGEST_BYTES = 16
_EARLY = 8 * GROUP  # pages that may be evicted at once though others are free; with half of them groups stay broken


class PrefixCache:
    """The tree of prefixes and the free pages."""

    def __init__(self, pages: int, page_size: int, *, enabled: bool = True, states: int = 0) -> None:
        """Start empty.

        Args:
            pages: Pages of the KV cache.
            page_size: Tokens in a page.
            enabled: Whether prefixes are kept and found; otherwise pages are free as soon as nobody locks them.
            states: Slots for recurrent states; 0: no layer is recurrent.
        """
        self.page_size = page_size
        self.states = StateSlots(states) if states else None
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
            evicted_states=self.states.evicted if self.states else 0,
            free_states=self.states.free_count if self.states else 0,
            states=self.states.count if self.states else 0,
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
        matched = sum(self._lock_node(lock, node) for node in self._usable(lock))
        lock.cached += matched
        if matched:
            self._hold_states(lock)
        return matched

    def count_cached(self, lock: PrefixLock) -> int:
        """Return how many tokens `match` would lock now; lock none, and leave the order of eviction as it is."""
        return sum(len(node.tokens) for node in self._usable(lock)) // lock.tokens.itemsize

    def insert(self, lock: PrefixLock, count: int, *, computes: bool = True) -> Inserted:
        """Allocate pages for the next tokens of a locked prefix, which the step being planned computes.

        Args:
            lock: The prefix, with nothing more to match.
            count: Tokens; whole pages, or all that is left. As many pages can be had, and `lock.missing_states` slots.
            computes: Whether this device computes them. Otherwise it gets their states at the end of the step, in
                slots that are the caller's until `receive`.
        """
        assert count == len(lock.tokens) - lock.done or count % self.page_size == 0, "a chunk ends on a page boundary"
        begin, pages = lock.done, -(-count // self.page_size)
        known = list(islice(self._cached(lock), pages))
        assert not known or self.states is not None, "computed though cached: match first"
        for node in known:
            self._lock_node(lock, node)
        for page in self.allocate(pages - len(known), first=len(lock.path)):
            digest, tokens = self._next(lock)
            node = self._nodes[digest] = Node(digest, lock.path[-1] if lock.path else None, tokens, int(page), locks=1)
            lock.append(node)
        if self.states is None:
            return Inserted()
        if not computes:
            ends = (tokens for tokens in self._query_ends(lock) if begin < tokens <= lock.done)
            return Inserted(len(known), None, tuple((tokens - begin, self.states.allocate()) for tokens in ends))
        read = lock.states[begin] if begin else None
        writes: list[tuple[int, int]] = []
        for tokens in self._state_ends(lock, begin):
            state = lock.path[self._pages_of(tokens) - 1].state
            if state.slot is None:
                state.slot = slot = self.states.allocate()
                state.readers += 1  # held at once, or the next would evict it
                writes.append((tokens - begin, slot))
                lock.states[tokens] = state
        self._hold_states(lock)
        return Inserted(len(known), None if read is None else read.slot, tuple(writes))

    def receive(self, lock: PrefixLock, tokens: int, slot: int) -> None:
        """Take the state after so many tokens of a lock into the tree, and hold it; steps that are planned write it.

        Args:
            lock: The prefix.
            tokens: After which its items start.
            slot: The caller's; it is free if the tree has the state.
        """
        assert self.states is not None, "no layer is recurrent"
        state = lock.states[tokens] = lock.path[self._pages_of(tokens) - 1].state
        if state.slot is None:
            state.slot = slot
        else:
            self.states.free(slot)
        self.states.hold(state)
        state.is_query_end = True

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

    def let_go_of_states(self, lock: PrefixLock) -> None:
        """Let the request of a lock read no states any more; its pages stay locked."""
        self._let_go(lock, {*lock.states})

    def release(self, lock: PrefixLock, *, count: bool = True) -> None:
        """Lock nothing any more. Releasing twice is fine.

        Args:
            lock: The prefix.
            count: Whether what was found and computed enters the statistics.
        """
        self.let_go_of_states(lock)
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

    def check(self, private: int = 0, private_states: int = 0) -> None:
        """Assert that every page, and every slot of a state, is accounted for.

        Args:
            private: Pages that callers allocated and have not freed.
            private_states: Slots that they did.
        """
        if self.states is not None:
            self.states.check([node.state for node in self._nodes.values()], private_states)
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

    def _usable(self, lock: PrefixLock) -> list[Node]:
        """Return the nodes behind the path of a lock that a request can go on from: all, or up to a state."""
        nodes = list(self._cached(lock))
        if self.states is None:
            return nodes
        before_last = (len(lock.tokens) - 1) // self.page_size - len(lock.path)  # pages
        for count in range(len(nodes), 0, -1):
            # At the end of a query both of its states are wanted.
            has_both = not 0 < before_last < count or nodes[before_last - 1].state.slot is not None
            if nodes[count - 1].state.slot is not None and has_both:
                return nodes[:count]
        return []

    def _lock_node(self, lock: PrefixLock, node: Node) -> int:
        """Go one page on, which is in the tree; return its tokens."""
        node.locks += 1
        self._idle.pop(node.digest, None)
        return lock.append(node)

    def _pages_of(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _state_ends(self, lock: PrefixLock, begin: int) -> list[int]:
        """Return the numbers of tokens after which a lock's request reads states, beyond `begin` and up to `done`."""
        before_last, _ = self._query_ends(lock)
        return [tokens for tokens in sorted({before_last, lock.done}) if begin < tokens <= lock.done]

    def _query_ends(self, lock: PrefixLock) -> tuple[int, int]:
        """Return the numbers of tokens after which items of a query start: before its last page, and all."""
        return (len(lock.tokens) - 1) // self.page_size * self.page_size, len(lock.tokens)

    def _hold_states(self, lock: PrefixLock) -> None:
        """Hold the states that a lock's request reads from now on, and let go of others."""
        if self.states is None:
            return
        wanted = {*self._state_ends(lock, 0)}
        for tokens in wanted - {*lock.states}:
            state = lock.path[self._pages_of(tokens) - 1].state
            self.states.hold(state)
            lock.states[tokens] = state
        for tokens in wanted & {*self._query_ends(lock)}:
            lock.states[tokens].is_query_end = True
        self._let_go(lock, {*lock.states} - wanted)

    def _let_go(self, lock: PrefixLock, ends: set[int]) -> None:
        if self.states is None:
            return
        for tokens in ends:
            self.states.let_go(lock.states.pop(tokens))

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
        if self.states is not None:
            self.states.drop(node.state)
