"""One sequence: as it waits, its prompt on its way through steps, then a token in each decode step."""

import itertools
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from jaxtyping import Int32

from mis_core.requests import FinishReason, GenerateRequest, NewToken
from mis_core.scheduler.answer import Placements
from mis_core.scheduler.homes import Home, Opening
from mis_core.scheduler.packing import StepBuilder
from mis_core.scheduler.paged import QueryPrefill
from mis_core.scheduler.plan import PAGE_SIZE, StepShape
from mis_core.scheduler.query_lock import QueryLock
from mis_core.scheduler.reading import Draws, Reading, Values
from mis_core.scheduler.recurrence import STATES_AT_ONCE
from mis_core.scheduler.run import Run, Waiting

_NO_LABELS = np.zeros((1, 0), np.int32)


@dataclass(slots=True, eq=False)
class Generation(Waiting):
    """What is known of a sequence, whether it runs or waits.

    Attributes:
        request: The prompt and how it goes on.
        new_tokens: What was generated and read.
        cached: Tokens of the prompt found in the prefix cache when it first began; None: it has not.
    """

    can_be_passed: ClassVar[bool] = True

    request: GenerateRequest
    new_tokens: list[int] = field(default_factory=list)
    cached: int | None = None

    @property
    def tokens(self) -> Int32[np.ndarray, " tokens"]:
        """The prompt, and what was generated and read."""
        return np.concatenate([self.request.prompt, np.array(self.new_tokens, np.int32)])

    def begin(self, opening: Opening) -> Run | None:
        """Begin on the cheapest shard that has a slot and pages, or return None if none has."""
        request = self.request
        for (home,) in opening.rank(self.tokens, request.max_new_tokens, request.cache_salt):
            if not home.has_slot:
                continue
            run = GenerationRun(self, home, opening.shape)
            if run.finds_room:
                home.slots[run.slot] = run
                return run
            run.drop(count=False)
        return None


class GenerationRun:
    """One run of a generation, from the time it gets a slot until it ends or must give up its pages.

    Whole pages of what it begins with are shared; the last 1 to `PAGE_SIZE` tokens, and all that it generates, are in
    pages of its own, which it takes one by one.

    After it gave up its pages, it begins with all that is known of it. Where layers are recurrent it begins with its
    prompt, and generates the same tokens again: a token that is computed with a prompt has other bits (decision 51).

    Attributes:
        id: The request's number.
        generation: What is known of it.
        waiting: The same.
        home: Its shard.
        homes: The same, alone.
        slot: Its row in decode steps.
        age: Rises from one run to the next.
        state: Slot of its recurrent state; None: no layer is recurrent, or its prompt is not planned.
        is_cancelled: Whether nobody waits for what is still read.
        dense_mask: It never asks for materialised masks.
        is_mixed: Whether what it begins with is computed in mixed steps.
    """

    _ages = itertools.count()

    def __init__(self, generation: Generation, home: Home, shape: StepShape) -> None:
        self.id = generation.id
        self.waiting: Waiting = generation
        self.generation = generation
        self.home = home
        self.homes: tuple[Home, ...] = (home,)
        self.slot = home.reserve_slot()
        self.age = next(self._ages)
        self.is_cancelled = False
        self.dense_mask = False
        self.is_mixed = shape.is_mixed(len(generation.request.prompt) + generation.request.max_new_tokens)
        self.state: int | None = None
        self._is_recurrent = home.cache.states is not None
        self._tokens = generation.request.prompt if self._is_recurrent else generation.tokens
        self._shared = (len(self._tokens) - 1) // PAGE_SIZE
        lock = QueryLock([home], self._tokens[: self._shared * PAGE_SIZE], generation.request.cache_salt)
        lock.match()
        if generation.cached is None:
            generation.cached = lock.cached
        self._query = QueryPrefill(lock, self, Placements(), 0)
        self._pages: list[int] = []
        self._length = 0  # tokens in pages, once the prompt is planned
        self._read = len(self._tokens) - len(generation.request.prompt)  # new tokens
        self._drawn = self._read  # tokens read or planned

    @property
    def finds_room(self) -> bool:
        """Whether it can begin, of all that has begun on its shard the last."""
        home, shard = self.home, self.home.shard
        again = len(self.generation.tokens) - len(self._tokens)
        # One page more for each that is there already, so that it does not lose its own at once.
        pages = self.missing_pages(shard) + -(-again // PAGE_SIZE) + len(home.slots)
        # A sequence holds its state for long, and leaves some for scores, which others wait behind.
        states = self.missing_states(shard) + STATES_AT_ONCE if self._is_recurrent else 0
        return pages <= home.headroom and states <= home.state_headroom

    @property
    def is_planned(self) -> bool:
        """Whether all that it begins with is in some step."""
        return self._length > 0

    @property
    def wants_token(self) -> bool:
        """Whether it has a row in the next decode step."""
        return self.is_planned and self._drawn < self.generation.request.max_new_tokens

    @property
    def needs_page(self) -> bool:
        """Whether its next token begins a page that it does not have yet."""
        return self._length == (self._shared + len(self._pages)) * PAGE_SIZE

    @property
    def remaining_tokens(self) -> int:
        """Tokens of what it begins with that are still to be planned."""
        return 0 if self.is_planned else self._query.remaining_tokens + len(self._tail)

    @property
    def pages(self) -> Int32[np.ndarray, " pages"]:
        """Its pages, in order."""
        return np.concatenate([self._query.lock.pages(self.home.shard), np.array(self._pages, np.int32)])

    @property
    def _tail(self) -> Int32[np.ndarray, " tokens"]:
        return self._tokens[self._shared * PAGE_SIZE :]

    def missing_pages(self, shard: int) -> int:
        """Return the pages of a shard that it will still allocate for what it begins with."""
        if shard != self.home.shard or self.is_planned:
            return 0
        return self._query.lock.missing_pages(shard) + 1

    def missing_states(self, shard: int) -> int:
        """Return the slots for states of a shard that it will still allocate for what it begins with at most."""
        if shard != self.home.shard or self.is_planned or not self._is_recurrent:
            return 0
        return self._query.lock.missing_states(shard) + 1

    def own_states(self, shard: int) -> int:
        """Return how many slots for states of a shard are allocated outside its prefix cache's tree."""
        return int(shard == self.home.shard and self.state is not None)

    def own_pages(self, shard: int) -> int:
        """Return how many pages of a shard are allocated outside its prefix cache's tree."""
        return len(self._pages) if shard == self.home.shard else 0

    def contribute_query(self, builder: StepBuilder, limit: int) -> int:
        """Add segments as `contribute` does: all of it is in pages."""
        return self.contribute(builder, limit)

    def contribute(self, builder: StepBuilder, limit: int) -> int:
        """Add segments of what it begins with to a step; return how many tokens were added, at most `limit`."""
        added = 0
        while not self.is_planned and added < limit and (more := self._add(builder, limit - added)):
            added += more
        return added

    def end_step(self) -> None:
        """Let go of the states that its prompt went on from; a sequence frees no page before it ends."""
        if self.is_planned:
            self._query.lock.let_go_of_states()

    def add_page(self) -> None:
        """Allocate the page that it needs; there is one."""
        self._pages += self.home.cache.allocate(1, first=self._shared + len(self._pages)).tolist()

    def decode(self) -> int:
        """Plan its next row, for which it has a page; return the row's position."""
        self._length += 1
        self._drawn += 1
        return self._length - 1

    def reading(self, rows: Int32[np.ndarray, " rows"], *, shard: int, first: int) -> Reading:
        """Return the drawing of the token behind all that is planned, at one row; see `Reading`."""
        request = self.generation.request
        is_new = self._length == len(self._tokens)
        draws = Draws(
            rows=np.zeros(1, np.int32),
            items=np.zeros(1, np.int32),
            keys=request.sampling.keys,
            positions=np.array([self._length], np.int32),
            sampling=request.sampling,
            slots=np.array([self.slot], np.int32),
            written=self._tokens[len(request.prompt) :] if is_new and request.sampling.penalises else None,
            top_tokens=request.top_tokens,
        )
        return Reading(self, rows, shard, first, _NO_LABELS, normalise=False, draws=draws)

    def store(self, reading: Reading, values: Values) -> NewToken | None:
        """Take the values of its next reading; return the token, unless an earlier run did."""
        generation, request = self.generation, self.generation.request
        assert values.next_ids is not None
        assert values.next_logits is not None
        assert values.next_log_sums is not None
        self._read += 1
        if self._read <= len(generation.new_tokens):
            return None
        token, normaliser = int(values.next_ids[0]), values.next_log_sums[0]
        generation.new_tokens.append(token)
        reason: FinishReason | None = None
        if token in request.end_ids:
            reason = "stop"
        elif len(generation.new_tokens) == request.max_new_tokens:
            reason = "length"
        top_ids = np.zeros(0, np.int32) if values.top_ids is None else values.top_ids[0]
        top_logits = np.zeros(0, np.float32) if values.top_logits is None else values.top_logits[0]
        logprob = float(values.next_logits[0] - normaliser)
        return NewToken(token, logprob, top_ids, top_logits - normaliser, reason, generation.cached or 0)

    def drop(self, *, count: bool = True) -> None:
        """Give up its slot and pages, between steps; full ones whose tokens are known join the prefix cache.

        With recurrent layers none do: nobody could go on from a page without its state.

        Args:
            count: Whether what was found and computed of its prompt enters the cache's statistics.
        """
        self.is_cancelled = True
        self.home.free_slot(self.slot)
        cache, tokens = self.home.cache, self.generation.tokens
        if self.state is not None:
            assert cache.states is not None
            cache.states.free(self.state)
            self.state = None
        known = 0 if self._is_recurrent else min(self._length, len(tokens))
        full = max(known // PAGE_SIZE, self._shared)
        pages = np.array(self._pages, np.int32)
        if full > self._shared:
            cache.keep(
                tokens[: full * PAGE_SIZE],
                self.generation.request.cache_salt,
                pages[: full - self._shared],
                self._shared,
            )
        cache.free(pages[full - self._shared :])
        self._pages = []
        self._query.lock.release(count=count)

    def _add(self, builder: StepBuilder, limit: int) -> int:
        lock = self._query.lock
        if not lock.match():
            return self._query.add(builder, limit)
        tail, shared = self._tail, self._shared * PAGE_SIZE
        home = self.home
        sees = shared + len(tail)
        room = builder.find_room(self, [home.shard], paged=True, least=len(tail), scored=1, context_tokens=sees)
        if room is None or limit < len(tail) or home.headroom < 0:
            return 0
        states = lock.states_after(np.array([shared], np.int32), home.shard)
        if states is not None:
            assert home.cache.states is not None
            self.state = home.cache.states.allocate()
            states = states._replace(writes=((len(tail), self.state),))
        if not self._pages:
            self.add_page()
        rows = builder.add(
            room,
            pages=self.pages,
            token_ids=tail,
            lens=np.array([len(tail)], np.int32),
            context_lens=np.array([shared], np.int32),
            writes={home.shard: np.array(self._pages, np.int32)},
            states=states,
        )
        self._length = len(self._tokens)
        builder.read(self, room, rows, np.zeros(1, np.int32))
        self._drawn += 1
        return len(tail)
