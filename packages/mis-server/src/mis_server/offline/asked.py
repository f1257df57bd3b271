"""What is asked of every row: what a row holds, how it is asked, and what is written for it.

Each kind of question derives from `OfflineTask`. Files, windows, outputs and clusters know no more of it than that.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from mis_core.checkpoints.digests import files_sha256
from mis_core.config import NO_CALIBRATION, EngineConfig
from mis_core.hub import calibration_beside, kept_at
from mis_server.model import Model
from mis_server.offline.places import Place
from mis_server.offline.rows import InputColumn, InputRow, RowSize
from mis_server.offline.text import MAX_LINE_BYTES, is_too_long, without_mark

UNIMPORTANT = {"changes_answers": False}
"""Metadata of a field that an output does not depend on."""

Held = Literal["scores", "text", "texts", "count"]
"""What a column of answers holds: of `scores` a list of float32 for each item."""

ERROR = b'{"error":'
"""How the line of a row with an error begins."""


@dataclass(frozen=True, kw_only=True)
class OfflineTask(ABC):
    """What is asked of every row.

    Attributes:
        batch_size: Maximum number of items per request to the engine.
        batch_tokens: As many items of a query are asked for at once as have about so many tokens, at least one.
        columns: What rows are read from, besides their ids.
        needed: Names of columns of which a table has one at least.
    """

    batch_size: int = field(default=512, metadata=UNIMPORTANT)
    batch_tokens: int = field(default=65_536, metadata=UNIMPORTANT)

    columns: ClassVar[tuple[InputColumn, ...]]
    needed: ClassVar[tuple[str, ...]]

    @abstractmethod
    def read(self, values: Mapping[str, Any]) -> InputRow:
        """Read a row's values by the names of columns; a line that is no object is a value of the first one needed."""

    @abstractmethod
    def size(self, row: InputRow) -> RowSize:
        """Return how much a row asks for."""

    @abstractmethod
    async def check(self, model: Model) -> None:
        """Refuse options that would be wrong with every row.

        Raises:
            ConfigError: names the option.
        """

    @abstractmethod
    async def answer(self, model: Model, rows: Sequence[InputRow]) -> list[Any]:
        """Return the answers to rows of one query, which are asked for in one request.

        Raises:
            RequestError, RequestRefused, EngineFault, EngineUnavailable: there are none.
        """

    @abstractmethod
    def line(self, row: InputRow) -> dict[str, Any]:
        """Return the fields of the line of a row with an answer, but for its id."""

    @property
    @abstractmethod
    def answer_columns(self) -> Mapping[str, Held]:
        """Columns of answers in a table by their names, and what they hold."""

    @abstractmethod
    def cells(self, row: InputRow) -> dict[str, Any]:
        """Return the values of those columns for a row with an answer."""

    @property
    def also_read(self) -> list[Place]:
        """Files that it was read from, which no output may be."""
        return []

    def requests(self, rows: list[InputRow]) -> list[list[InputRow]]:
        """Return those rows of one query together that one request asks for."""
        return [rows] if rows else []

    def depends_on(self, config: EngineConfig) -> dict[str, Any]:
        """Return what answers depend on besides the fields and what all kinds depend on."""
        return {}

    def read_line(self, text: bytes) -> InputRow:
        """Read a line of JSON."""
        if is_too_long(text):
            message = f"The line is longer than {MAX_LINE_BYTES} bytes."
            return InputRow(None, [], error={"code": "request_too_large", "message": message})
        try:
            value = msgspec.json.decode(without_mark(text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return InputRow(None, [], error={"code": "invalid_json", "message": "The line is not JSON."})
        return self.read(value if isinstance(value, dict) else {self.needed[0]: value})

    def write_line(self, row: InputRow) -> bytes:
        """Return the line of JSON for a row that has an answer or an error."""
        line = self.line(row) if row.error is None else {"error": row.error}
        if row.id is not None:
            line["id"] = row.id
        return msgspec.json.encode(line, enc_hook=_of_arrow) + b"\n"

    def write_lines(self, rows: Iterable[InputRow]) -> bytes:
        """Return the lines of JSON for rows, as `write_line`."""
        return b"".join(map(self.write_line, rows))


def decisive(asked: OfflineTask, config: EngineConfig, **output: Any) -> dict[str, Any]:
    """Return everything that an output depends on, except the type, which the engine may choose, and the input.

    Args:
        asked: What is asked of every row.
        config: The engine's options.
        output: What else is said of the output.
    """
    unimportant = {each.name for each in fields(asked) if each.metadata == UNIMPORTANT}
    engine = (
        "model", "revision", "tokenizer_path", "quantization", "context_length", "rerank_template", "chat_template",
        "multi_item_scoring_delimiter",
    )  # fmt: skip
    newer = "merge_lora", "decision_prompt", "decision_head"
    return (
        {name: value for name, value in asdict(asked).items() if name not in unimportant}
        | output
        | {name: getattr(config, name) for name in engine}
        | asked.depends_on(config)
        | ({"ignore_unknown_settings": True} if config.ignore_unknown_settings else {})
        # Only where they are given, so that jobs begun before there was such an option go on.
        | _calibration(config)
        | {name: value for name in newer if (value := getattr(config, name)) is not None}
    )


def _calibration(config: EngineConfig) -> dict[str, Any]:
    path = calibration_beside(config, kept_at(config.model, config.download_dir))
    return {} if path in (None, NO_CALIBRATION) else {"calibration": files_sha256([Path(path)])}


def _of_arrow(id: Any) -> Any:
    from mis_server.offline.answers import json_value  # which needs an extra that JSON lines do not

    return json_value(id)
