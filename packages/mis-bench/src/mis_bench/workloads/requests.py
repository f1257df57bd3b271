"""The body of a request, as it is recorded."""

from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from mis_bench.workload import Workload

_Id = Annotated[int, Field(ge=0, lt=2**31)]


class Request(BaseModel):
    """What `Workload.request` gives: query and items, both ids or both texts, and labels."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: Annotated[str, Field(min_length=1)] | Annotated[list[_Id], Field(min_length=1)]
    items: Annotated[list[str] | list[list[_Id]], Field(min_length=1)]
    label_token_ids: list[_Id] = Field(min_length=1)
    apply_softmax: bool = False

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> "Request":
        if isinstance(self.query, str) != isinstance(self.items[0], str):
            raise ValueError("query and items must both be texts or both be token ids")
        return self

    def workload(self, name: str) -> Workload:
        """Return it as a workload."""
        items = tuple(item if isinstance(item, str) else np.array(item, np.int32) for item in self.items)
        query = self.query if isinstance(self.query, str) else np.array(self.query, np.int32)
        return Workload(name, query, items, np.array(self.label_token_ids, np.int32), self.apply_softmax)
