"""What is asked of every row, and what else its scores depend on."""

from dataclasses import asdict, dataclass, field
from typing import Any

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError
from mis_core.tasks.recipes.recipe import recipes_digest

SCORE_COLUMN, ERROR_COLUMN, ID_COLUMN = "scores", "error", "id"
"""What an output's columns are called; that of the scores may have another name."""


@dataclass(frozen=True, kw_only=True)
class OfflineQuery:
    """What is asked of every row.

    Attributes:
        query: Text for rows without their own query.
        labels: Texts; empty if there are `label_token_ids`, or with `rerank`.
        label_token_ids: Token ids; empty if there are `labels`, or with `rerank`.
        apply_softmax: Softmax over the labels instead of full-vocabulary probabilities.
        item_first: Score `item + query` instead.
        temperature: Divides label log-probabilities; other values than 1 need `apply_softmax`.
        rerank: Items are documents; each gets one score, its relevance to the query as `POST /v1/rerank` has it.
        score_column: What the scores are called in the output.
        batch_size: Maximum number of items per request to the engine.
        batch_tokens: As many items of a query are asked for at once as have about so many tokens, at least one.
    """

    query: str | None = None
    labels: tuple[str, ...] = ()
    label_token_ids: tuple[int, ...] = ()
    apply_softmax: bool = False
    item_first: bool = False
    temperature: float = 1.0
    rerank: bool = False
    score_column: str = SCORE_COLUMN
    batch_size: int = field(default=512, metadata={"changes_scores": False})
    batch_tokens: int = field(default=65_536, metadata={"changes_scores": False})

    def __post_init__(self) -> None:
        if self.score_column in ("", ERROR_COLUMN, ID_COLUMN):
            message = (
                f"{self.score_column!r} is no name for the scores; the output has {ERROR_COLUMN} and {ID_COLUMN} too."
            )
            raise ConfigError(message, "score_column")

    def fields(self, query: Any, items: list[Any]) -> dict[str, Any]:
        """Return the fields of a request, as `POST /v1/score` or `/v1/rerank` has them."""
        if self.rerank:
            return {"query": query, "documents": items}
        fields: dict[str, Any] = {
            "query": query,
            "items": items,
            "apply_softmax": self.apply_softmax,
            "item_first": self.item_first,
            "temperature": self.temperature,
        }
        if self.labels:
            fields["labels"] = list(self.labels)
        if self.label_token_ids:
            fields["label_token_ids"] = list(self.label_token_ids)
        return fields


def decisive(asked: OfflineQuery, config: EngineConfig) -> dict[str, Any]:
    """Return everything that an output depends on, except the type, which the engine may choose, and the input.

    A later version may take another recipe of rerank for the same model, so what chooses them is part of it.
    """
    unimportant = {
        name for name, each in OfflineQuery.__dataclass_fields__.items() if "changes_scores" in each.metadata
    }
    engine = (
        "model", "revision", "tokenizer_path", "quantization", "context_length", "rerank_template", "chat_template",
        "multi_item_scoring_delimiter",
    )  # fmt: skip
    return (
        {name: value for name, value in asdict(asked).items() if name not in unimportant}
        | {name: getattr(config, name) for name in engine}
        | ({"rerank_recipes": recipes_digest()} if asked.rerank else {})
        | ({"ignore_unknown_settings": True} if config.ignore_unknown_settings else {})
    )
