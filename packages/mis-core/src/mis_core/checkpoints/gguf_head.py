"""Classification heads of GGUF files: what llama.cpp calls rerankers, whose `pooling_type` is rank.

llama.cpp reads `cls.output.weight` at the last token, and makes probabilities of its rows by softmax. Its converter
makes such files of Qwen3-Reranker: the rows are those of the language model's head for `yes` and `no`, in this order.
Sources: `src/llama-graph.cpp` and `conversion/qwen.py` of llama.cpp at 03173d5e (2026).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mis_core.errors import ModelError, shown

HEAD = "cls.output.weight"
"""The tensor of the rows, `[rows, embed]`; where there is one row, some writers leave the first axis out."""

_POOLING, _LABELS = "pooling_type", "classifier.output_labels"
_KINDS = ("none", "mean", "cls", "last", "rank")
_RANK = _KINDS.index("rank")


def head_settings(path: Path, found: dict[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Take the settings of a head out of those found, and return them as `config.json` has them; none without a head.

    Args:
        path: The file, for errors.
        found: Settings by their names behind the architecture's.
        tensors: Of the file by their names, as the `gguf` package has them.

    Raises:
        ModelError: the file is of a model of embeddings, or the head is missing or named wrongly.
    """
    if _POOLING not in found:
        return {}
    kind = found.pop(_POOLING)
    if kind != _RANK:
        name = f" ({_KINDS[kind]})" if isinstance(kind, int) and 0 <= kind < _RANK else ""
        raise ModelError(
            f"{path}: {_POOLING} = {shown(str(kind), 40)}{name} marks an embedding model, which is not supported; "
            f"rerankers have {_RANK} (rank)."
        )
    head = tensors.get(HEAD)
    if head is None or len(head.shape) > 2:
        raise ModelError(f"{path}: {_POOLING} is rank, but tensor {HEAD} is missing or not a matrix.")
    rows = int(head.shape[1]) if len(head.shape) == 2 else 1
    labels = found.pop(_LABELS, None)
    if labels is None:
        return {"num_labels": rows}
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels) or len(labels) != rows:
        raise ModelError(f"{path}: {_LABELS} must name the {rows} rows of {HEAD}.")
    return {"id2label": {str(row): label for row, label in enumerate(labels)}}
