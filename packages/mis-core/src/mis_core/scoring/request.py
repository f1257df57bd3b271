"""The words that travel through MIS: a request for scores, what the device answers, and the result.

A request is flat arrays and offsets (CSR), never one object per item, so that 500 items cost the
host as much Python as 5. `validation` is the only producer of a `ScoreRequest`; everything after it
may trust the invariants stated here.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float32, Int32


@dataclass(frozen=True, slots=True)
class Layout:
    """How one request is laid out in steps, or all that do not say; None: not said.

    Attributes:
        algorithm: `auto`, `serial`, `packed` or `prefill_extend`.
        mask: `auto`, `segment` or `dense`.
        chunk_size: Most items in a step; 0: as many as fit.
    """

    algorithm: str | None = None
    mask: str | None = None
    chunk_size: int | None = None

    def over(self, other: "Layout") -> "Layout":
        """Return what is said here and, for the rest, what another says."""
        chunk_size = other.chunk_size if self.chunk_size is None else self.chunk_size
        return Layout(self.algorithm or other.algorithm, self.mask or other.mask, chunk_size)


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRequest:
    """One query, its items as segments, and the labels to score. Valid by construction.

    Segment `i` holds tokens `item_tokens[item_starts[i]:item_starts[i + 1]]` and sees the first
    `context_lens[i]` tokens of `query`; its last token is the scored position. Every segment has at
    least one token. This one form covers every case:

    * ids: `context_lens` is the query's length throughout;
    * text: an item's segment begins where the ids of the joined string `query + item` may first
      differ from the query's own;
    * an empty item: the segment is the query's last token, seen by one token less of context;
    * `item_first`: `query` is empty and each segment is the whole sequence `item + query`.

    Attributes:
        query: Shared tokens, `[query_tokens]`.
        item_tokens: New tokens of all segments, `[item_tokens]`.
        item_starts: Offsets into `item_tokens`, `[items + 1]`, rising strictly from 0.
        context_lens: Query tokens each segment sees, `[items]`, from 0 to `query_tokens`.
        label_ids: Label tokens, `[1, labels]` for the same labels everywhere or `[items, labels]`;
            rows shorter than the longest are filled with -1.
        apply_softmax: Softmax over the labels instead of full-vocabulary probabilities.
        temperature: Divides the label log-probabilities before the softmax.
        return_token_logprobs: Also return full-vocabulary natural log-probabilities.
        cache_salt: Requests share cached prefixes only with requests of the same salt.
        layout: Scoring algorithm and the like, where the request chooses them.
        empty_items: Items that add nothing to the query, for `prompt_tokens`; 0 where items come first.
    """

    query: Int32[np.ndarray, " query_tokens"]
    item_tokens: Int32[np.ndarray, " item_tokens"]
    item_starts: Int32[np.ndarray, " items_plus_one"]
    context_lens: Int32[np.ndarray, " items"]
    label_ids: Int32[np.ndarray, "label_rows labels"]
    apply_softmax: bool = False
    temperature: float = 1.0
    return_token_logprobs: bool = False
    cache_salt: str | None = None
    layout: Layout = Layout()
    empty_items: int = 0

    @property
    def requests(self) -> tuple["ScoreRequest"]:
        """What the engine computes: this."""
        return (self,)

    @property
    def num_items(self) -> int:
        """Number of items, which is the number of rows of the scores."""
        return len(self.context_lens)

    @property
    def needs_log_sum_exp(self) -> bool:
        """Whether full-vocabulary normalisers are needed; a softmax over labels cancels them."""
        return self.return_token_logprobs or not self.apply_softmax

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the query, once, and of every item beyond the query's own.

        An item whose text merges with the query's may make it shorter; it counts as one token, as whoever sends it
        sends something.
        """
        own = self.context_lens + np.diff(self.item_starts) - len(self.query)
        return len(self.query) + int(np.maximum(own, 1).sum()) - self.empty_items


@dataclass(frozen=True, slots=True, eq=False)
class EngineOutput:
    """What the device answers for one request.

    Attributes:
        logits: Head values of the labels at each scored position, `[items, labels]`; entries whose
            label id is -1 mean nothing.
        log_sum_exp: Log of the sum of the exponentials of the full-vocabulary logits, `[items]`, or
            None where the request does not need it.
        cached_tokens: Query tokens whose KV came from the prefix cache.
        timings_ms: Milliseconds by stage.
        algorithm: Layout that was used.
        reason: Why, in one sentence.
        steps: Device calls that computed some part of the request.
    """

    logits: Float32[np.ndarray, "items labels"]
    log_sum_exp: Float32[np.ndarray, " items"] | None
    cached_tokens: int = 0
    timings_ms: dict[str, float] = field(default_factory=dict)
    algorithm: str = ""
    reason: str = ""
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request, in tokens."""

    prompt_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ScoreResult:
    """Scores in the order of the request's items and labels.

    Attributes:
        scores: `[items, labels]`; with per-item label lists of different lengths, rows end in NaN.
        token_logprobs: Full-vocabulary natural log-probabilities, shaped like `scores`, or None.
        usage: Token counts.
        timings_ms: Milliseconds by stage: `tokenize`, `queue` (until the first step has room), `plan`
            (host time for layouts), `device` (from the first step to the last value), `finish`.
        algorithm: Layout that was used: `serial`, `packed` or `prefill_extend`.
        reason: Why, in one sentence.
        steps: Device calls that computed some part of the request.
    """

    scores: Float32[np.ndarray, "items labels"]
    token_logprobs: Float32[np.ndarray, "items labels"] | None
    usage: Usage
    timings_ms: dict[str, float] = field(default_factory=dict)
    algorithm: str = ""
    reason: str = ""
    steps: int = 0
