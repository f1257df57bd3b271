"""The answers to questions about states: `mis-server decide`.

Each row is a request of its own, the one that `POST /v1/systemone` would be, so a row that fails concerns no other.
Of rows of one state the first is asked alone, and the others find the state in the prefix cache.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from mis_core.config import EngineConfig
from mis_core.errors import ConfigError, RequestError
from mis_core.tasks.decide.system_one.task import SYSTEM_ONE
from mis_core.tasks.fields.item_errors import OnError
from mis_server.model import Model
from mis_server.offline.asked import UNIMPORTANT, Held, OfflineTask
from mis_server.offline.places import Place
from mis_server.offline.rows import InputColumn, InputRow, RowSize
from mis_server.offline.sizes import bytes_of, json_tokens_of
from mis_server.offline.text import without_mark

_ANSWER_BYTES = 512  # of the answer to a question, besides what is said of each of its options

_OPTIONS = {"model": "model", "x_abstain_below": "abstain_below"}
"""By the field that is wrong, the option that is; of others it is that of the questions."""

_ANY_QUESTION = {"any": {"type": "noul", "instructions": "Is it?"}}


@dataclass(frozen=True, kw_only=True)
class OfflineDecisions(OfflineTask):
    """Questions of System One about the state of each row.

    Attributes:
        model_name: What answers call the model.
        questions: By their ids, for rows without their own; None for none.
        questions_file: Where they were read, None for nowhere.
        abstain_below: Ids of answers whose confidence is below this stand in `x_abstained`.
        on_error: What a question that cannot be asked does: `request` makes an error of its row, and `item` gives it an
            entry in `x_errors`.
    """

    model_name: str
    questions: Mapping[str, Any] | None = None
    questions_file: str | None = field(default=None, metadata=UNIMPORTANT)
    abstain_below: float | None = None
    on_error: OnError = "request"

    columns: ClassVar = (
        InputColumn("state", "text", "invalid_state"),
        InputColumn("questions", "json", "invalid_questions"),
    )
    needed: ClassVar = ("state",)

    @property
    def also_read(self) -> list[Place]:
        """The file of the questions."""
        return [] if self.questions_file is None else [Place("the questions", self.questions_file)]

    def read(self, values: Mapping[str, Any]) -> InputRow:
        """Read `state`, `questions` and `id`."""
        own = values.get("questions")
        questions = self.questions if own is None else own
        row = InputRow(values.get("state"), [questions], id=values.get("id"))
        if row.query is None:
            row.error = {"code": "missing_state", "message": "The line has no state."}
        elif questions is None:
            row.error = {
                "code": "missing_questions",
                "message": "The line has no questions, and there is no --questions.",
            }
        return row

    def size(self, row: InputRow) -> RowSize:
        """Return how much a row asks for."""
        count = sum(len(each) if isinstance(each, dict) else 1 for each in row.items)
        answer_bytes = count * _ANSWER_BYTES + bytes_of(row.items)
        return RowSize(count, json_tokens_of(row.query), json_tokens_of(row.items), answer_bytes)

    def requests(self, rows: list[InputRow]) -> list[list[InputRow]]:
        """Return each row alone."""
        return [[row] for row in rows]

    async def check(self, model: Model) -> None:
        """Refuse questions, options and models that would be wrong with every row, whatever `on_error` is."""
        questions = _ANY_QUESTION if self.questions is None else self.questions
        try:
            await model.parse(SYSTEM_ONE, self.fields("a", questions) | {"x_on_error": "request"})
        except RequestError as error:
            raise ConfigError(error.message, _OPTIONS.get(error.param or "", "questions")) from None

    async def answer(self, model: Model, rows: Sequence[InputRow]) -> list[Any]:
        """Return the reply to the one row, but for what depends on the state of the cache."""
        (row,) = rows
        result = (await model.answer(SYSTEM_ONE, self.fields(row.query, row.items[0]))).result
        reply: dict[str, Any] = {"model": self.model_name, **msgspec.to_builtins(result)}
        del reply["usage"]["x_cached_tokens"]  # or a run that is resumed would write other bytes
        return [reply]

    def fields(self, state: Any, questions: Any) -> dict[str, Any]:
        """Return the fields of a request, as `POST /v1/systemone` has them."""
        return {
            "state": state,
            "questions": questions,
            "x_on_error": self.on_error,
            "x_abstain_below": self.abstain_below,
        }

    def line(self, row: InputRow) -> dict[str, Any]:
        """Return the reply."""
        return dict(row.answer)

    @property
    def answer_columns(self) -> Mapping[str, Held]:
        """Columns of replies in a table."""
        return {"answers": "text", "input_tokens": "count", "x_abstained": "texts", "x_errors": "text"}

    def cells(self, row: InputRow) -> dict[str, Any]:
        """Return the answers and the questions that could not be asked as JSON, and the rest of the reply as it is."""
        reply = row.answer
        return {
            "answers": _json(reply["answers"]),
            "input_tokens": reply["usage"]["input_tokens"],
            "x_abstained": reply.get("x_abstained"),
            "x_errors": _json(reply["x_errors"]) if "x_errors" in reply else None,
        }

    def depends_on(self, config: EngineConfig) -> dict[str, Any]:
        """Return how options are read, and the questions as a text, which keeps their order."""
        questions = _json(self.questions)
        return {"choice_order": config.choice_order, "questions": questions}


def read_questions(path: str) -> dict[str, Any]:
    """Return the questions of a file: an object of them by their ids.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    try:
        questions = msgspec.json.decode(without_mark(Path(path).read_bytes()))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", "questions") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}.", "questions") from None
    if not isinstance(questions, dict):
        raise ConfigError(f"{path} must hold an object of questions, keyed by id.", "questions")
    return questions


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
