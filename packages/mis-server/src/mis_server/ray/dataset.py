"""Scoring a dataset of Ray Data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from ray.data import ActorPoolStrategy, Dataset

from mis_core.config import EngineConfig
from mis_server.offline.asked import Asked
from mis_server.offline.rows import Row, read_row
from mis_server.ray.actor import Host, for_actors
from mis_server.ray.parts import COLUMNS

SCORES = pa.list_(pa.list_(pa.float32()))
ERROR = pa.struct([("code", pa.string()), ("message", pa.string())])


@dataclass(frozen=True, kw_only=True)
class Actors:
    """How many actors score, and what each of them reserves in the cluster.

    Attributes:
        number: Actors, each with an engine process of its own.
        cpus: Cores of each.
        gpus: GPUs of each.
        tpus: TPU chips of each.
    """

    number: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    tpus: float = 0.0

    def options(self) -> dict[str, Any]:
        """Return arguments of `Dataset.map_batches`."""
        pool = ActorPoolStrategy(
            size=self.number, max_concurrent_calls_per_actor=2, max_tasks_in_flight_per_actor=4
        )  # one is scored while another is read or written
        resources = {"resources": {"TPU": self.tpus}} if self.tpus else {}
        return {"compute": pool, "num_cpus": self.cpus, "num_gpus": self.gpus or None, **resources}


def score_dataset(
    dataset: Dataset,
    model: str,
    *,
    query: str | None = None,
    labels: Sequence[str] = (),
    label_token_ids: Sequence[int] = (),
    apply_softmax: bool = False,
    item_first: bool = False,
    temperature: float = 1.0,
    rerank: bool = False,
    actors: Actors | None = None,
    rows_per_batch: int = 4096,
    **engine_options: Any,
) -> Dataset:
    """Score every row of a dataset. Nothing is computed before the result is consumed.

    Rows of a query that come in one batch are computed together; to bring them together, `dataset.sort("query")` first.

    Args:
        dataset: Rows with `item`, a text or token ids, or with a list `items`; and, unless `query` is given, `query`.
        model: A Hugging Face model directory or name, or a GGUF file, as every node of the cluster finds it.
        query: Text for rows without their own.
        labels: Texts.
        label_token_ids: Token ids, in place of `labels`.
        apply_softmax: Softmax over the labels instead of full-vocabulary probabilities.
        item_first: Score `item + query` instead.
        temperature: Divides label log-probabilities; other values than 1 need `apply_softmax`.
        rerank: Items are documents; the score of each is its relevance to the query. Needs no labels.
        actors: How many, and what each reserves; default: one with one CPU.
        rows_per_batch: Rows that an actor gets at once.
        **engine_options: As of `Engine.from_pretrained`. Give `dtype` where nodes differ, as `auto` may, too.

    Returns:
        The same rows with two more columns: `scores`, for each item a list of a float32 for each label; and `error`,
        null or why the row has no scores, as `code` and `message`.

    Raises:
        ConfigError: an option is unknown or out of range.
    """
    asked = Asked(
        query=query,
        labels=tuple(labels),
        label_token_ids=tuple(label_token_ids),
        apply_softmax=apply_softmax,
        item_first=item_first,
        temperature=temperature,
        rerank=rerank,
    )
    return dataset.map_batches(
        _BatchScorer,
        batch_size=rows_per_batch,
        batch_format="pyarrow",
        fn_constructor_args=(asked, for_actors(EngineConfig.of(model, engine_options))),
        **(actors or Actors()).options(),
    )


class _BatchScorer:
    """The actor's part of `score_dataset`."""

    def __init__(self, asked: Asked, config: EngineConfig) -> None:
        self._asked = asked
        self._host = Host(asked, config)

    async def __call__(self, table: pa.Table) -> pa.Table:
        """Return the table with its scores."""
        known = table.select([name for name in COLUMNS if name in table.column_names])
        rows = [read_row(values, self._asked.query) for values in known.to_pylist()]
        await self._host.score(rows)
        for name, column in answers(rows).items():
            table = table.append_column(name, column)
        return table


def answers(rows: list[Row]) -> dict[str, pa.Array]:
    """Return the columns `scores` and `error` of rows that are scored or have an error."""
    return {
        "scores": pa.array([row.scores for row in rows], SCORES),
        "error": pa.array([row.error for row in rows], ERROR),
    }
