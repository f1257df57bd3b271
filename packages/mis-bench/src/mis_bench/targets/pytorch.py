"""Hugging Face transformers on PyTorch, in the three ways in which people score with it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from jaxtyping import Float, Int64
from transformers import AutoModelForCausalLM, DynamicCache

from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.blocking import LocalModel
from mis_bench.targets.products import ROWS, best_rate
from mis_bench.targets.row_batches import RowBatches
from mis_bench.targets.target import About, TargetUnavailable

WholeRow = tuple[list[int], Int64[np.ndarray, " labels"]]
"""Tokens of a query and an item, and labels."""


class PyTorch(LocalModel):
    """A causal language model, on a GPU if PyTorch has one, asked in one of three ways.

    * `serial`: one forward pass for each item, of the query and the item.
    * `batched`: batches of such whole sequences, those of several callers together, padded on the right to the longest.
    * `shared`: the query once; batches of items behind copies of its keys and values.

    Padding on the right needs no mask: no token sees a later one, and each item is read at its own last token.

    Args:
        directory: Of the checkpoint.
        way: `serial`, `batched` or `shared`.
        dtype: `bfloat16` or `float32`.
        batch: Items computed at once.
        merge_lora: Folder of a LoRA adapter that PEFT applies, or None.

    Raises:
        TargetUnavailable: transformers refuses the checkpoint, or PEFT the adapter or is not there.
    """

    def __init__(self, directory: Path, way: str, dtype: str, batch: int, merge_lora: Path | None = None) -> None:
        try:
            loaded = AutoModelForCausalLM.from_pretrained(
                directory, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
            )
            if merge_lora is not None:
                loaded.load_adapter(str(merge_lora))
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            why = str(error).splitlines()[0][:200]
            raise TargetUnavailable(f"transformers cannot load {directory}: {why}") from None
        self._model = model = loaded.eval().to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        self._way, self._batch = way, 1 if way == "serial" else batch
        about = About(
            name=f"transformers-{way}",
            backend="transformers",
            model=str(directory),
            model_sha256=checkpoint_sha256(directory),
            dtype=dtype,
            options={
                "attention": "sdpa",
                "devices": devices(model.device),
                "threads": torch.get_num_threads(),
                "batch": self._batch,
            },
            versions={"torch": torch.__version__, "transformers": transformers.__version__},
        )
        self._whole_rows = RowBatches(self._logprobs_of_rows, self._batch)
        is_whole = way != "shared"
        super().__init__(about, model.config.vocab_size, model.config.max_position_embeddings, joins_calls=is_whole)

    def label_logprobs(
        self, query: list[int], items: list[list[int]], labels: Int64[np.ndarray, " labels"]
    ) -> Float[np.ndarray, "items labels"]:
        """Compute all items, in the target's way."""
        if self._way != "shared":
            return np.stack(self._whole_rows.find([(query + item, labels) for item in items]))
        batches = (items[begin : begin + self._batch] for begin in range(0, len(items), self._batch))
        with torch.inference_mode():
            return np.concatenate([self._logprobs(states)[:, labels] for states in self._after_query(query, batches)])

    def product_rate(self) -> float | None:
        """Measure PyTorch's products on a CPU."""
        if self._model.device.type != "cpu":
            return None
        config, dtype = self._model.config, str(self._model.dtype).removeprefix("torch.")
        return product_rate(config.hidden_size, config.intermediate_size, dtype)

    def _logprobs_of_rows(self, rows: Sequence[WholeRow]) -> list[Float[np.ndarray, " labels"]]:
        """Compute whole sequences together; return the log-probabilities of each one's labels."""
        with torch.inference_mode():
            found = self._logprobs(self._padded([sequence for sequence, _ in rows], None))
        return [logprobs[labels] for logprobs, (_, labels) in zip(found, rows, strict=True)]

    def _logprobs(self, states: torch.Tensor) -> Float[np.ndarray, "sequences vocab"]:
        """Return log-probabilities of the whole vocabulary after hidden states `[sequences, hidden]`."""
        logits = self._model.get_output_embeddings()(states).float()
        return (logits - logits.logsumexp(dim=1, keepdim=True)).cpu().numpy()

    def _after_query(self, query: list[int], batches: Iterator[list[list[int]]]) -> Iterator[torch.Tensor]:
        """Yield hidden states of the items' last tokens, `[batch, hidden]`, in order; the query is computed once."""
        cache, copies = DynamicCache(config=self._model.config), 1
        self._padded([query], cache)
        for batch in batches:
            if copies == 1:
                cache.batch_repeat_interleave(len(batch))
            elif len(batch) < copies:  # the last one
                cache.batch_select_indices(torch.arange(len(batch)))
            copies = len(batch)
            yield self._padded(batch, cache)
            cache.crop(-max(map(len, batch)))

    def _padded(self, sequences: list[list[int]], cache: DynamicCache | None) -> torch.Tensor:
        """Return hidden states of the last tokens, `[sequences, hidden]`."""
        longest = max(map(len, sequences))
        padded = torch.tensor([sequence + [0] * (longest - len(sequence)) for sequence in sequences])
        inputs = {"input_ids": padded.to(self._model.device), "use_cache": cache is not None}
        states = self._model.base_model(cache=cache, **inputs).last_hidden_state
        return states[torch.arange(len(sequences)), torch.tensor([len(sequence) - 1 for sequence in sequences])]


def product_rate(embed: int, mlp: int, dtype: str) -> float:
    """Return the most floating-point operations a second of PyTorch's products on this CPU, as `best_rate` finds it."""

    def make(depth: int, columns: int) -> Callable[[], torch.Tensor]:
        rows, weight = (torch.randn(count, depth, dtype=getattr(torch, dtype)) for count in (ROWS, columns))
        return lambda: torch.nn.functional.linear(rows, weight)

    with torch.inference_mode():
        return best_rate(make, embed, mlp)


def devices(device: torch.device) -> str:
    """Return number and kind, as engines describe theirs (`About.accelerators`)."""
    return f"1 x {torch.cuda.get_device_name(device) if device.type == 'cuda' else device.type}"
