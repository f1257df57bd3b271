"""A score request as its task has parsed it: what the engine computes, and what its result needs besides."""

from dataclasses import dataclass

from mis_core.scoring.item_errors import SortedItems
from mis_core.scoring.request import ScoreRequest


@dataclass(frozen=True, slots=True, eq=False)
class ParsedScore:
    """A score request.

    Attributes:
        request: The items that are scored, perhaps none.
        items: Which of the request's items these are, and why the others are not scored.
        return_layout: Whether the reply says how the request was laid out.
    """

    request: ScoreRequest
    items: SortedItems
    return_layout: bool = False

    @property
    def requests(self) -> tuple[ScoreRequest, ...]:
        """What the engine computes; nothing if no item can be scored."""
        return (self.request,) if self.request.num_items else ()
