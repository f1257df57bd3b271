"""The scheduler: requests in, steps out, values back in, answers and tokens out. Knows neither devices nor threads.

Requests wait in order of arrival until a shard has room for all they may need; so a request that runs
never waits for pages, and none can block another for ever. Then it stays on that shard; one that is alone
may get all of them. Those that run on a shard take turns (`turns`), and the oldest gets what is left. Requests of
short contexts have steps of their own where there is room for such (`StepShape.mixed`), and those with dense masks
have, too; such kinds of steps take turns. Sequences that are generated get a token each in decode steps, which take
turns with all others.

A sequence takes pages as it grows, so the pages that another one waits for may be held for long. Therefore `PASSES`
requests may pass a sequence that waits for pages; then none may until those that run are answered. If it still finds no
room, sequences have the pages, and as many may pass again.

What a step costs depends on what runs and on what it plans, never on how many wait (`waiting`).
"""

import math
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import accumulate

from mis_core.cache import CacheStatistics, PrefixCache
from mis_core.requests import EngineOutput, GenerateRequest, Layout, NewToken, ScoreRequest
from mis_core.scheduler.answer import without_duplicates
from mis_core.scheduler.decoding import plan_decoding
from mis_core.scheduler.generation_run import Generation
from mis_core.scheduler.homes import Home, Opening
from mis_core.scheduler.packing import StepBuilder
from mis_core.scheduler.plan import PAGE_SIZE, STEP_MULTIPLE, StepPlan, StepShape
from mis_core.scheduler.reading import Values
from mis_core.scheduler.recurrence import begun_at_states
from mis_core.scheduler.run import Run, Waiting
from mis_core.scheduler.score_run import WaitingScore
from mis_core.scheduler.turns import is_small, oldest_first, share
from mis_core.scheduler.waiting import PASSES, WaitingLine


class Scheduler:
    """Plans steps for any number of requests. Use it from one thread at a time."""

    def __init__(
        self,
        shape: StepShape,
        pages: int,
        layout: Layout,
        *,
        max_running: int = 256,
        prefix_cache: bool = True,
        states: int = 0,
    ) -> None:
        """Start idle.

        Args:
            shape: What a step has room for.
            pages: Pages of the KV cache on each shard, at least what the longest context and one page more need.
            layout: How requests are laid out unless they say otherwise.
            max_running: Most requests that take turns.
            prefix_cache: Whether queries are kept for later requests.
            states: Slots for recurrent states on each shard; 0: no layer is recurrent.
        """
        self._shape = shape
        self._layout = layout
        self._max_running = max_running
        self._pages = pages
        self._prefix_cache = prefix_cache
        self._states = states
        self._waiting = WaitingLine()
        self._runs: dict[int, Run] = {}
        self._turns: deque[Run] = deque()  # those whose segments are not all planned
        self._homes = self._empty_homes()
        self._decodes_next = False
        self._kind_steps: dict[tuple[bool, bool], int] = {}  # of dense masks, of mixed rows: number of the last step

    @property
    def has_work(self) -> bool:
        """Whether a step can be planned."""
        return bool(self._waiting or self._turns or self._has_sequences)

    @property
    def makes_a_step(self) -> bool:
        """Whether the next step gains nothing by more requests: it is full, or generates tokens."""
        if self._has_sequences:
            return True
        return sum(run.remaining_tokens for run in self._turns) >= self._shape.tokens * self._shape.shards

    @property
    def _has_sequences(self) -> bool:
        return any(home.slots for home in self._homes)

    @property
    def num_requests(self) -> int:
        """Requests that wait, run, or have values to come."""
        return len(self._waiting) + len(self._runs)

    @property
    def cache(self) -> CacheStatistics:
        """State of the prefix caches of all shards together."""
        return CacheStatistics.total(home.cache.statistics for home in self._homes)

    def submit(self, id: int, request: ScoreRequest) -> None:
        """Append a request. `id` must not be in use."""
        arrived = time.perf_counter()
        if self._states:
            request = begun_at_states(request)
        self._waiting.append(WaitingScore(id, *without_duplicates(request), arrived))

    def generate(self, id: int, request: GenerateRequest) -> None:
        """Append a sequence to be generated. `id` must not be in use."""
        self._waiting.append(Generation(id, request))

    def cancel(self, id: int) -> bool:
        """Forget a request, wherever it is; return whether it was here. What runs on the device is ignored later."""
        return self._waiting.remove(id) or self._end(id)

    def abort(self) -> list[int]:
        """Forget every request that has begun, and the whole cache: its memory is lost. Return their ids."""
        ids = [*self._runs]
        self._runs.clear()
        self._turns.clear()
        self._homes = self._empty_homes()
        return ids

    def flush(self) -> int:
        """Forget every prefix that no request holds; return how many pages that freed."""
        return sum(home.cache.flush() for home in self._homes)

    def next_step(self) -> StepPlan | None:
        """Plan one step, or None if nothing waits."""
        self._admit()
        kinds = (self._decode, self._segments) if self._decodes_next else (self._segments, self._decode)
        plan = next((plan for plan in (kind() for kind in kinds) if plan is not None), None)
        self._decodes_next = plan is not None and not plan.is_decoding
        return plan

    def complete(self, plan: StepPlan, values: list[Values]) -> list[tuple[int, EngineOutput | NewToken]]:
        """Take the values of a step's readings; return the requests that are now answered, and new tokens."""
        outputs: list[tuple[int, EngineOutput | NewToken]] = []
        for reading, read in zip(plan.readings, values, strict=True):
            owner = reading.owner
            if owner.is_cancelled:
                continue
            output = owner.store(reading, read)
            if output is not None:
                outputs.append((owner.id, output))
                if output.is_last:
                    self._end(owner.id)
        return outputs

    def check(self) -> None:
        """Assert that no page is lost."""
        for home in self._homes:
            here = [run for run in self._runs.values() if home in run.homes]
            owned = (run.own_pages(home.shard) for run in here), (run.own_states(home.shard) for run in here)
            home.cache.check(*map(sum, owned))

    def _empty_homes(self) -> list[Home]:
        def empty() -> PrefixCache:
            return PrefixCache(self._pages, PAGE_SIZE, enabled=self._prefix_cache, states=self._states)

        return [Home(shard, empty()) for shard in range(self._shape.shards)]

    def _decode(self) -> StepPlan | None:
        """Plan a decode step, once every sequence in it has a page: the youngest give up theirs for older ones."""
        decoding = [(each, home) for home in self._homes for each in home.slots.values()]
        for sequence, home in sorted(decoding, key=lambda pair: pair[0].age):
            while not sequence.is_cancelled and sequence.wants_token and sequence.needs_page:
                if home.headroom > 0:
                    sequence.add_page()
                else:
                    self._preempt(max(home.slots.values(), key=lambda each: each.age).id)
        return plan_decoding(self._homes, self._shape) if decoding else None

    def _segments(self) -> StepPlan | None:
        if not self._turns:
            return None
        # The kind that was computed longest ago comes next: many small requests of one kind would starve another.
        kinds: dict[tuple[bool, bool], list[Run]] = {}
        for run in self._turns:
            kinds.setdefault((run.dense_mask, run.is_mixed), []).append(run)
        kind = min(kinds, key=lambda kind: self._kind_steps.get(kind, 0))
        self._kind_steps[kind] = max(self._kind_steps.values(), default=0) + 1
        has_dense_mask, is_mixed = kind
        if has_dense_mask:
            return self._plan(kinds[kind][:1], self._shape, dense_mask=True)
        return self._plan(kinds[kind], self._shape.room(is_mixed))

    def _plan(self, runs: list[Run], shape: StepShape, dense_mask: bool = False) -> StepPlan | None:
        most = None
        if any(len(run.homes) > 1 for run in runs):  # shards are padded to the fullest, so none takes more of it
            fullest = max(*self._waiting_tokens(runs), shape.longest_item)  # an item is on one shard
            most = math.ceil(fullest / STEP_MULTIPLE) * STEP_MULTIPLE
        builder = StepBuilder(shape, most)
        shares = self._shares(runs, shape)
        added = dict.fromkeys(runs, 0)
        if shape.alignment == 1:  # else rows of a query keep those of its items from lying in its runs
            # Queries of those that the step has room for come first, since each begins at a page; items lie anywhere.
            for (run, limit), dealt in zip(shares, accumulate(limit for _, limit in shares), strict=True):
                if dealt > shape.tokens * shape.shards:
                    break
                added[run] = run.contribute_query(builder, limit)
        for run, limit in shares:
            added[run] += run.contribute(builder, limit - added[run])
        served = [run for run, tokens in added.items() if tokens]
        for run in sorted(served, key=_age):
            run.contribute(builder, shape.tokens * shape.shards)
        for run in served:
            run.end_step()
            if run.is_planned:
                self._turns.remove(run)
                self._leave(run)
            elif not is_small(shape.tokens, run.remaining_tokens):
                self._turns.remove(run)
                self._turns.append(run)
        return builder.finish(dense_mask, is_mixed=shape is self._shape.mixed)

    def _shares(self, runs: list[Run], shape: StepShape) -> list[tuple[Run, int]]:
        """Return runs in the order in which a step serves them, and how many tokens each gets at first."""
        oldest = min(runs, key=_age)
        # Less than a run of rows with one context would be padded up to it.
        least = max(shape.longest_item, shape.alignment)
        part = partial(share, shape.tokens, least=least, alignment=shape.alignment)
        sharing = [sum(home in run.homes for run in runs) for home in self._homes]

        def limit(run: Run) -> int:
            remaining, is_oldest = run.remaining_tokens, run is oldest
            return sum(part(sharing[home.shard], remaining, is_oldest=is_oldest) for home in run.homes)

        return [(run, limit(run)) for run in oldest_first(runs, oldest, tokens=shape.tokens, least=least)]

    def _waiting_tokens(self, runs: Iterable[Run]) -> list[float]:
        """Return by shard how many tokens requests still have to compute there."""
        tokens = [0.0] * self._shape.shards
        for run in runs:
            _add_tokens(tokens, run)
        return tokens

    def _admit(self) -> None:
        if not self._waiting:
            return
        is_alone = not self._turns and not self._has_sequences and len(self._waiting) == 1
        opening = Opening(self._homes, self._shape, self._layout, self._waiting_tokens(self._turns), is_alone)
        passed: list[Waiting] = []
        while len(self._turns) < self._max_running:
            waiting = self._waiting.next(len(passed), has_slot=any(home.has_slot for home in self._homes))
            if waiting is None:
                return
            run = self._try(waiting, opening)
            if run is not None:
                self._waiting.begin(waiting, passed)
                self._begin(run)
                _add_tokens(opening.waiting_tokens, run)
            elif waiting.can_be_passed and self._may_pass(waiting):
                passed.append(waiting)
            else:
                return

    def _try(self, waiting: Waiting, opening: Opening) -> Run | None:
        """Begin a request, or return None if there is no room for it."""
        # What found no room finds none before some page or slot is given out, computed or free.
        vacancies = [home.vacancy for home in self._homes]
        if waiting.tried == vacancies:
            return None
        run = waiting.begin(opening)
        if run is None:
            waiting.tried = vacancies
        return run

    def _may_pass(self, waiting: Waiting) -> bool:
        """Return whether others may begin before one that finds no pages."""
        if len(self._runs) == sum(len(home.slots) for home in self._homes):  # sequences have all pages
            self._waiting.forgive(waiting)
        return self._waiting.passes(waiting) < PASSES

    def _begin(self, run: Run) -> None:
        self._runs[run.id] = run
        self._turns.append(run)
        for home in run.homes:
            home.planning.add(run)

    def _leave(self, run: Run) -> None:
        """Let a run need no more pages: its segments are planned, or nobody waits for them."""
        for home in run.homes:
            home.planning.discard(run)

    def _end(self, id: int, *, count: bool = True) -> bool:
        """End the run of a request, if it has one; return whether it had."""
        run = self._runs.pop(id, None)
        if run is None:
            return False
        if run in self._turns:
            self._turns.remove(run)
        self._leave(run)
        run.drop(count=count)
        return True

    def _preempt(self, id: int) -> None:
        """End the run of a sequence; it begins again, before all who wait, when there are pages."""
        waiting = self._runs[id].waiting
        self._end(id, count=False)
        self._waiting.put_back(waiting)


def _age(run: Run) -> int:
    return run.waiting.order


def _add_tokens(tokens: list[float], run: Run) -> None:
    remaining = run.remaining_tokens / len(run.homes)
    for home in run.homes:
        tokens[home.shard] += remaining
