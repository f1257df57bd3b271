"""Counts what a compiled GPU program launches: kernels, calls of libraries and copies, microseconds each.

Loops that say how often they run are counted so often. What others launch depends on data: on how many tiles a step
has, say. They are kept apart, since no number of launches is theirs.
"""

from dataclasses import dataclass

from mis_kernels.aot.program_text import Instruction, callee, computations, known_trips, scope

_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "add-dependency")

Computations = dict[str, list[Instruction]]


@dataclass(frozen=True, slots=True)
class Launches:
    """What a computation launches each time it runs.

    Attributes:
        known: Launches that do not depend on data.
        loops: Of each loop whose number of turns does, the launches of one turn, its condition's included; times
            how often such loops are entered where they are in loops that say how often they run.
    """

    known: int = 0
    loops: tuple[int, ...] = ()

    def __add__(self, other: "Launches") -> "Launches":
        return Launches(self.known + other.known, self.loops + other.loops)

    def times(self, trips: int) -> "Launches":
        """Return what so many runs launch."""
        return Launches(self.known * trips, tuple(loop * trips for loop in self.loops))


def read_launches(text: str) -> Launches:
    """Return what a program launches.

    Raises:
        ValueError: the text has no entry.
    """
    found, entry = computations(text)
    if entry is None:
        raise ValueError("The text of the program has no entry computation.")
    return _launches(found, entry)


def read_layer(text: str, layers: str = "layers") -> Launches:
    """Return what one turn of the loop over layers launches.

    Raises:
        ValueError: there is no such loop, or more than one.
    """
    found, _ = computations(text)
    loops = [
        each
        for instructions in found.values()
        for each in instructions
        if each.kind == "while" and scope(each.line).endswith(f"{layers}/while")
    ]
    if len(loops) != 1:
        raise ValueError(f"The text of the program has {len(loops)} loops over {layers}, not one.")
    return _launches(found, callee(loops[0].line, "body"))


def _launches(found: Computations, name: str) -> Launches:
    total = Launches()
    for each in found[name]:
        total += _of_instruction(found, each)
    return total


def _of_instruction(found: Computations, each: Instruction) -> Launches:
    if each.kind in _FREE or each.kind.endswith(("-done", "-update")):
        return Launches()
    if each.kind == "while":
        body = _launches(found, callee(each.line, "body"))
        trips = known_trips(each.line)
        if trips is not None:
            return body.times(trips)
        trip = body + _launches(found, callee(each.line, "condition"))
        return Launches(0, (trip.known, *trip.loops))
    if each.kind == "conditional":
        raise ValueError(f"The conditional {each.name} does not say which branch it takes.")
    if each.kind == "call":
        return _launches(found, callee(each.line, "to_apply"))
    if each.kind == "async-start":
        return _launches(found, callee(each.line, "calls"))
    return Launches(1)
