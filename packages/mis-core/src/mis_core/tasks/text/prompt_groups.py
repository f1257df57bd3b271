"""Prompts of one request that begin alike: which of them are computed together, and the engine's requests for that.

A group of prompts is one engine request: what all of them begin with is its query, the rest of each an item. The last
token that a group shares stays with the items: what follows it differs, and is read there.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from jaxtyping import Int32, Int64

from mis_core.ragged import offsets, ramp, rows_at
from mis_core.requests import Sampling, ScoreRequest

MAX_GROUPS = 256
"""Most groups of one request: each is an engine request, which costs more than the few tokens of a short prompt."""

_LEAST_SHARED = 16  # tokens; fewer are computed sooner than shared


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Prompts that are computed together.

    Attributes:
        members: Which prompts, `[items]`; one that is drawn from several times is there several times.
        shared: Tokens of the query, which all of them begin with; fewer than any of them has.
    """

    members: Int64[np.ndarray, " items"]
    shared: int


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """Token ids of prompts, none of them empty.

    Attributes:
        tokens: All ids, prompt after prompt, `[prompt_tokens]`.
        lens: Ids of each prompt, `[prompts]`.
    """

    tokens: Int32[np.ndarray, " prompt_tokens"]
    lens: Int64[np.ndarray, " prompts"]

    @property
    def starts(self) -> Int32[np.ndarray, " prompts_plus_one"]:
        """Offsets into `tokens`."""
        return offsets(self.lens)

    def alone(self, draws: int) -> list[Group]:
        """Return each prompt as a group of its own, in which its last token is there once for each draw."""
        return [Group(np.full(draws, prompt), count - 1) for prompt, count in enumerate(self.lens.tolist())]

    def group(self, *, cached: bool) -> list[Group]:
        """Group prompts such that one query each saves the most tokens.

        Sorted prompts whose beginnings are equal lie side by side, and the intervals of a common beginning make a
        tree, which is walked from its leaves (Abouelhoda, Kurtz, Ohlebusch, J. Discrete Algorithms 2, 2004): each
        interval becomes one group where that is cheaper than the best groups within it. Of more than `MAX_GROUPS`,
        those that save the most stay, and all other prompts become one group that shares nothing.

        Args:
            cached: Whether queries may come from the prefix cache and stay there. Prompts that share nothing are
                then groups of their own, otherwise one.
        """
        order = self._sorted()
        ends = np.concatenate([[0], np.cumsum(self.lens[order])]).tolist()
        groups: list[tuple[int, int, int]] = []  # the best for the prompts so far: first, end, shared tokens
        costs = [0]  # tokens computed for the groups before each
        # Beginnings that may go on: tokens, the first prompt, and how many groups there are before it.
        opened: list[tuple[int, int, int]] = []
        for prompt, common in enumerate([*self._common(order).tolist(), -1]):
            groups.append((prompt, prompt + 1, ends[prompt + 1] - ends[prompt] - 1))
            costs.append(costs[-1] + ends[prompt + 1] - ends[prompt])
            first, before = prompt, len(groups) - 1
            while opened and opened[-1][0] > common:
                depth, first, before = opened.pop()
                shared = depth - 1 if depth > _LEAST_SHARED else 0
                cost = costs[before] + ends[prompt + 1] - ends[first] - (prompt - first) * shared
                if cost < costs[-1] or (cost == costs[-1] and not cached):
                    groups[before:], costs[before + 1 :] = [(first, prompt + 1, shared)], [cost]
            if not opened or opened[-1][0] < common:
                opened.append((common, first, before))
        return _at_most([Group(order[first:end], shared) for first, end, shared in groups], cached)

    def request(
        self, group: Group, reads_all: bool, top_tokens: int, sampling: Sampling | None, cache_salt: str | None
    ) -> ScoreRequest:
        """Return what the engine computes for a group.

        Args:
            group: The group.
            reads_all: Whether all rows of the prompts are read, each with the token that follows as its label,
                instead of the last row of each prompt, which has none.
            top_tokens: Most probable tokens that are read at each row.
            sampling: How the token after each prompt is drawn, if one is: with as many keys as each prompt has draws.
            cache_salt: The salt of its cached prefix.
        """
        members, shared = group.members, group.shared
        if sampling is not None:  # every prompt's draws have the same keys, whatever else is in the request
            sampling = replace(sampling, keys=np.tile(sampling.keys, (len(members) // len(sampling.keys), 1)))
        lens = self.lens[members] - shared
        starts = self.starts[members]
        query = self.tokens[starts[0] : starts[0] + shared]
        items = rows_at(self.tokens, starts + shared, lens)
        item_starts = offsets(lens)
        labels = np.full(1, -1, np.int32)
        if reads_all:
            labels = np.append(np.concatenate([query, items])[1:], labels)
            labels[shared + item_starts[1:] - 1] = -1
        return ScoreRequest(
            query,
            items,
            item_starts,
            np.full(len(members), shared, np.int32),
            labels[:, None],
            read_lens=lens.astype(np.int32) if reads_all else None,
            query_reads=shared if reads_all else 0,
            top_tokens=top_tokens,
            cache_salt=cache_salt,
            sampling=sampling,
        )

    def rows(self, groups: list[Group]) -> Int64[np.ndarray, " prompt_tokens"]:
        """Return where the row of each token is among those of all groups' requests, which read all rows."""
        rows = np.empty(len(self.tokens), np.int64)
        base = 0
        for group in groups:
            lens = self.lens[group.members]
            offset = ramp(lens)
            own = np.repeat(offsets(lens - group.shared)[:-1], lens)  # rows of the items before each
            at = rows_at(np.arange(len(self.tokens)), self.starts[group.members], lens)
            rows[at] = base + offset + np.where(offset < group.shared, 0, own)
            base += group.shared + int((lens - group.shared).sum())
        return rows

    def _sorted(self) -> Int64[np.ndarray, " prompts"]:
        """Return the prompts in the order of their ids: bytes compare like numbers whose highest byte comes first."""
        data = self.tokens.astype(">u4").tobytes()
        starts = self.starts.tolist()
        keys = [data[4 * begin : 4 * end] for begin, end in pairwise(starts)]
        return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)

    def _common(self, order: np.ndarray) -> Int64[np.ndarray, " neighbours"]:
        """Return how many tokens every two neighbours begin with."""
        if len(order) == 1:
            return np.zeros(0, np.int64)
        left, right, starts = order[:-1], order[1:], self.starts
        lens = np.minimum(self.lens[left], self.lens[right])
        equal = rows_at(self.tokens, starts[left], lens) == rows_at(self.tokens, starts[right], lens)
        equals = np.where(equal, np.repeat(lens, lens), ramp(lens))
        return np.minimum.reduceat(equals, offsets(lens)[:-1])


def _at_most(groups: list[Group], cached: bool) -> list[Group]:
    """Return at most `MAX_GROUPS` groups of the same prompts."""
    if len(groups) <= MAX_GROUPS:
        return groups
    # A query that is in the cache is saved for every prompt, else for all but one.
    ranked = sorted(groups, key=lambda group: group.shared * (len(group.members) - (not cached)), reverse=True)
    kept, others = ranked[: MAX_GROUPS - 1], ranked[MAX_GROUPS - 1 :]
    return [*kept, Group(np.concatenate([group.members for group in others]), 0)]
