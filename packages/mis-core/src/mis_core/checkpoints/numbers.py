"""Numbers of a checkpoint's settings, of which lists are made: none is larger than its tensors show."""

from typing import Any

from mis_core.checkpoints.checkpoint import Checkpoint
from mis_core.errors import ModelError, shown

_HARMLESS = 1 << 12  # a list that long costs nothing; whether the number is right is seen when tensors are matched
_FEWEST_TENSORS = 6  # of a layer: queries, keys and values in one, and so gate and up
_MAX_POSITIONS = 1 << 31  # as position ids are int32


def check_numbers(settings: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Refuse settings from which more would be made than there are tensors for.

    Nothing is allocated for a number before this. Sizes of tensors need no bound here: they are compared with the
    tensors themselves before memory is taken for any.

    Args:
        settings: What `config.json` holds; those of a text within count, too.
        checkpoint: Its tensors are opened if a number is large.

    Raises:
        ModelError: a number is larger than the tensors show; the setting is named. Or they cannot be opened.
    """
    large = {name: _number(settings, name) for name in ("num_hidden_layers", "num_labels")}
    large = {name: value for name, value in large.items() if value > _HARMLESS}
    if large:
        with checkpoint.tensors() as tensors:
            rows = max((size for tensor in tensors.values() for size in tensor.shape), default=0)
            layers = len(tensors) // _FEWEST_TENSORS
            shows = {
                "num_hidden_layers": (layers, f"layers of {_FEWEST_TENSORS} tensors at most"),
                "num_labels": (rows, "rows in the largest one"),
            }
        for name, value in large.items():
            most, what = shows[name]
            if value > most:
                given = shown(str(value), 40)
                raise ModelError(f"{checkpoint.settings_path}: {name} = {given}, but the weights have {most:,} {what}.")
    positions = _number(settings, "max_position_embeddings")
    if positions >= _MAX_POSITIONS:
        given = shown(str(positions), 40)
        raise ModelError(
            f"{checkpoint.settings_path}: max_position_embeddings = {given} is above {_MAX_POSITIONS - 1:,}."
        )


def _number(settings: dict[str, Any], name: str) -> int:
    given = [each.get(name) for each in (settings, settings.get("text_config")) if isinstance(each, dict)]
    return max((value for value in given if isinstance(value, int)), default=0)
