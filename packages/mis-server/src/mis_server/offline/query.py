"""The scores of items: `mis-server score`."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError, RequestError
from mis_core.tasks.path.task import Fields
from mis_core.tasks.recipes.recipe import recipes_digest
from mis_core.tasks.rerank.task import RERANK
from mis_core.tasks.score.task import SCORE
from mis_server.model import Model
from mis_server.offline.asked import Held, OfflineTask
from mis_server.offline.rows import ERROR_COLUMN, ID_COLUMN, InputColumn, InputRow, RowSize
from mis_server.offline.sizes import tokens_of

logger = logging.getLogger(__name__)

SCORE_COLUMN = "scores"
"""What the scores are called unless they have another name."""

_LIST_BYTES, _FLOAT_BYTES = 64, 32  # of Python's; a float with its place in the list


@dataclass(frozen=True, kw_only=True)
class OfflineQuery(OfflineTask):
    """Items are scored against the query of their row, which has one of them or a list.

    Attributes:
        query: Text for rows without their own query.
        labels: Texts; empty if there are `label_token_ids`, or with `rerank`.
        label_token_ids: Token ids; empty if there are `labels`, or with `rerank`.
        apply_softmax: Softmax over the labels instead of full-vocabulary probabilities.
        item_first: Score `item + query` instead.
        temperature: Divides label log-probabilities; other values than 1 need `apply_softmax`.
        rerank: Items are documents; each gets one score, its relevance to the query as `POST /v1/rerank` has it.
        score_column: What the scores are called in the output.
    """

    query: str | None = None
    labels: tuple[str, ...] = ()
    label_token_ids: tuple[int, ...] = ()
    apply_softmax: bool = False
    item_first: bool = False
    temperature: float = 1.0
    rerank: bool = False
    score_column: str = SCORE_COLUMN

    columns: ClassVar = (
        InputColumn("query", "input", "invalid_query_type"),
        InputColumn("item", "input", "invalid_items_type"),
        InputColumn("items", "inputs", "invalid_items_type"),
    )
    needed: ClassVar = ("item", "items")

    def __post_init__(self) -> None:
        if self.score_column in ("", ERROR_COLUMN, ID_COLUMN):
            message = (
                f"{self.score_column!r} cannot name the scores; the output also has {ERROR_COLUMN} and {ID_COLUMN}."
            )
            raise ConfigError(message, "score_column")

    def read(self, values: Mapping[str, Any]) -> InputRow:
        """Read `item` or `items`, `query` and `id`."""
        own = values.get("query")
        row = InputRow(self.query if own is None else own, [values.get("item")], id=values.get("id"))
        items = values.get("items")
        if items is not None:
            row.items, row.is_list = (items, True) if isinstance(items, list) else ([], True)
        if items is not None and row.items is not items:
            row.error = {"code": "invalid_items_type", "message": "The row's items are not a list."}
        elif items == []:
            row.error = {"code": "empty_items", "message": "The row's list of items is empty."}
        elif items is not None and values.get("item") is not None:
            row.error = {"code": "invalid_items_type", "message": "The row has both item and items; it may have one."}
        elif items is None and row.items[0] is None:
            row.error = {"code": "missing_items", "message": "The line has no item."}
        elif row.query is None:
            row.error = {"code": "missing_query", "message": "The line has no query, and there is no --query."}
        return row

    def size(self, row: InputRow) -> RowSize:
        """Return how much a row asks for."""
        labels = max(1, len(self.labels) + len(self.label_token_ids))
        answer_bytes = len(row.items) * (_LIST_BYTES + _FLOAT_BYTES * labels)
        return RowSize(len(row.items), tokens_of(row.query), sum(map(tokens_of, row.items)), answer_bytes)

    async def check(self, model: Model) -> None:
        """Refuse labels, options and models that would be wrong with every row; log the recipe that is taken."""
        fields = self.fields("a", ["a"])
        try:
            if self.rerank:
                await model.parse(RERANK, fields)
            else:
                await model.parse(SCORE, fields)
        except RequestError as error:
            raise ConfigError(error.message, error.param or "labels") from None
        if self.rerank:
            logger.info("Rerank: %s", model.described_rerank)

    async def answer(self, model: Model, rows: Sequence[InputRow]) -> list[Any]:
        """Return for each row a value for each label, for each of its items."""
        fields = self.fields(rows[0].query, [item for row in rows for item in row.items])
        scores = iter(await self._scores(model, fields))
        return [list(islice(scores, len(row.items))) for row in rows]

    async def _scores(self, model: Model, fields: Fields) -> list[list[float]]:
        if not self.rerank:
            return (await model.answer(SCORE, fields)).result.scores.tolist()
        ranked = (await model.answer(RERANK, fields)).result.results
        return [[document.relevance_score] for document in sorted(ranked, key=lambda document: document.index)]

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

    def line(self, row: InputRow) -> dict[str, Any]:
        """Return the scores of a row's items, or of its one item."""
        return {self.score_column: row.answer if row.is_list else row.answer[0]}

    @property
    def answer_columns(self) -> Mapping[str, Held]:
        """Columns of answers in a table."""
        return {self.score_column: "scores"}

    def cells(self, row: InputRow) -> dict[str, Any]:
        """Return the scores of a row."""
        return {self.score_column: row.answer}

    def depends_on(self, config: EngineConfig) -> dict[str, Any]:
        """Return what chooses recipes: a later version may take another one of rerank for the same model."""
        return {"rerank_recipes": recipes_digest()} if self.rerank else {}
