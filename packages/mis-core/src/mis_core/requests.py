"""The words that all parts of MIS share: what is asked of the engine, and what it answers.

A request is flat arrays and offsets (CSR), never one object per item, so that 500 items cost the
host as much Python as 5. Tasks are the only producers of requests; everything after them
may trust the invariants stated here.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float32, Int32

from mis_core.ragged import offsets, ramp

MAX_TOP_TOKENS = 20
MAX_BIASES = 300

FinishReason = Literal["stop", "length"]
"""Why a sequence ended: by a token or text that ends it, or because it may not be longer."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a request is laid out in steps, or by default every request; None: not set.

    Attributes:
        algorithm: `auto`, `serial`, `packed` or `prefill_extend`.
        mask: `auto`, `segment` or `dense`.
        chunk_size: Most items in a step; 0: as many as fit.
    """

    algorithm: str | None = None
    mask: str | None = None
    chunk_size: int | None = None

    def over(self, other: "Layout") -> "Layout":
        """Return this layout; what it does not set is taken from the other."""
        chunk_size = other.chunk_size if self.chunk_size is None else self.chunk_size
        return Layout(self.algorithm or other.algorithm, self.mask or other.mask, chunk_size)


@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """How the next token after each item is drawn, from the distribution of its logits plus a bias.

    A token depends on the distribution, its item's key and its position only, never on what else is computed.

    Attributes:
        keys: Two words of a random key for each item, `[items, 2]`.
        temperature: Divides the logits; 0: the most probable token, the lowest id among equals.
        top_p: Only the most probable tokens are drawn that together reach this probability; above 0, at most 1.
        bias_ids: Tokens whose logits are changed, each once, at most `MAX_BIASES`, `[biases]`.
        bias: What is added to each, `[biases]`.
        top_k: Only this many of the most probable tokens are drawn, and those equal to the last; 0: all.
        min_p: Only tokens with at least this share of the most probable one's probability are drawn.
        presence_penalty: Subtracted from the logit of each token that was generated before.
        frequency_penalty: Subtracted from it once for each time it was generated.
    """

    keys: Int32[np.ndarray, "items words"]
    temperature: float = 1.0
    top_p: float = 1.0
    bias_ids: Int32[np.ndarray, " biases"] = field(default_factory=lambda: np.zeros(0, np.int32))
    bias: Float32[np.ndarray, " biases"] = field(default_factory=lambda: np.zeros(0, np.float32))
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def penalises(self) -> bool:
        """Whether tokens that were generated before matter."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRequest:
    """One query, its items as segments, and what to read where. Valid by construction.

    Segment `i` holds tokens `item_tokens[item_starts[i]:item_starts[i + 1]]` and sees the first
    `context_lens[i]` tokens of `query`. Its last token is the scored position, unless `read_lens` and `read_at` name
    others. Every segment has at least one token. This one form covers every case:

    * ids: `context_lens` is the query's length throughout;
    * text: an item's segment begins where the ids of the joined string `query + item` may first
      differ from the query's own;
    * an empty item: the segment is the query's last token, seen by one token less of context;
    * `item_first`: `query` is empty and each segment is the whole sequence `item + query`;
    * a label of several tokens: the segment is the item and the label but for its last token, read at the last rows;
    * log-probabilities of a prompt: all rows are read, with the token that follows each as its label.

    What is read at a row is the next-token distribution there: logits of labels, the normaliser, the most probable
    tokens. Rows are in the order of the query's, then each item's.

    Attributes:
        query: Shared tokens, `[query_tokens]`.
        item_tokens: New tokens of all segments, `[item_tokens]`.
        item_starts: Offsets into `item_tokens`, `[items + 1]`, rising strictly from 0.
        context_lens: Query tokens each segment sees, `[items]`, from 0 to `query_tokens`.
        label_ids: Label tokens, `[1, labels]` for the same labels everywhere or `[rows read, labels]`;
            rows shorter than the longest are filled with -1.
        apply_softmax: Softmax over the labels instead of full-vocabulary probabilities.
        temperature: Divides the label log-probabilities before the softmax.
        return_token_logprobs: Also return full-vocabulary natural log-probabilities.
        return_layout: Also return where in which step each segment was computed.
        cache_salt: Requests share cached prefixes only with requests of the same salt.
        layout: Scoring algorithm, mask and chunk size, as far as the request chooses them.
        empty_items: Items that add nothing to the query, for `prompt_tokens`; 0 where items come first.
        read_lens: Rows read of each segment, `[items]`, at least 1; None: the last one of each.
        read_at: Which rows these are, counted from the segment's first token, rising, `[rows read of items]`; None: its
            last ones. With it, nothing is drawn.
        query_reads: Rows read at the end of the query; such a query is computed anew, whatever is cached.
        top_tokens: How many of the most probable tokens are wanted at each row, at most `MAX_TOP_TOKENS`.
        sampling: How the token after each item is drawn, if one is.
    """

    query: Int32[np.ndarray, " query_tokens"]
    item_tokens: Int32[np.ndarray, " item_tokens"]
    item_starts: Int32[np.ndarray, " items_plus_one"]
    context_lens: Int32[np.ndarray, " items"]
    label_ids: Int32[np.ndarray, "label_rows labels"]
    apply_softmax: bool = False
    temperature: float = 1.0
    return_token_logprobs: bool = False
    return_layout: bool = False
    cache_salt: str | None = None
    layout: Layout = Layout()
    empty_items: int = 0
    read_lens: Int32[np.ndarray, " items"] | None = None
    read_at: Int32[np.ndarray, " reads"] | None = None
    query_reads: int = 0
    top_tokens: int = 0
    sampling: Sampling | None = None

    @property
    def num_items(self) -> int:
        """Number of items, which is the number of rows of the scores."""
        return len(self.context_lens)

    @property
    def num_reads(self) -> int:
        """Number of rows that are read, of the query and of all items."""
        return self.query_reads + (self.num_items if self.read_lens is None else int(self.read_lens.sum()))

    @property
    def read_starts(self) -> Int32[np.ndarray, " items_plus_one"]:
        """Number of the first row that is read of each item, and of all rows, `[items + 1]`."""
        lens = np.ones(self.num_items, np.int32) if self.read_lens is None else self.read_lens
        return offsets(lens) + np.int32(self.query_reads)

    @property
    def read_within(self) -> Int32[np.ndarray, " reads"]:
        """Index within its item of each row that is read of an item."""
        if self.read_at is not None:
            return self.read_at
        lens = np.diff(self.read_starts)
        return (np.repeat(np.diff(self.item_starts) - lens, lens) + ramp(lens)).astype(np.int32)

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


def query_as_item(request: ScoreRequest) -> ScoreRequest:
    """Return a request that reads the same rows in the same order, with the query as a first item without context.

    A request whose query is not read is returned unchanged. Otherwise nothing is drawn.
    """
    if not request.query_reads:
        return request
    starts = request.item_starts + np.int32(len(request.query))
    of_query = np.arange(len(request.query) - request.query_reads, len(request.query), dtype=np.int32)
    return replace(
        request,
        item_tokens=np.concatenate([request.query, request.item_tokens]),
        item_starts=np.concatenate([[0], starts]).astype(np.int32),
        context_lens=np.concatenate([[0], request.context_lens]).astype(np.int32),
        read_lens=np.diff(request.read_starts, prepend=0).astype(np.int32),
        read_at=None if request.read_at is None else np.concatenate([of_query, request.read_at]),
        query_reads=0,
        sampling=None,
    )


@dataclass(frozen=True, slots=True, eq=False)
class EngineOutput:
    """What the engine answers for one request; rows are those that it reads, see `ScoreRequest`.

    Attributes:
        logits: Head values of the labels at each row, `[rows, labels]`; entries whose label id is -1 mean nothing.
        log_sum_exp: Log of the sum of the exponentials of the full-vocabulary logits, `[rows]`, or
            None where the request does not need it.
        cached_tokens: Query tokens whose KV came from the prefix cache.
        timings_ms: Milliseconds by stage.
        algorithm: Layout that was used.
        reason: Why, in one sentence.
        steps: Device calls that computed some part of the request.
        placements: One row for each run of tokens of the request in a step, in the order of the steps, if it wants
            them: step, shard, first row, segment (-1: the query), tokens, tokens of context, `[placements, 6]`.
        top_ids: Most probable tokens at each row, best first, the lower id first among equals, `[rows, top_tokens]`;
            None where none are wanted.
        top_logits: Their head values, `[rows, top_tokens]`.
        next_ids: The token drawn after each item, `[items]`; None where none is drawn.
        next_logits: Their head values, before bias and temperature, `[items]`.
        is_last: Whether this is the request's last output.
    """

    is_last: ClassVar[bool] = True

    logits: Float32[np.ndarray, "rows labels"]
    log_sum_exp: Float32[np.ndarray, " rows"] | None
    cached_tokens: int = 0
    timings_ms: dict[str, float] = field(default_factory=dict)
    algorithm: str = ""
    reason: str = ""
    steps: int = 0
    placements: Int32[np.ndarray, "placements 6"] | None = None
    top_ids: Int32[np.ndarray, "rows top_tokens"] | None = None
    top_logits: Float32[np.ndarray, "rows top_tokens"] | None = None
    next_ids: Int32[np.ndarray, " items"] | None = None
    next_logits: Float32[np.ndarray, " items"] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GenerateRequest:
    """A prompt, and how it is continued. Valid by construction: prompt and new tokens fit the context.

    Attributes:
        prompt: At least one token, `[prompt_tokens]`.
        max_new_tokens: Most tokens that are generated, at least 1.
        sampling: How each is drawn; it has one key, `[1, 2]`.
        end_ids: Tokens that end the sequence; they are its last.
        top_tokens: How many of the most probable tokens are wanted at each position, at most `MAX_TOP_TOKENS`.
        cache_salt: Requests share cached prefixes only with requests of the same salt.
    """

    prompt: Int32[np.ndarray, " prompt_tokens"]
    max_new_tokens: int
    sampling: Sampling
    end_ids: frozenset[int] = frozenset()
    top_tokens: int = 0
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class NewToken:
    """One token of a sequence. Log-probabilities are natural, of the model's own distribution.

    Attributes:
        token_id: The token.
        logprob: Its log-probability, before bias, penalties and temperature.
        top_ids: The most probable tokens at its position, best first, `[top_tokens]`.
        top_logprobs: Their log-probabilities.
        finish_reason: Why it is the last one; None: more follow.
        cached_tokens: Tokens of the prompt that were found in the prefix cache when the sequence began.
    """

    token_id: int
    logprob: float
    top_ids: Int32[np.ndarray, " top_tokens"]
    top_logprobs: Float32[np.ndarray, " top_tokens"]
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0

    @property
    def is_last(self) -> bool:
        """Whether nothing follows, neither a token nor a reason."""
        return self.finish_reason is not None
