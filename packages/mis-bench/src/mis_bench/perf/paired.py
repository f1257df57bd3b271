"""Two sides take turns at the same workloads, so that both see the same machine."""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from mis_bench.perf.side import About, Side, Turn

SIDES = ("base", "head")
_TURN_S = 0.08  # a turn lasts at least this long, so that the change of processes weighs little
_CALLS = range(2, 33)
_WARM_UP = 2


class Pair(NamedTuple):
    """A turn of each side, one right after the other."""

    base: Turn
    head: Turn


Pairs = dict[str, list[Pair]]
"""By workload, in the order in which they were measured."""

Start = Callable[[str], Side]
"""Starts the worker of `base` or `head`."""


@dataclass(slots=True)
class Session:
    """What one pair of processes measured.

    Attributes:
        about: What each side is.
        calls: Calls of a turn by workload.
        pairs: Turns by workload.
        yardstick_s: Seconds of the yardstick, measured between the turns.
    """

    about: dict[str, About]
    calls: dict[str, int]
    pairs: Pairs = field(default_factory=dict)
    yardstick_s: list[float] = field(default_factory=list)


def measure(
    start: Start,
    workloads: Sequence[str],
    *,
    pairs: int,
    seed: int,
    calls: Mapping[str, int] | None = None,
    on_turn: Callable[[], None] = lambda: None,
) -> Session:
    """Run one session: start both sides afresh, warm them up, and let them take turns.

    A new process has its memory and its machine code elsewhere, which alone moves timings; so a comparison has several
    sessions. Pairs are AB BA AB BA, which cancels whatever drifts evenly and whatever going second is worth; with which
    side they begin, and the order of workloads, is drawn. An accelerator has room for one process at a time: there each
    side makes all its turns before the other one starts, and sessions begin with either side in turn.

    Args:
        start: Starts a worker.
        workloads: Their names.
        pairs: Of every workload.
        seed: Of what is drawn.
        calls: Calls of a turn by workload, from the session before; None to find out.
        on_turn: Told of every finished turn.
    """
    first, second = SIDES if seed % 2 == 0 else SIDES[::-1]
    with ExitStack() as stack:
        sides = {first: stack.enter_context(start(first))}
        about = {first: sides[first].wait()}
        session = Session(about, dict(calls or {}))
        if about[first].platform != "cpu":
            turns = {first: _alone(sides[first], workloads, pairs, session, on_turn)}
            sides[first].close()
            sides[second] = stack.enter_context(start(second))
            about[second] = sides[second].wait()
            turns[second] = _alone(sides[second], workloads, pairs, session, on_turn)
            for name in workloads:
                both = zip(turns["base"][name], turns["head"][name], strict=True)
                session.pairs[name] = [Pair(*each) for each in both]
            return session
        sides[second] = stack.enter_context(start(second))
        about[second] = sides[second].wait()
        _alternate(sides, workloads, pairs, session, random.Random(seed), on_turn)
    return session


def _alternate(
    sides: Mapping[str, Side],
    workloads: Sequence[str],
    pairs: int,
    session: Session,
    rng: random.Random,
    on_turn: Callable[[], None],
) -> None:
    for side in sides.values():
        _warm_up(side, workloads, session)
    session.pairs = {name: [] for name in workloads}
    begins = {name: rng.choice((0, 1)) for name in workloads}
    for number in range(pairs):
        for name in rng.sample(workloads, len(workloads)):
            order = SIDES if (number + begins[name]) % 2 == 0 else SIDES[::-1]
            turns = {}
            for each in order:
                turns[each] = sides[each].turn(name, session.calls[name])
                on_turn()
            session.pairs[name].append(Pair(**turns))
        session.yardstick_s += sides[SIDES[number % 2]].yardstick().wall_s


def _alone(
    side: Side, workloads: Sequence[str], pairs: int, session: Session, on_turn: Callable[[], None]
) -> dict[str, list[Turn]]:
    _warm_up(side, workloads, session)
    turns: dict[str, list[Turn]] = {name: [] for name in workloads}
    for _ in range(pairs):
        for name in workloads:
            turns[name].append(side.turn(name, session.calls[name]))
            on_turn()
        session.yardstick_s += side.yardstick().wall_s
    return turns


def _warm_up(side: Side, workloads: Sequence[str], session: Session) -> None:
    """Call everything, and find out how many calls make a turn, where that is not known."""
    side.yardstick()
    for name in workloads:
        side.turn(name, _WARM_UP)
        fits = round(_TURN_S / min(side.turn(name, 1).wall_s))
        session.calls.setdefault(name, min(max(fits, _CALLS.start), _CALLS.stop - 1))
