"""Labels of several tokens: the probability of a label's whole sequence behind `query + item`.

It is the product of the probabilities of its tokens, each behind the item and the tokens before it. So a label of n
tokens is a segment of its own, the item and the label's first n - 1 tokens, read at its last n rows. Labels of one
token need no such segment: all of them are read at the last row of the item's.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32, Int64

from mis_core.ragged import offsets, rows_at
from mis_core.requests import ScoreRequest
from mis_core.tasks.fields.token_rows import TokenRows
from mis_core.tasks.probabilities import LOWEST
from mis_core.tokenization import Joined


@dataclass(frozen=True, slots=True, eq=False)
class LabelSequences:
    """Labels of a request, the same for all items, at least one of them of several tokens.

    The segments of an item are: its own if some label is one token, then one for each longer label, in their order.

    Attributes:
        tokens: Tokens of all labels, one after the other, `[label_tokens]`.
        lens: Tokens of each label, at least 1, `[labels]`.
    """

    tokens: Int32[np.ndarray, " label_tokens"]
    lens: Int64[np.ndarray, " labels"]

    @classmethod
    def of(cls, ids: TokenRows) -> "LabelSequences":
        """Make them of one list of ids for each label."""
        return cls(ids.values.astype(np.int32), ids.lens)

    @property
    def first_tokens(self) -> Int32[np.ndarray, "1 labels"]:
        """Where each label begins."""
        return self.tokens[offsets(self.lens)[:-1]][None]

    @property
    def appended(self) -> Int64[np.ndarray, " segments"]:
        """Label tokens at the end of each of an item's segments."""
        return np.concatenate([np.zeros(int(self._is_single.any()), np.int64), self.lens[~self._is_single] - 1])

    @property
    def num_reads(self) -> int:
        """Rows that are read of an item."""
        return int((self.appended + 1).sum())

    @property
    def width(self) -> int:
        """Most labels that are read at a row."""
        return max(1, int(np.count_nonzero(self._is_single)))

    def count_tokens(self, joined: Joined) -> int:
        """Return how many tokens are computed: the query's, and for each segment the item's and the label's."""
        own = len(self.appended) * len(joined.item_tokens)
        return len(joined.query) + own + int(self.appended.sum()) * len(joined.context_lens)

    def segments(self, request: ScoreRequest) -> ScoreRequest:
        """Return what the engine computes for a request that has the items' segments."""
        appended, items = self.appended, request.num_items
        lens = np.diff(request.item_starts).repeat(len(appended))
        tokens = rows_at(request.item_tokens, request.item_starts[:-1].repeat(len(appended)), lens)
        every = np.tile(appended, items)
        starts = offsets(self.lens)[:-1][~self._is_single]
        labels = rows_at(self.tokens, starts, self.lens[~self._is_single] - 1)
        return dataclasses.replace(
            request,
            item_tokens=np.insert(tokens, np.cumsum(lens).repeat(every), np.tile(labels, items)),
            item_starts=offsets(lens + every),
            context_lens=request.context_lens.repeat(len(appended)),
            label_ids=np.tile(self._ids_read(), (items, 1)),
            apply_softmax=False,  # over labels, that is: it needs their probabilities in the full vocabulary
            read_lens=(every + 1).astype(np.int32),
            empty_items=0,
        )

    def logprobs(self, rows: Float32[np.ndarray, "rows width"]) -> Float32[np.ndarray, "items labels"]:
        """Return the log-probability of every label, from those of the tokens that were read."""
        reads = rows.reshape(-1, self.num_reads, self.width).astype(np.float64)
        logprobs = np.empty((len(reads), len(self.lens)))
        is_single = self._is_single
        row = 0
        if is_single.any():
            logprobs[:, is_single] = reads[:, 0]
            row = 1
        for label in np.flatnonzero(~is_single).tolist():
            logprobs[:, label] = reads[:, row : row + self.lens[label], 0].sum(axis=1)
            row += self.lens[label]
        return np.maximum(logprobs, LOWEST).astype(np.float32)

    @property
    def _is_single(self) -> np.ndarray:
        return self.lens == 1

    def _ids_read(self) -> Int32[np.ndarray, "reads width"]:
        """Return the labels at each row that is read of an item, filled up with -1."""
        is_single = self._is_single
        in_single = is_single.repeat(self.lens)
        ids = np.full((self.num_reads, self.width), -1, np.int32)
        if is_single.any():
            ids[0] = self.tokens[in_single]
        ids[int(is_single.any()) :, 0] = self.tokens[~in_single]
        return ids
