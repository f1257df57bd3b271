"""Hugging Face transformers on PyTorch, in the three ways in which people score with it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from jaxtyping import Int64
from transformers import AutoModelForCausalLM, DynamicCache

from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.base import About, TargetUnavailable
from mis_bench.targets.local import LocalModel, Logits, LogSumExps

WAYS = ("serial", "batched", "shared")
"""How items meet the query; see `PyTorch`."""


def open_pytorch(model: Path, way: str, *, dtype: str, batch: int) -> "PyTorch":
    """Load a checkpoint, onto a GPU if PyTorch has one.

    Args:
        model: Its directory.
        way: One of `WAYS`.
        dtype: `bfloat16` or `float32`.
        batch: Items computed at once.

    Raises:
        TargetUnavailable: transformers refuses the checkpoint.
    """
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise TargetUnavailable(f"transformers cannot load {model}: {str(error).splitlines()[0][:200]}") from None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return PyTorch(loaded.eval().to(device), model, way, batch)


class PyTorch(LocalModel):
    """A causal language model, asked in one of three ways.

    * `serial`: one forward pass for each item, of the query and the item.
    * `batched`: batches of such whole sequences, padded on the right to the longest.
    * `shared`: the query once; batches of items behind copies of its keys and values.

    Padding on the right needs no mask: no token sees a later one, and each item is read at its own last token.
    """

    def __init__(self, model: Any, directory: Path, way: str, batch: int) -> None:
        about = About(
            name=f"transformers-{way}",
            backend="transformers",
            model=str(directory),
            model_sha256=checkpoint_sha256(directory),
            dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
            options={"attention": "sdpa", "devices": devices(model.device), "threads": torch.get_num_threads()}
            | ({} if way == "serial" else {"batch": batch}),
            versions={"torch": torch.__version__, "transformers": transformers.__version__},
        )
        super().__init__(about, model.config.vocab_size, model.config.max_position_embeddings)
        self._model, self._way, self._batch = model, way, batch

    def label_logits(
        self, query: list[int], items: list[list[int]], labels: Int64[np.ndarray, " labels"], *, with_sums: bool
    ) -> tuple[Logits, LogSumExps | None]:
        """Compute all items, in the target's way."""
        wanted = torch.from_numpy(labels)
        logits, sums = [], []
        with torch.inference_mode():
            for states in self._last_states(query, items):
                found = self._model.get_output_embeddings()(states)
                logits.append(found[:, wanted].float().cpu().numpy())
                if with_sums:
                    sums.append(found.float().logsumexp(dim=1).cpu().numpy())
        return np.concatenate(logits), np.concatenate(sums) if with_sums else None

    def _last_states(self, query: list[int], items: list[list[int]]) -> Iterator[torch.Tensor]:
        """Yield hidden states of the items' last tokens, `[batch, hidden]`, in order."""
        if self._way == "shared":
            yield from self._shared(query, items)
            return
        for batch in _batched(items, 1 if self._way == "serial" else self._batch):
            yield self._padded([query + item for item in batch], None)

    def _shared(self, query: list[int], items: list[list[int]]) -> Iterator[torch.Tensor]:
        cache = DynamicCache(config=self._model.config)
        after_query = self._padded([query], cache)
        copies = min(self._batch, len(items))
        cache.batch_repeat_interleave(copies)
        for batch in _batched(items, self._batch):
            if not any(batch):
                yield after_query.expand(len(batch), -1)
                continue
            if len(batch) < copies:
                cache.batch_select_indices(torch.arange(len(batch)))
                copies = len(batch)
            states = self._padded(batch, cache)
            for row, item in enumerate(batch):
                if not item:
                    states[row] = after_query[0]
            yield states
            cache.crop(-max(map(len, batch)))

    def _padded(self, sequences: Sequence[list[int]], cache: DynamicCache | None) -> torch.Tensor:
        """Return hidden states of the last tokens, `[sequences, hidden]`."""
        longest = max(map(len, sequences))
        padded = torch.tensor([sequence + [0] * (longest - len(sequence)) for sequence in sequences])
        inputs = {"input_ids": padded.to(self._model.device), "use_cache": cache is not None}
        states = self._model.base_model(past_key_values=cache, **inputs).last_hidden_state
        last = torch.tensor([max(0, len(sequence) - 1) for sequence in sequences])
        return states[torch.arange(len(sequences)), last]


def devices(device: torch.device) -> str:
    """Return number and kind, as engines describe theirs (`About.accelerators`)."""
    return f"1 x {torch.cuda.get_device_name(device) if device.type == 'cuda' else device.type}"


def _batched(items: list[list[int]], size: int) -> Iterator[list[list[int]]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
