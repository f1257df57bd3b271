"""Trained decision heads in the three forms in which transformers 5.24 reads them (`JevForDecision`).

* `config.json` of `model_type` `jev`: the head is among the model's own tensors; `decision.json` says how to ask.
* `decision_config.json` and `readout.safetensors`: a row for each answer code, the same for all kinds of questions.
* `judge_config.json`, `calibration.json` and `head.safetensors`: rows by kinds of questions.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mis_core.checkpoints.files import Files, is_there
from mis_core.checkpoints.text_settings import is_saved
from mis_core.errors import ModelError, shown

logger = logging.getLogger(__name__)

KINDS = ("noul", "choice", "score")
"""Kinds of questions."""

HEAD_WEIGHTS = ("head.safetensors", "readout.safetensors", "heads.safetensors", "head.pt")
"""Files that hold heads; none of a model's own weights are in them."""

_CODES, _JUDGE, _CALIBRATION = "decision_config.json", "judge_config.json", "calibration.json"
_NOT_CAUSAL = "noncausal_full_attention"
_MOST_ROWS, _MOST_CAP = 1 << 16, 1e30  # in float32

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class StoredHead:
    """One linear layer beside a language model, read at the token before a mark.

    Attributes:
        rows: How many.
        offsets: By kind of question the row of its first option; the others follow.
        softcap: `softcap * tanh(value / softcap)` is what counts; None: the value.
        has_bias: Whether rows have biases.
        file: That holds it; None: the model's own.
        asks: What `decision.json` would say of it; None: that file says it.
        settings: Names of the files with its settings.
    """

    rows: int
    offsets: Mapping[str, int]
    softcap: float | None
    has_bias: bool
    file: str | None
    asks: dict[str, Any] | None
    settings: tuple[str, ...]

    def names(self) -> dict[str, str]:
        """Return the names of its tensors in its file, by what they are called here."""
        return {"proj.weight": "proj.weight", "proj.bias": "proj.bias"} if self.has_bias else {"proj.weight": "weight"}

    def names_within(self) -> tuple[str, ...]:
        """Return the names that its tensors may have among a model's own; transformers 5.24 saves rows as `weight`."""
        return "proj.weight", "weight", "proj.bias"


class _Saved(msgspec.Struct):
    """What `config.json` of a saved model says of its head; the rest is in `text_config`."""

    text_config: dict[str, Any]
    num_verbalizers: int = 24
    offsets: dict[str, int] | None = None
    softcap: float | None = None


class _Codes(msgspec.Struct):
    """What is read of `decision_config.json`."""

    codes: list[str]
    temperature: float
    prompt: str = "pplx"
    attention_mode: str = "causal"
    temperature_by_type: dict[str, float] = {}
    pooling: str = "last"


class _Slots(msgspec.Struct):
    num_slots: int
    verbalizers: list[str]
    ranges: dict[str, tuple[int, int]]


class _Judge(msgspec.Struct):
    """What is read of `judge_config.json`."""

    slots: _Slots
    softcap: float | None = None
    adapter_subfolder: str | None = "adapter"


class _Calibration(msgspec.Struct):
    per_kind: dict[str, float]


def read_head(folder: Path, files: Files, settings: Mapping[str, Any]) -> StoredHead | None:
    """Read what a checkpoint says of its decision head; None if it has none.

    Args:
        folder: The checkpoint.
        files: Opens its files.
        settings: What its `config.json` holds.

    Raises:
        ModelError: a file is missing or broken, or a head is of a kind that is not understood.
    """
    if is_saved(settings):
        head = _saved(folder, settings)
    elif is_there(folder / _CODES):
        head = _of_codes(folder, files, settings)
    elif is_there(folder / _JUDGE):
        head = _of_judge(folder, files, settings)
    else:
        head = None
    for name in HEAD_WEIGHTS:
        if is_there(folder / name) and (head is None or head.file != name):
            raise ModelError(f"{folder / name}: holds a decision head of an unknown kind.")
    if head is not None:
        _check(head, folder)
    return head


def _saved(folder: Path, settings: Mapping[str, Any]) -> StoredHead:
    found = converted(settings, _Saved, folder / "config.json")
    offsets = {"noul": 0, "score": 2, "choice": 8} if found.offsets is None else found.offsets
    return StoredHead(found.num_verbalizers, offsets, found.softcap, True, None, None, ("config.json",))


def _of_codes(folder: Path, files: Files, settings: Mapping[str, Any]) -> StoredHead:
    from transformers.models.jev.configuration_jev import DECIDER_PROMPTS  # slow to import

    path = folder / _CODES
    given = files.read_object(path)
    found = converted(given, _Codes, path)
    if found.attention_mode != "causal":
        why = "such a model reads the state after the question, so nothing can be shared"
        note = f" ({why})" if found.attention_mode == _NOT_CAUSAL else ""
        raise ModelError(f"{path}: attention_mode {shown(repr(found.attention_mode), 60)} is not served{note}.")
    if found.pooling != "last":
        raise ModelError(
            f"{path}: pooling {shown(repr(found.pooling), 60)} is not served; heads are read at the last token."
        )
    if found.prompt not in DECIDER_PROMPTS:
        known = ", ".join(DECIDER_PROMPTS)
        raise ModelError(f"{path}: the prompt {shown(repr(found.prompt), 60)} is not known; known are {known}.")
    asks = _asks({"decision_config": given}, settings, path)
    asks["temperature"] |= found.temperature_by_type
    offsets = dict.fromkeys(KINDS, 0)
    return StoredHead(len(found.codes), offsets, None, False, "readout.safetensors", asks, (_CODES,))


def _of_judge(folder: Path, files: Files, settings: Mapping[str, Any]) -> StoredHead:
    path = folder / _JUDGE
    given, calibration = files.read_object(path), files.read_object(folder / _CALIBRATION)
    found = converted(given, _Judge, path)
    converted(calibration, _Calibration, folder / _CALIBRATION)
    slots = found.slots
    for kind, (start, end) in slots.ranges.items():
        if not 0 <= start < end <= min(slots.num_slots, len(slots.verbalizers)):
            raise ModelError(f"{path}: the range of {shown(kind, 40)} is not within the {slots.num_slots} slots.")
    asks = _asks({"judge_config": given, "calibration": calibration}, settings, path)
    offsets = {kind: start for kind, (start, _) in slots.ranges.items()}
    files_of_settings = (_JUDGE, _CALIBRATION)
    return StoredHead(slots.num_slots, offsets, found.softcap, True, "head.safetensors", asks, files_of_settings)


def _asks(head_settings: dict[str, Any], settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return what `decision.json` would hold, as transformers makes it of a head's own files."""
    from transformers.models.jev.configuration_jev import JevConfig  # slow to import

    if not isinstance(settings.get("model_type"), str):
        raise ModelError(f"{path.parent / 'config.json'}: a model with a decision head needs a model_type.")
    made = JevConfig.decision_config(head_settings, dict(settings))
    assert made is not None, "the settings are those of a head that it reads"
    return {
        "labels": {kind: list(labels) for kind, labels in made.labels.items()},
        "temperature": dict(made.temperature),
        "chat_template": made.chat_template,
        "noul_options": list(made.noul_options),
        "adapter": made.adapter,
    }


def _check(head: StoredHead, folder: Path) -> None:
    where = folder / (head.file or "config.json")
    if not 0 < head.rows <= _MOST_ROWS:
        raise ModelError(f"{where}: a decision head must have 1 to {_MOST_ROWS:,} rows, not {head.rows:,}.")
    if set(head.offsets) != set(KINDS) or not all(0 <= offset < head.rows for offset in head.offsets.values()):
        raise ModelError(f"{where}: the head must have a row below {head.rows} for each of {', '.join(KINDS)}.")
    if head.softcap is not None and not 0 < head.softcap < _MOST_CAP:
        raise ModelError(f"{where}: softcap must be a number above 0, not {head.softcap}.")


def warn_of_unknown(given: Iterable[str], schema: type[msgspec.Struct], where: object) -> None:
    """Warn of settings that a schema does not have; they are passed over."""
    unknown = sorted(set(given) - {field.name for field in msgspec.structs.fields(schema)})
    if unknown:
        logger.warning("%s has settings that are not understood: %s.", where, shown(", ".join(unknown), 200))


def converted(given: Mapping[str, Any], schema: type[Read], path: object) -> Read:
    """Return settings as a schema has them.

    Raises:
        ModelError: a field is missing, or of another type; it is named.
    """
    try:
        return msgspec.convert(given, schema)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: {shown(str(error), 200)}.") from None
