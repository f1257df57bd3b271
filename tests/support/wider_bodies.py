"""Bodies with one field more than they declare: what is made of declarations must have it, too."""

from typing import Annotated

import msgspec
from msgspec import Meta

from field_tables import DECLARED
from mis_core.tasks.fields.body import Body, about

HELP = "How many wombats there are."


def wider(route: str) -> type[Body]:
    """A copy of the declaration with one field more: `wombats`, a whole number from 1 to 9 or null."""
    wombats = Annotated[Annotated[int, Meta(ge=1, le=9)] | None, about(HELP)]
    return msgspec.defstruct("Wider", [("wombats", wombats, None)], bases=(DECLARED[route],), frozen=True, kw_only=True)
