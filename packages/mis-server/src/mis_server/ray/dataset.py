"""Scoring a dataset of Ray Data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from ray.data import ActorPoolStrategy, Dataset

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError
from mis_server.offline.answers import columns
from mis_server.offline.query import SCORE_COLUMN, OfflineQuery
from mis_server.offline.rows import ERROR_COLUMN
from mis_server.offline.tables import names_of, read_table
from mis_server.ray.actor import Host, for_actors


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
    score_column: str = SCORE_COLUMN,
    error_column: str = ERROR_COLUMN,
    actors: Actors | None = None,
    rows_per_batch: int = 4096,
    **engine_options: Any,
) -> Dataset:
    """Score every row of a dataset. Nothing is computed before the result is consumed.

    Rows of a query that come in one batch are computed together; to bring them together, `dataset.sort("query")` first.

    Args:
        dataset: Rows with `item`, a text or token ids, or with a list `items`; and, unless `query` is given, `query`.
            Lists may be NumPy arrays. A row with anything else, such as a date, gets an error.
        model: A Hugging Face model directory or name, or a GGUF file, as every node of the cluster finds it.
        query: Text for rows without their own.
        labels: Texts.
        label_token_ids: Token ids, in place of `labels`.
        apply_softmax: Softmax over the labels instead of full-vocabulary probabilities.
        item_first: Score `item + query` instead.
        temperature: Divides label log-probabilities; other values than 1 need `apply_softmax`.
        rerank: Items are documents; the score of each is its relevance to the query. Needs no labels.
        score_column: Name of the new column of scores.
        error_column: Name of the new column of errors.
        actors: How many, and what each reserves; default: one with one CPU.
        rows_per_batch: Rows that an actor gets at once.
        **engine_options: As of `Engine.from_pretrained`. Give `dtype` where nodes differ, as `auto` may, too.

    Returns:
        The same rows with two more columns: `scores`, for each item a list of a float32 for each label; and `error`,
        null or why the row has no scores, as `code` and `message`.

    Raises:
        ConfigError: an option is unknown or out of range, or a new column has the name of another. Where Ray cannot
            tell the columns before it computes the dataset, an actor raises it before it starts its engine.
    """
    new = {"score_column": score_column, "error_column": error_column}
    _check_names(new, _known_names(dataset))
    asked = OfflineQuery(
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
        fn_constructor_args=(asked, for_actors(EngineConfig.of(model, engine_options)), new),
        **(actors or Actors()).options(),
    )


def _known_names(dataset: Dataset) -> list[str]:
    """Return the names of columns that are known without computing anything."""
    try:
        schema = dataset.schema(fetch_if_missing=False)
    except pa.ArrowException:  # blocks of several types, which may be scored none the less
        return []
    return [] if schema is None else list(schema.names)


def _check_names(new: dict[str, str], names: Sequence[str]) -> None:
    """Refuse new columns, by the option that names each, that are called like another."""
    taken = list(names)
    for option, name in new.items():
        if name in taken:
            raise ConfigError(f"There is a column {name!r} already; give {option} another name.", option)
        taken.append(name)


class _BatchScorer:
    """The actor's part of `score_dataset`."""

    def __init__(self, asked: OfflineQuery, config: EngineConfig, new: dict[str, str]) -> None:
        self._asked = asked
        self._host = Host(asked, config)
        self._new = new

    async def __call__(self, table: pa.Table) -> pa.Table:
        """Return the table with its scores."""
        _check_names(self._new, table.column_names)
        names = [name for name in names_of(self._asked) if name in table.column_names]
        rows = read_table(table.select(names), self._asked)
        await self._host.score(rows)
        for name, column in zip(self._new.values(), columns(rows, self._asked).values(), strict=True):
            table = table.append_column(name, column)
        return table
