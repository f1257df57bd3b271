"""Slots for recurrent states: which hold the state after a prefix, and which are free.

A model with recurrent layers needs, besides the pages of a prefix, the state after its last token. A node of the prefix
cache may have one. A state that nobody reads stays until another needs its slot, the least recently used first.
"""

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class State:
    """The state after a prefix.

    Attributes:
        slot: Where it is; None: it was evicted.
        readers: Requests that still read it.
        is_query_end: Whether it is what items of some query start from, and not only where a chunk of it ended.
    """

    slot: int | None = None
    readers: int = 0
    is_query_end: bool = False


class StateSlots:
    """The slots of one device.

    Attributes:
        count: How many there are.
        evicted: States that were evicted so far.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.evicted = 0
        self._free = list(range(count))[::-1]
        self._idle: OrderedDict[int, State] = OrderedDict()  # by slot; the least recently used first

    @property
    def available(self) -> int:
        """Slots that can be had: free ones, and those whose states nobody reads."""
        return len(self._free) + len(self._idle)

    @property
    def free_count(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    def allocate(self) -> int:
        """Return a slot, one of `available`; evict a state if need be."""
        assert self.available, "nobody asks for a slot that cannot be had"
        if not self._free:
            slot, state = self._idle.popitem(last=False)
            state.slot = None
            self.evicted += 1
            return slot
        return self._free.pop()

    def free(self, slot: int) -> None:
        """Take back a slot that no `State` has."""
        self._free.append(slot)

    def hold(self, state: State) -> None:
        """Keep a state until it is let go."""
        assert state.slot is not None, "an evicted state is held"
        self._idle.pop(state.slot, None)
        state.readers += 1

    def let_go(self, state: State) -> None:
        """Hold a state no more; where only a chunk ended, it is the first to be evicted."""
        state.readers -= 1
        if state.slot is not None and not state.readers:
            self._idle[state.slot] = state
            self._idle.move_to_end(state.slot, last=state.is_query_end)

    def drop(self, state: State) -> None:
        """Free the slot of a state that nobody reads, if it has one."""
        assert not state.readers, "a state is dropped under its readers"
        if state.slot is not None:
            del self._idle[state.slot]
            self._free.append(state.slot)
            state.slot = None

    def check(self, states: list[State], private: int) -> None:
        """Assert that every slot is accounted for.

        Args:
            states: Those of all nodes.
            private: Slots that callers allocated and have not freed.
        """
        held = [state.slot for state in states if state.slot is not None]
        assert len({*held, *self._free}) == len(held) + len(self._free), "a slot is in two places"
        assert len(held) + len(self._free) + private == self.count, "a slot leaked"
        idle = {state.slot for state in states if state.slot is not None and not state.readers}
        assert idle == {*self._idle}, "a state is lost, or idles under its readers"
