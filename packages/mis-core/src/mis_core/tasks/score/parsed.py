"""A score request as its task has parsed it: what the engine computes, and what its result needs besides."""

from dataclasses import dataclass, field

from mis_core.requests import ScoreRequest
from mis_core.tasks.fields.item_errors import SortedItems
from mis_core.tasks.score.label_sequences import LabelSequences


@dataclass(frozen=True, slots=True, eq=False)
class ParsedScore:
    """A score request.

    Attributes:
        request: The items that are scored, perhaps none.
        items: Which of the request's items these are, and why the others are not scored.
        sequences: Its labels, if some have several tokens; `request.label_ids` are their first tokens then.
    """

    request: ScoreRequest
    items: SortedItems
    sequences: LabelSequences | None = None
    requests: tuple[ScoreRequest, ...] = field(init=False)
    """What the engine computes; nothing if no item can be scored."""

    def __post_init__(self) -> None:
        computed = self.request if self.sequences is None else self.sequences.segments(self.request)
        object.__setattr__(self, "requests", (computed,) if self.request.num_items else ())
