"""Records with their lines in the file, put together as they were written: windows with their requests."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from mis_bench.results.folder import RECORDS
from mis_bench.results.plan import Phase
from mis_bench.results.records import Call, Gate, Opened, ProductRate, Record, Window


def at(line: int) -> str:
    """Return where a record is."""
    return f"{RECORDS}:{line}"


class RecordedWindow(NamedTuple):
    """A window and its requests, each with its line."""

    line: int
    window: Window
    calls: list[tuple[int, Call]]

    @property
    def answered(self) -> int:
        """Requests that were answered."""
        return sum(call.error is None for _, call in self.calls)


@dataclass(slots=True)
class Recorded:
    """What happened, by what it belongs to and in its order; whoever expects a record takes it out.

    Attributes:
        opened: By target.
        gates: By case.
        windows: By case, phase and round.
        afterwards: Requests that show that a target survived, by case and round.
        rates: Rounds of which there is a product rate, by target.
        without_window: Requests behind which no window was written.
    """

    opened: dict[str, list[tuple[int, Opened]]] = field(default_factory=lambda: defaultdict(list))
    gates: dict[str, list[tuple[int, Gate]]] = field(default_factory=lambda: defaultdict(list))
    windows: dict[tuple[str, Phase, int], list[RecordedWindow]] = field(default_factory=lambda: defaultdict(list))
    afterwards: dict[tuple[str, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    rates: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    without_window: dict[tuple[str, Phase, int], list[tuple[int, Call]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Recorded":
        """Put records together; the first is line 1."""
        found = cls()
        for line, record in enumerate(records, 1):
            match record:
                case Opened():
                    found.opened[record.target].append((line, record))
                case Gate():
                    found.gates[record.case].append((line, record))
                case Call(phase="afterwards"):
                    found.afterwards[record.case, record.round].append(line)
                case Call():
                    found.without_window[record.case, record.phase, record.round].append((line, record))
                case Window():
                    key = record.case, record.phase, record.round
                    calls = found.without_window.pop(key, [])
                    found.windows[key].append(RecordedWindow(line, record, calls))
                case ProductRate():
                    found.rates[record.target].append((line, record.round))
        return found

    def left(self) -> Iterator[str]:
        """Yield a sentence for every record that nobody took: the plan has no place for it."""
        for target, opened in self.opened.items():
            yield from (f"{at(line)}: {target} was opened once more than planned" for line, _ in opened)
        for case, gates in self.gates.items():
            yield from (f"{at(line)}: a check of {case} that was not planned: {gate.name}" for line, gate in gates)
        for (case, phase, turn), windows in self.windows.items():
            for line, *_ in windows:
                yield f"{at(line)}: the plan has no such window: {case}, {phase}, round {turn}"
        for (case, phase, turn), calls in self.without_window.items():
            yield f"{at(calls[0][0])}: {len(calls)} requests without a window: {case}, {phase}, round {turn}"
        for (case, turn), lines in self.afterwards.items():
            yield from (
                f"{at(line)}: a request afterwards that was not planned: {case}, round {turn}" for line in lines
            )
        for target, rates in self.rates.items():
            yield from (
                f"{at(line)}: a product rate of {target} that round {turn} has no use for" for line, turn in rates
            )
