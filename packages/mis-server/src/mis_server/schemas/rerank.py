"""Reply of `POST /v1/rerank`: Cohere's and Jina's in one."""

from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ConfigDict

from mis_core.tasks.fields.item_errors import ItemError
from mis_core.tasks.rerank.ranking import RankedText, RerankMeta, RerankUsage
from mis_server.schemas.score import Absent, Calibration, absent

EXAMPLE: dict[str, Any] = {"query": "Do cats sleep?", "documents": ["Cats sleep all day.", "It rains."], "top_n": 1}
"""A body."""


@dataclass(frozen=True, slots=True)
class RerankResult:
    """One document; itself only where it is asked for, since Cohere's and Jina's clients read what is there."""

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    index: int
    relevance_score: float
    document: RankedText | Absent = field(default_factory=absent)


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankReply:
    """Documents, the most relevant first.

    `recipe` names what the prompts were made by: a recipe, or `custom` for `--rerank-template FILE`. `calibration`,
    only where one is loaded, is the digest of what the scores are calibrated by, or null.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    id: str
    object: Literal["rerank"] = "rerank"
    model: str
    recipe: str
    results: list[RerankResult]
    errors: tuple[ItemError, ...]
    usage: RerankUsage
    meta: RerankMeta
    calibration: Calibration = field(default_factory=absent)
