"""Hugging Face transformers on PyTorch, in the three ways in which people score with it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import transformers
from jaxtyping import Float, Int64
from transformers import AutoModelForCausalLM, DynamicCache

from mis_bench.environment import checkpoint_sha256
from mis_bench.targets.blocking import LocalModel
from mis_bench.targets.target import About, TargetUnavailable


class PyTorch(LocalModel):
    """A causal language model, on a GPU if PyTorch has one, asked in one of three ways.

    * `serial`: one forward pass for each item, of the query and the item.
    * `batched`: batches of such whole sequences, padded on the right to the longest.
    * `shared`: the query once; batches of items behind copies of its keys and values.

    Padding on the right needs no mask: no token sees a later one, and each item is read at its own last token.

    Args:
        directory: Of the checkpoint.
        way: `serial`, `batched` or `shared`.
        dtype: `bfloat16` or `float32`.
        batch: Items computed at once.

    Raises:
        TargetUnavailable: transformers refuses the checkpoint.
    """

    def __init__(self, directory: Path, way: str, dtype: str, batch: int) -> None:
        try:
            loaded = AutoModelForCausalLM.from_pretrained(
                directory, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
            )
        except (OSError, ValueError, RuntimeError) as error:
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
        super().__init__(about, model.config.vocab_size, model.config.max_position_embeddings)

    def label_logprobs(
        self, query: list[int], items: list[list[int]], labels: Int64[np.ndarray, " labels"]
    ) -> Float[np.ndarray, "items labels"]:
        """Compute all items, in the target's way."""
        batches = (items[begin : begin + self._batch] for begin in range(0, len(items), self._batch))
        found = []
        with torch.inference_mode():
            for states in self._last_states(query, batches):
                logits = self._model.get_output_embeddings()(states).float()
                logprobs = logits[:, torch.from_numpy(labels)] - logits.logsumexp(dim=1, keepdim=True)
                found.append(logprobs.cpu().numpy())
        return np.concatenate(found)

    def _last_states(self, query: list[int], batches: Iterator[list[list[int]]]) -> Iterator[torch.Tensor]:
        """Yield hidden states of the items' last tokens, `[batch, hidden]`, in order."""
        if self._way != "shared":
            yield from (self._padded([query + item for item in batch], None) for batch in batches)
            return
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


def devices(device: torch.device) -> str:
    """Return number and kind, as engines describe theirs (`About.accelerators`)."""
    return f"1 x {torch.cuda.get_device_name(device) if device.type == 'cuda' else device.type}"
